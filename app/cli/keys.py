"""`gpucast keys`: API keys; also regains access when all keys are lost."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from app.config import Settings
from app.store.roles import Role, RoleName

if TYPE_CHECKING:
    from app.store.keys import Key

Id: TypeAlias = Annotated[int, typer.Argument(metavar="ID", help="Id from `gpucast keys list`.")]

command = typer.Typer(no_args_is_help=True, help="Create, list, rotate and revoke API keys.")


@command.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Owner of the key.")],
    role: Annotated[RoleName, typer.Option(help="Permissions; each role includes those before it.")],
    days: Annotated[float | None, typer.Option(min=0.001, max=3650, help="Lifetime; default: no end.")] = None,
) -> None:
    """Create a key and print it; it is shown only once, because only its SHA-256 is stored."""
    from app.bootstrap.runtime import open_runtime
    from app.store import keys

    with open_runtime(Settings.from_env()) as runtime, runtime.database.begin() as connection:
        lifetime = None if days is None else timedelta(days=days)
        _, secret = keys.create(connection, name, Role[role.upper()], lifetime=lifetime)
    print(secret)


@command.command("rotate")
def rotate(
    key_id: Id,
    grace_hours: Annotated[float, typer.Option(min=0, max=87600, help="Time that the old key stays valid.")] = 24.0,
) -> None:
    """Create a key's successor and print it: same name, role and lifetime; the old one expires."""
    from app.bootstrap.runtime import open_runtime
    from app.store import keys

    with open_runtime(Settings.from_env()) as runtime, runtime.database.begin() as connection:
        _, secret = keys.rotate(connection, key_id, grace=timedelta(hours=grace_hours))
    print(secret)


@command.command("events")
def list_events() -> None:
    """List what was done to keys, by whom and when; the newest first."""
    from app.bootstrap.runtime import open_runtime
    from app.store import keys

    with open_runtime(Settings.from_env()) as runtime, runtime.database.begin() as connection:
        events = keys.events(connection)
    for event in events:
        print(f"{event.created_at:%Y-%m-%d %H:%M:%S}  key {event.key_id:>4}  {event.action:<8}  by {event.actor}")


@command.command("list")
def list_keys() -> None:
    """List all keys, including revoked ones."""
    from app.bootstrap.runtime import open_runtime
    from app.store import keys

    with open_runtime(Settings.from_env()) as runtime, runtime.database.begin() as connection:
        listed = keys.listed(connection)
    if not listed:
        print("No keys: `gpucast keys create NAME --role ROLE` creates one.")
    for key in listed:
        state = _state(key)
        print(f"{key.id:>4}  {key.role.name.lower():<10}  {key.created_at:%Y-%m-%d}  {state:<18}  {key.name}")


@command.command("revoke")
def revoke(key_id: Id) -> None:
    """Revoke a key: running services refuse it within a second."""
    from app.bootstrap.runtime import open_runtime
    from app.store import keys

    with open_runtime(Settings.from_env()) as runtime, runtime.database.begin() as connection:
        keys.revoke(connection, key_id)
    print(f"Revoked {key_id}.")


def _state(key: Key) -> str:
    if key.revoked_at is not None:
        return f"revoked {key.revoked_at:%Y-%m-%d}"
    if key.expires_at is None:
        return "in use"
    return f"{'expired' if key.is_expired() else 'until'} {key.expires_at:%Y-%m-%d}"
