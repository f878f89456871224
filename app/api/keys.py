"""Routes of API keys, for admins."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.access import KEY
from app.api.deps import CHECKED_BODY, DatabaseDep, HolderDep, KeyId
from app.store import keys
from app.store.keys import Key
from app.store.roles import Role, RoleName

router = APIRouter(tags=["Access"])


_MOST_DAYS = 3650


class KeyIn(BaseModel):
    """Owner, role and lifetime of a new key."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"name": "scheduler", "role": "predict", "expires_in_days": 90}}
    )

    name: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$", description="Whom the key is for")
    role: RoleName = Field(description="read, predict, contribute or admin")
    expires_in_days: float | None = Field(
        default=None, strict=True, gt=0, le=_MOST_DAYS, description="Lifetime in days; null: it never expires"
    )


class RotationIn(BaseModel):
    """How long the old key stays valid beside its successor."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"grace_hours": 24}})

    grace_hours: float = Field(
        default=24.0, strict=True, ge=0, le=24 * _MOST_DAYS, description="Hours that the old key stays valid"
    )


class KeyOut(BaseModel):
    """A key without its secret."""

    id: int = Field(description="Identifier")
    name: str = Field(description="Whom the key is for")
    role: RoleName = Field(description="read, predict, contribute or admin")
    created_at: datetime = Field(description="When it was stored")
    revoked_at: datetime | None = Field(description="When it was revoked; null: not revoked")
    expires_at: datetime | None = Field(description="When it expires; null: never")


class NewKey(KeyOut):
    """A new key: `key` is shown only once."""

    key: str = Field(description="The key itself, shown only once")


class KeyList(BaseModel):
    """Every key, including revoked and expired ones."""

    items: list[KeyOut] = Field(description="Every key, in the order of their ids")


class KeyEvent(BaseModel):
    """Something done to a key."""

    key_id: int = Field(description="Identifier of the key")
    action: Literal["created", "rotated", "revoked"] = Field(description="created, rotated or revoked")
    actor: str = Field(description="the key that did it (key 1), the command line, the first start, or anyone")
    created_at: datetime = Field(description="When it was done")


class KeyEventList(BaseModel):
    """What was done to keys, newest first."""

    items: list[KeyEvent] = Field(description="The last events, newest first")


@router.post("/keys", status_code=201, dependencies=[CHECKED_BODY])
def create_key(request: KeyIn, caller: Request, database: DatabaseDep, holder: HolderDep) -> NewKey:
    """Create a key. It is only in this answer: the service stores its SHA-256."""
    days = request.expires_in_days
    lifetime = None if days is None else timedelta(days=days)
    role = Role[request.role.upper()]
    with database.begin() as connection:
        made, secret = keys.create(connection, request.name, role, lifetime=lifetime, actor=_actor(caller))
    holder.refresh()
    return NewKey(key=secret, **_out(made).model_dump())


@router.post("/keys/{key_id}/rotate", status_code=201, dependencies=[CHECKED_BODY])
def rotate_key(key_id: KeyId, request: RotationIn, caller: Request, database: DatabaseDep, holder: HolderDep) -> NewKey:
    """Create a key's successor, of the same name, role and lifetime; the old one expires after `grace_hours`."""
    grace = timedelta(hours=request.grace_hours)
    with database.begin() as connection:
        made, secret = keys.rotate(connection, key_id, grace=grace, actor=_actor(caller))
    holder.refresh()
    return NewKey(key=secret, **_out(made).model_dump())


@router.get("/keys")
def list_keys(database: DatabaseDep) -> KeyList:
    """Every key, in the order of their ids."""
    with database.begin() as connection:
        return KeyList(items=[_out(key) for key in keys.listed(connection)])


@router.get("/keys/events")
def list_key_events(database: DatabaseDep) -> KeyEventList:
    """What was done to keys, by whom and when: the last 1,000 events, newest first."""
    with database.begin() as connection:
        return KeyEventList(items=[KeyEvent.model_validate(asdict(event)) for event in keys.events(connection)])


@router.delete("/keys/{key_id:int}", status_code=204, response_class=Response)
def revoke_key(key_id: KeyId, caller: Request, database: DatabaseDep, holder: HolderDep) -> None:
    """Revoke a key at once."""
    with database.begin() as connection:
        keys.revoke(connection, key_id, actor=_actor(caller))
    holder.refresh()


def _actor(caller: Request) -> str:
    key: Key | None = caller.scope.get(KEY)
    return "anyone" if key is None else f"key {key.id}"


def _out(key: Key) -> KeyOut:
    return KeyOut.model_validate(asdict(key) | {"role": key.role.name.lower()})
