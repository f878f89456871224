"""`gpucast keys`: API keys from a terminal; also the way in where no key is known any more."""

from __future__ import annotations

from typing import Annotated

import typer

from app.config import Settings
from app.store.roles import Role, RoleName

command = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys.")


@command.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whom the key is for.")],
    role: Annotated[RoleName, typer.Option(help="What it may do; each role also what those before it may.")],
) -> None:
    """Make a key and print it: this once, for only its SHA-256 is kept."""
    from app.bootstrap.runtime import open_runtime
    from app.store import keys

    with open_runtime(Settings.from_env()) as runtime, runtime.database.begin() as connection:
        _, secret = keys.create(connection, name, Role[role.upper()])
    print(secret)


@command.command("list")
def list_keys() -> None:
    """List every key, those revoked too."""
    from app.bootstrap.runtime import open_runtime
    from app.store import keys

    with open_runtime(Settings.from_env()) as runtime, runtime.database.begin() as connection:
        found = keys.listed(connection)
    for key in found:
        state = "in use" if key.revoked_at is None else f"revoked {key.revoked_at:%Y-%m-%d}"
        print(f"{key.id:>4}  {key.role.name.lower():<10}  {key.created_at:%Y-%m-%d}  {state:<18}  {key.name}")


@command.command("revoke")
def revoke(key_id: Annotated[int, typer.Argument(metavar="ID", help="As `gpucast keys list` shows it.")]) -> None:
    """Revoke a key: running services refuse it within a second."""
    from app.bootstrap.runtime import open_runtime
    from app.store import keys

    with open_runtime(Settings.from_env()) as runtime, runtime.database.begin() as connection:
        keys.revoke(connection, key_id)
    print(f"Revoked {key_id}.")
