"""Stored graphs: kept by id, and lowered once per batch, sizes and dtype."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec

from app.errors import BadInput, FieldError, UnsupportedMedia
from app.networks.importers.json_graph import DEFAULT_DTYPE, GRAPH_LOC, lower
from app.networks.importers.onnx.stripped_file import stripped
from app.networks.importers.onnx.walk import graph as onnx_graph
from app.networks.importers.tensors import BATCH_NAMES, binding, free_dims
from app.networks.run import Run
from app.ops import kinds_of, work_of
from app.runtime.apart import Apart
from app.runtime.sized_cache import SizedCache, StoredCache
from app.services.graphs.export_program import read_archive, unpacked_bytes
from app.store import graphs as store
from app.store.graphs import GraphRow
from app.store.keys import ANYONE, NOBODY, Caller, Owner
from app.store.session import Database
from app.tables.workload import Workload
from app.wire.decoding import decode_plain
from app.wire.graph_form import canonical_json, check_graph
from app.wire.json_text import decode_in_parts

# Limits on cached rows of workloads, about 600 bytes each, and on bytes of JSON of sources, which take some 15 times as
# many as objects: a node may have a thousand tensors.
CACHED_ROWS = 200_000
CACHED_JSON_BYTES = 12 * 2**20


class GraphFigures(NamedTuple):
    """Size of a graph for the dimensions `dims`: one forward pass of one batch."""

    nodes: int
    parameters: float
    flops: float
    unknown: Mapping[str, int]
    dims: Mapping[str, int]


class Graphs:
    """Graphs of this process: those of the database by id, with recent results cached."""

    def __init__(self, database: Database, before_reading: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._before_reading = before_reading  # called in the thread of the request
        self._sources: StoredCache[Source] = StoredCache(CACHED_JSON_BYTES)
        self._workloads: SizedCache[Workload] = SizedCache(CACHED_ROWS)

    def source(self, graph: Mapping[str, Any] | None, graph_id: str | None) -> Source:
        """Return a request's graph, inline JSON or stored by POST /graphs. Raises BadInput, or NotFound for the id."""
        if (graph is None) == (graph_id is None):
            message = "give either graph or graph_id" if graph is None else "give graph or graph_id, not both"
            raise BadInput.at(GRAPH_LOC, message)
        if graph_id is None:
            return Source(JSON, check_graph(graph))
        return self._sources.get(graph_id, partial(self._read, graph_id), partial(self._check, graph_id))

    def _read(self, graph_id: str) -> tuple[Source, int]:
        self._before_reading()
        with self._database.begin() as connection:
            form, text = store.body(connection, graph_id)
        return from_database(form, text, graph_id), len(text)

    def _check(self, graph_id: str) -> None:
        self._before_reading()
        with self._database.begin() as connection:
            store.exists(connection, graph_id)

    def workload(self, source: Source, dims: Mapping[str, int], run: Run) -> Workload:
        """Return the rows of one device. Raises BadInput that names the wrong node, or the dimension without a size."""
        if not source.id or run.parallelism.tensor > 1:
            return lower_source(source, dims, run)
        key = (source.id, run.device_batch, run.sequence, run.dtype, *sorted(dims.items()))
        workload = self._workloads.get(key)
        if workload is None:
            workload = lower_source(source, dims, run)
            self._workloads.put(key, workload, len(workload))
        return workload

    def add(self, row: GraphRow, owner: Owner = NOBODY) -> GraphRow:
        """Store a graph, and return its row. A graph sent again has the same id, and may get an owner more."""
        with self._database.begin() as connection:
            store.insert(connection, row, owner)
        return row

    def get(self, graph_id: str) -> tuple[GraphRow, Mapping[str, Any]]:
        """Return a graph's row, and its JSON for the sizes of its figures. Raises NotFound."""
        with self._database.begin() as connection:
            row = store.get(connection, graph_id)
        return row, self.source(None, graph_id).graph(row.dims)

    def remove(self, graph_id: str, caller: Caller) -> None:
        """Take a graph from the caller, with whose last owner it is deleted. Raises NotFound for another's."""
        with self._database.begin() as connection:
            deleted = store.remove(connection, graph_id, caller)
        if deleted:
            self._sources.drop(graph_id)

    def page(self, caller: Caller = ANYONE, *, after: str | None, limit: int) -> list[GraphRow]:
        """Return up to `limit` graphs of the caller or of everybody ordered by id, starting after the id `after`."""
        with self._database.begin() as connection:
            return store.page(connection, caller, after=after, limit=limit)


