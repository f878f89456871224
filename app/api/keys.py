"""Routes of API keys, for admins."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.deps import CHECKED_BODY, DatabaseDep, HolderDep
from app.store import keys
from app.store.keys import Key
from app.store.roles import Role, RoleName

router = APIRouter(tags=["Access"])


class KeyIn(BaseModel):
    """Owner and role of a new key."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"name": "scheduler", "role": "predict"}})

    name: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")
    role: RoleName


class KeyOut(BaseModel):
    """A key without its secret."""

    id: int
    name: str
    role: RoleName
    created_at: datetime
    revoked_at: datetime | None


class NewKey(KeyOut):
    """A new key: `key` is shown only once."""

    key: str


class KeyList(BaseModel):
    """Every key, including revoked ones."""

    items: list[KeyOut]


@router.post("/keys", status_code=201, dependencies=[CHECKED_BODY])
def create_key(request: KeyIn, database: DatabaseDep, holder: HolderDep) -> NewKey:
    """Create a key. It is only in this answer: the service stores its SHA-256."""
    with database.begin() as connection:
        made, secret = keys.create(connection, request.name, Role[request.role.upper()])
    holder.refresh()
    return NewKey(key=secret, **_out(made).model_dump())


@router.get("/keys")
def list_keys(database: DatabaseDep) -> KeyList:
    """Every key, in the order of their ids."""
    with database.begin() as connection:
        return KeyList(items=[_out(key) for key in keys.listed(connection)])


@router.delete("/keys/{key_id}", status_code=204, response_class=Response)
def revoke_key(key_id: Annotated[int, Path(ge=1, le=2**31 - 1)], database: DatabaseDep, holder: HolderDep) -> None:
    """Revoke a key at once."""
    with database.begin() as connection:
        keys.revoke(connection, key_id)
    holder.refresh()


def _out(key: Key) -> KeyOut:
    name: RoleName = key.role.name.lower()  # type: ignore[assignment]
    return KeyOut(id=key.id, name=key.name, role=name, created_at=key.created_at, revoked_at=key.revoked_at)
