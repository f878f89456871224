"""Dependencies of routes: database, snapshot, settings, request body.

Those that only look something up are coroutines: FastAPI would run each function in a thread, and wait for it in turn.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request

from app.api.receiving import received
from app.bootstrap.runtime import Runtime
from app.config import Settings
from app.engine.snapshot import SnapshotHolder
from app.services.graphs.graph_store import Graphs
from app.store.session import Database
from app.wire.decoding import decode_plain
from app.wire.json_text import check_json_text
from app.wire.table_process import TableProcess


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


async def _graphs(request: Request) -> Graphs:
    graphs: Graphs = request.app.state.graphs
    return graphs


def _json_body(body: Annotated[bytes, Depends(received)]) -> Any:
    return decode_plain(body)


async def _tables(request: Request) -> TableProcess:
    tables: TableProcess = request.app.state.tables
    return tables


async def _check_body(request: Request) -> None:
    check_json_text(await request.body())


RuntimeDep = Annotated[Runtime, Depends(_runtime)]
DatabaseDep = Annotated[Database, Depends(_database)]
SettingsDep = Annotated[Settings, Depends(_settings)]
GraphsDep = Annotated[Graphs, Depends(_graphs)]
HolderDep = Annotated[SnapshotHolder, Depends(_holder)]
TablesDep = Annotated[TableProcess, Depends(_tables)]
BodyDep = Annotated[bytes, Depends(received)]
JsonBody = Annotated[Any, Depends(_json_body)]
# For routes whose body FastAPI reads itself.
CHECKED_BODY = Depends(_check_body)
