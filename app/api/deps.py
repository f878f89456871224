"""Parameters and dependencies that routes share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from fastapi import Depends, Path, Query, Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.responses import Response

from app.api.access import caller_of
from app.api.bodies import received
from app.api.work_queues import use_database
from app.bootstrap.runtime import Runtime
from app.config import Settings
from app.engine.snapshot import Snapshot
from app.engine.snapshot_holder import SnapshotHolder
from app.errors import BadInput, FieldError, GpucastError, NotFound, Unavailable
from app.runtime.apart import Apart
from app.services.graphs.graph_store import Graphs
from app.services.quotes.reproduce import Answer, SavableRequest, save_answer
from app.store.keys import Caller, Owner
from app.store.session import Database
from app.wire.decoding import decode_plain
from app.wire.json_text import check_json_text

T = TypeVar("T")


def current(
    holder: SnapshotHolder, answer: Callable[[Snapshot], T], retry_on: tuple[type[GpucastError], ...] = (NotFound,)
) -> T:
    """Return `answer` of the snapshot; retry once after a refresh, since another process may have added a GPU.

    `retry_on`: errors that a change of the catalogue may cause.
    """
    before = holder.snapshot
    try:
        return answer(before)
    except retry_on:
        if not moved(holder, before):
            raise
    return answer(holder.snapshot)


def moved(holder: SnapshotHolder, before: Snapshot) -> bool:
    """Refresh the snapshot; return True if it is no longer `before`, whoever changed it."""
    with suppress(Unavailable):
        holder.refresh()
    return holder.snapshot is not before


@dataclass(frozen=True, slots=True)
class Saving:
    """Saves answers that a route's requests want kept, for the caller's key."""

    kind: str
    runtime: Runtime
    caller: Caller

    def saved(self, snapshot: Snapshot, request: SavableRequest, answer: Answer) -> Answer:
        """Return the answer, saved and with its id if so requested. Raises Unavailable if too many wait for that."""
        if not request.save:
            return answer
        use_database()
        owner = Owner(self.caller.owner_id, self.runtime.settings.max_saved_per_key)
        return save_answer(self.runtime.database, snapshot, self.kind, request, answer, owner)


def as_json(answer: object) -> Response:
    """Return an answer in JSON as msgspec writes it."""
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def check_parameters(request: Request) -> None:
    """Raise BadInput that names unknown and repeated parameters."""
    parameters = request.query_params
    route = request.scope.get("route")
    if not parameters or not isinstance(route, APIRoute):
        return
    repeatable = _parameters(route)
    errors = []
    for name in parameters:
        if name not in repeatable:
            known = f"the parameters are {', '.join(repeatable)}" if repeatable else "this route has no parameters"
            errors.append(FieldError((name,), f"unknown parameter; {known}"))
        elif not repeatable[name] and len(parameters.getlist(name)) > 1:
            errors.append(FieldError((name,), "appears more than once"))
    if errors:
        raise BadInput(f"{errors[0].loc[0]}: {errors[0].msg}", errors=errors)


def _parameters(route: APIRoute) -> dict[str, bool]:
    """Return the query parameters of a route, and whether each may be repeated."""
    elsewhere = (params.Path, params.Header, params.Cookie)  # fields of a parameter model have none of these classes
    fields = (field for field in get_flat_params(route.dependant) if not isinstance(field.field_info, elsewhere))
    return {field.alias: _is_list(field.field_info.annotation) for field in fields}


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(get_origin(part) is list for part in get_args(annotation))


# Control characters are invisible in logs, and PostgreSQL stores no NUL.
Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=200, pattern="^[^\\x00-\\x1f\\x7f]+$")]
MOST_ID = 2**63 - 1  # of PostgreSQL's bigint
Id: TypeAlias = Annotated[int, Field(ge=1, le=MOST_ID)]
SavedId: TypeAlias = Annotated[Id, Path(description="Identifier of the saved answer")]
KeyId: TypeAlias = Annotated[int, Field(ge=1, le=2**31 - 1, description="Identifier of the key")]  # in 32 bits
# Of a saved answer that belongs to another key.
Share: TypeAlias = Annotated[str | None, Query(description="Token of its owner, `share` of GET /predictions/{id}")]
Limit: TypeAlias = Annotated[int, Field(ge=1, le=1000, description="Most entries of a page")]


async def _runtime(request: Request) -> Runtime:
    runtime: Runtime = request.app.state.runtime
    return runtime


async def _database(request: Request) -> Database:
    return (await _runtime(request)).database


async def _settings(request: Request) -> Settings:
    return (await _runtime(request)).settings


async def _holder(request: Request) -> SnapshotHolder:
    holder: SnapshotHolder = request.app.state.holder
    return holder


async def _caller(request: Request) -> Caller:
    return caller_of(request.scope)


async def _graphs(request: Request) -> Graphs:
    graphs: Graphs = request.app.state.graphs
    return graphs


def _json_body(body: Annotated[bytes, Depends(received)]) -> Any:
    return decode_plain(body)


async def _apart(request: Request) -> Apart:
    apart: Apart = request.app.state.apart
    return apart


async def _check_body(request: Request) -> None:
    check_json_text(await request.body())


RuntimeDep = Annotated[Runtime, Depends(_runtime)]
DatabaseDep = Annotated[Database, Depends(_database)]
SettingsDep = Annotated[Settings, Depends(_settings)]
GraphsDep = Annotated[Graphs, Depends(_graphs)]
CallerDep = Annotated[Caller, Depends(_caller)]
HolderDep = Annotated[SnapshotHolder, Depends(_holder)]
ApartDep = Annotated[Apart, Depends(_apart)]
BodyDep = Annotated[bytes, Depends(received)]
JsonBody = Annotated[Any, Depends(_json_body)]
# For routes whose body FastAPI reads itself.
CHECKED_BODY = Depends(_check_body)