def lower_source(source: Source, dims: Mapping[str, int], run: Run) -> Workload:
    """Return the rows of one device. Raises BadInput for a batch where no dimension of the graph is one."""
    free = source.free_dims() if source.form == ONNX or run.device_batch > 1 else ()
    if run.device_batch > 1 and not set(free) & set(BATCH_NAMES):
        message = "the graph has no dimension `batch`: its time is that of the batch in its shapes; leave batch out"
        raise BadInput.at(("workload", "batch"), f"{message}, or name the dimension", end=".")
    sizes = binding(dims, run.device_batch, run.sequence, free if source.form == ONNX else ())
    return lower(source.graph(sizes), run, sizes)


def missing_dims(source: Source, dims: Mapping[str, int]) -> list[str]:
    """Return the named dimensions of a graph without a size: neither in `dims`, nor batch or sequence."""
    known = binding(dims, 1, 1)
    return [name for name in source.free_dims() if name not in known]


def graph_figures(source: Source, dims: Mapping[str, int]) -> GraphFigures:
    """Return the size of a graph. Raises BadInput with places in the graph or file itself."""
    if missing := missing_dims(source, dims):
        query = "&".join(f"dims={name}=SIZE" for name in missing)
        raise BadInput.at(("dims",), f"sizes of {', '.join(missing)} are needed: send ?{query}")
    known = binding(dims, 1, 1)
    sizes = {name: known[name] for name in source.free_dims()} | dict(dims)
    try:
        graph = source.graph(sizes)
        workload = lower(graph, Run(dtype=source.dtype), sizes, loc=())
    except BadInput as error:
        assumed = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        query = "&".join(f"dims={name}=SIZE" for name in sizes if name not in dims)
        message = f" (with {assumed[:500]}{f'; give sizes: ?{query[:500]}' if query else ''})" if assumed else ""
        raise type(error)(error.detail + message, errors=error.errors) from None
    flops = work_of(workload.ops, kinds_of(workload.ops)).flops * workload.runs
    parameters = float(workload.parameters.sum())
    return GraphFigures(len(graph["nodes"]), parameters, float(flops.sum()), workload.unknown, sizes)


JSON, ONNX = "json", "onnx"


@dataclass(frozen=True, slots=True)
class Source:
    """`body` in plain containers: a JSON graph, or an ONNX file without its weights.

    `id` is empty until it is stored.
    """

    form: str
    body: Mapping[str, Any]
    id: str = ""

    @property
    def name(self) -> str:
        """The network's own name."""
        return str(self.body.get("name") or "graph")

    @property
    def dtype(self) -> str:
        """Default format of its tensors, which a request can override."""
        return str(self.body.get("dtype") or DEFAULT_DTYPE)

    def graph(self, sizes: Mapping[str, int]) -> Mapping[str, Any]:
        """Return the project's JSON graph; of an ONNX file, with every dimension bound by `sizes`."""
        return onnx_graph(self.body, sizes) if self.form == ONNX else self.body

    def free_dims(self) -> list[str]:
        """Return the named dimensions of its tensors."""
        tensors = list(self.body.get("inputs", ()))
        if self.form == JSON:
            tensors += [output for node in self.body["nodes"] for output in node["outputs"]]
        return free_dims([tensor["shape"] for tensor in tensors])

    def canonical(self) -> bytes:
        """Return canonical bytes: equal for equal content."""
        return canonical_json(self.body) if self.form == JSON else msgspec.json.encode(self.body, order="sorted")

    def identity(self) -> tuple[str, bytes]:
        """Return the id, a SHA-256 of the format and the canonical JSON, and that JSON."""
        text = self.canonical()
        return hashlib.sha256(self.form.encode() + b"\n" + text).hexdigest(), text


