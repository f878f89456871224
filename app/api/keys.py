"""API keys: made, listed and revoked by admins."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.deps import SOUND, DatabaseDep, HolderDep
from app.store import keys
from app.store.keys import Key
from app.store.roles import Role, RoleName

router = APIRouter(tags=["Access"])


class KeyIn(BaseModel):
    """Whom the key is for, and what it may do."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"name": "scheduler", "role": "predict"}})

    name: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")
    role: RoleName


class KeyOut(BaseModel):
    """A key, without the key."""

    id: int
    name: str
    role: RoleName
    created_at: datetime
    revoked_at: datetime | None


class NewKey(KeyOut):
    """A key just made: `key` is told this once."""

    key: str


class KeyList(BaseModel):
    """Every key, revoked ones too."""

    items: list[KeyOut]


@router.post("/keys", status_code=201, dependencies=[SOUND])
def create_key(wanted: KeyIn, database: DatabaseDep, holder: HolderDep) -> NewKey:
    """Make a key. It is told in this answer and never again: only its SHA-256 is kept."""
    with database.begin() as connection:
        made, secret = keys.create(connection, wanted.name, Role[wanted.role.upper()])
    holder.refresh()
    return NewKey(key=secret, **_out(made).model_dump())


@router.get("/keys")
def list_keys(database: DatabaseDep) -> KeyList:
    """Every key, in the order of their ids."""
    with database.begin() as connection:
        return KeyList(items=[_out(key) for key in keys.listed(connection)])


@router.delete("/keys/{key_id}", status_code=204, response_class=Response)
def revoke_key(key_id: Annotated[int, Path(ge=1, le=2**31 - 1)], database: DatabaseDep, holder: HolderDep) -> None:
    """Revoke a key: from now on it opens nothing."""
    with database.begin() as connection:
        keys.revoke(connection, key_id)
    holder.refresh()


def _out(key: Key) -> KeyOut:
    name: RoleName = key.role.name.lower()  # type: ignore[assignment]
    return KeyOut(id=key.id, name=key.name, role=name, created_at=key.created_at, revoked_at=key.revoked_at)
