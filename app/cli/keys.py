"""`gpucast keys`: API keys; also regains access when all keys are lost."""

from __future__ import annotations

from typing import Annotated

import typer

from app.config import Settings
from app.store.roles import Role, RoleName

command = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys.")


@command.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Owner of the key.")],
    role: Annotated[RoleName, typer.Option(help="Permissions; each role includes those before it.")],
) -> None:
    """Create a key and print it; it is shown only once, because only its SHA-256 is stored."""
    from app.bootstrap.runtime import open_runtime
    from app.store import keys

    with open_runtime(Settings.from_env()) as runtime, runtime.database.begin() as connection:
        _, secret = keys.create(connection, name, Role[role.upper()])
    print(secret)


@command.command("list")
def list_keys() -> None:
    """List all keys, including revoked ones."""
    from app.bootstrap.runtime import open_runtime
    from app.store import keys

    with open_runtime(Settings.from_env()) as runtime, runtime.database.begin() as connection:
        found = keys.listed(connection)
    for key in found:
        state = "in use" if key.revoked_at is None else f"revoked {key.revoked_at:%Y-%m-%d}"
        print(f"{key.id:>4}  {key.role.name.lower():<10}  {key.created_at:%Y-%m-%d}  {state:<18}  {key.name}")


@command.command("revoke")
def revoke(key_id: Annotated[int, typer.Argument(metavar="ID", help="Id from `gpucast keys list`.")]) -> None:
    """Revoke a key: running services refuse it within a second."""
    from app.bootstrap.runtime import open_runtime
    from app.store import keys

    with open_runtime(Settings.from_env()) as runtime, runtime.database.begin() as connection:
        keys.revoke(connection, key_id)
    print(f"Revoked {key_id}.")
