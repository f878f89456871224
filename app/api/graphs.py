"""Routes of graphs: networks that are sent once and used by id."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.types import Message, Scope

from app.api.bodies import received
from app.api.deps import ApartDep, CallerDep, GraphsDep, Limit, SettingsDep
from app.api.openapi import BINARY, ref
from app.errors import BadInput, FieldError
from app.services.graphs.graph_store import MEDIA_FILES, MEDIA_JSON, read_dims, read_row
from app.store.graphs import GraphRow
from app.store.keys import Owner
from app.wire.graph_form import GRAPH_EXAMPLE, Graph, graph_json

router = APIRouter(tags=["Graphs"])

_ID = "^[0-9a-f]{64}$"
GraphId: TypeAlias = Annotated[str, Path(pattern=_ID, description="Identifier returned by POST /graphs")]
MEDIA_FORM = "multipart/form-data"
_BODIES: dict[str, Any] = {MEDIA_JSON: {"schema": ref(Graph), "example": GRAPH_EXAMPLE}}
_BODIES |= {media: {"schema": BINARY} for media in MEDIA_FILES[:3]}
_BODIES[MEDIA_FORM] = {"schema": {"type": "object", "required": ["file"], "properties": {"file": BINARY}}}
_DESCRIPTION = (
    "A network in the project's JSON form (docs/reference/graphs.md), an ONNX file or a torch.export archive (.pt2):"
    " weights are not read, so files may omit them. The id is a hash of the content: sent again, it"
    " changes nothing. Named dimensions are bound by each prediction; `dims` sets the sizes for the figures of the"
    " answer, and must have all but those of the batch and the sequence, which count as 1."
)


class GraphOut(BaseModel):
    """A stored network, and the size of one forward pass for `dims`."""

    graph_id: str = Field(description="Identifier returned by POST /graphs")
    name: str = Field(description="Name")
    form: str = Field(description="json (also of archives) or onnx")
    nodes: int = Field(description="Nodes of the graph")
    parameters: float = Field(description="Weights, elements")
    flops: float = Field(description="Operations of one forward pass")
    unknown: dict[str, int] = Field(description="unknown operators, costed as memory traffic, with counts")
    dims: dict[str, int] = Field(description="named dimensions, and their sizes for the figures")
    created_at: datetime | None = Field(default=None, description="When it was stored")


class GraphWhole(GraphOut):
    """A stored network with its nodes."""

    graph: dict[str, Any] = Field(description="in the JSON form")


class GraphPage(BaseModel):
    """One page; `next` is the cursor of the next page, absent on the last."""

    items: list[GraphOut] = Field(description="Entries of this page")
    next: str | None = Field(default=None, description="`after` of the next page; absent on the last")


class GraphQuery(BaseModel):
    """A page of graphs."""

    model_config = ConfigDict(extra="forbid")

    after: Annotated[str, Field(pattern=_ID)] | None = Field(
        default=None, description="the `next` of the previous page"
    )
    limit: Limit = 100


async def _body(request: Request) -> tuple[bytes, str]:
    """Return the file and its media type."""
    media = request.headers.get("content-type", MEDIA_JSON).partition(";")[0].strip().lower()
    body = await received(request)
    if media != MEDIA_FORM:
        return body, media
    return await run_in_threadpool(_file_of, request.scope, body), MEDIA_FILES[0]


def _file_of(scope: Scope, body: bytes) -> bytes:
    """Return the file of a form. It is read on a loop of this thread: the service's would stop for 0.1 s."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def first_file() -> bytes:
        async with Request(scope, receive).form(max_files=1, max_fields=10) as form:
            files = [part for part in form.values() if isinstance(part, UploadFile)]
            if not files:
                message = "required: the graph, as a file"
                raise BadInput("The form has no file.", errors=[FieldError(("file",), message)])
            return await files[0].read()

    return asyncio.run(first_file())


@router.post(
    "/graphs",
    status_code=201,
    description=_DESCRIPTION,
    response_model_exclude_none=True,
    openapi_extra={"requestBody": {"required": True, "content": _BODIES}},
)
def store_graph(
    body: Annotated[tuple[bytes, str], Depends(_body)],
    graphs: GraphsDep,
    apart: ApartDep,
    settings: SettingsDep,
    caller: CallerDep,
    dims: Annotated[list[str], Query(description="NAME=SIZE of a named dimension", max_length=100)] = [],  # noqa: B006
) -> GraphOut:
    """Check and store a network."""
    row = read_row(*body, read_dims(dims), apart)
    return _out(graphs.add(row, Owner(caller.owner_id, settings.max_graphs_per_key)))


@router.get("/graphs", response_model_exclude_none=True)
def list_graphs(query: Annotated[GraphQuery, Query()], graphs: GraphsDep, caller: CallerDep) -> GraphPage:
    """Stored networks in the order of their ids: the key's own and those without an owner; admins see all."""
    rows = graphs.page(caller, after=query.after, limit=query.limit + 1)
    items = [_out(row) for row in rows[: query.limit]]
    return GraphPage(items=items, next=items[-1].graph_id if len(rows) > query.limit else None)


@router.get("/graphs/{graph_id}", response_model=GraphWhole)
def get_graph(graph_id: GraphId, graphs: GraphsDep) -> Response:
    """One network with its nodes."""
    row, graph = graphs.get(graph_id)
    figures = _out(row).model_dump_json().encode()
    # Written here: FastAPI would write megabytes on the event loop.
    return Response(figures[:-1] + b',"graph":' + graph_json(graph) + b"}", media_type=MEDIA_JSON)


@router.delete("/graphs/{graph_id}", status_code=204, response_class=Response)
def delete_graph(graph_id: GraphId, graphs: GraphsDep, caller: CallerDep) -> None:
    """Remove a network of the caller's key. Its last owner, or an admin, deletes it, used or not."""
    graphs.remove(graph_id, caller)


def _out(row: GraphRow) -> GraphOut:
    return GraphOut.model_validate(asdict(row) | {"graph_id": row.id})