def from_database(form: str, text: str, graph_id: str) -> Source:
    """Return a network from its database row."""
    return Source(form, decode_in_parts(text.encode()), graph_id)


MEDIA_JSON = "application/json"
MEDIA_ZIP = "application/zip"
# Media types of files in any format; ONNX has no registered type.
MEDIA_FILES = (
    "application/octet-stream",
    MEDIA_ZIP,
    "application/x-onnx",
    "application/onnx",
    "application/x-protobuf",
)
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # with and without entries
MAX_EXTENT = 2**31


def read_graph(body: bytes, media: str) -> Source:
    """Return the network of an upload. Raises Malformed, BadInput or UnsupportedMedia."""
    if media not in (MEDIA_JSON, *MEDIA_FILES):
        raise UnsupportedMedia(f"A graph is read as {', '.join((MEDIA_JSON, *MEDIA_FILES))}; this is {media!r}.")
    if media == MEDIA_ZIP or body.startswith(_ZIP):
        return Source(JSON, read_archive(body))
    if media == MEDIA_JSON or body[:64].lstrip()[:1] == b"{":
        return Source(JSON, check_graph(decode_plain(body), loc=()))
    return Source(ONNX, stripped(body))


# Bodies, and programs in them, that are read at once: a few milliseconds of steps between which others work.
SMALL_BYTES = 2**16


def read_row(body: bytes, media: str, dims: Mapping[str, int], apart: Apart) -> GraphRow:
    """Return the row of an upload; one that may take long is read apart. Raises as `read_graph` and `new_row`."""
    if len(body) <= SMALL_BYTES and unpacked_bytes(body) <= SMALL_BYTES:
        source = read_graph(body, media)
        if "functions" not in source.body:  # they may call one another a hundred thousand times
            return new_row(source, dims)
    answer = apart.result(f"{__name__}:packed_row", {"media": media, "dims": dims}, body).tobytes()
    figures, _, text = answer.partition(b"\n")
    return GraphRow(**msgspec.json.decode(figures) | {"body": text.decode()})


def packed_row(body: bytes, media: str, dims: Mapping[str, int]) -> bytes:
    """Return the row of an upload: its figures in a line of JSON, then its body."""
    row = new_row(read_graph(body, media), dims)
    return msgspec.json.encode(asdict(replace(row, body=""))) + b"\n" + row.body.encode()


def new_row(source: Source, dims: Mapping[str, int]) -> GraphRow:
    """Check a graph and return its row.

    Figures are for `dims`, in which batch and sequence may be missing (1); no other dimension may.
    """
    figures = graph_figures(source, dims)
    graph_id, text = source.identity()
    return GraphRow(id=graph_id, form=source.form, name=source.name, body=text.decode(), **figures._asdict())


def read_dims(texts: Iterable[str]) -> dict[str, int]:
    """Return sizes from NAME=SIZE texts. Raises BadInput that names an invalid one."""
    dims: dict[str, int] = {}
    for k, text in enumerate(texts):
        name, separator, size = text.partition("=")
        if not (separator and name and size.isascii() and size.isdigit() and 0 < int(size[:11]) <= MAX_EXTENT):
            message = f"send NAME=SIZE with a size from 1 to {MAX_EXTENT}, not {text[:100]!r}"
            raise BadInput(f"dims: {message}", errors=[FieldError(("dims", k), message)])
        dims[name] = int(size)
    return dims
