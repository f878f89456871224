"""Networks given as graphs: kept by their id, lowered once per batch, sizes and dtype."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from app.errors import BadInput, FieldError
from app.graphs.importers.json_graph import GRAPH_LOC, lower, refusal
from app.graphs.importers.tensors import binding
from app.graphs.run import Run
from app.ops.kinds import kinds_of, work_of
from app.services.graphs.source import JSON, Source, stored
from app.store import graphs as store
from app.store.graphs import GraphRow
from app.store.session import Database
from app.tables.workload import Workload
from app.wire.graph_form import check_graph

T = TypeVar("T")

# Rows (of workloads) and nodes (of sources) that stay in memory, some 600 and 1,000 bytes each.
KEPT_ROWS = 200_000


class Recent(Generic[T]):
    """The last things used, up to a sum of their sizes; safe to share between threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._sum = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        """What is kept under `key`, now the last one used."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: Hashable, thing: T, size: int) -> None:
        """Keep it, unless it is larger than everything may be."""
        with self._lock:
            if key in self._held or size > self._most:
                return
            self._held[key] = thing, size
            self._sum += size
            while self._sum > self._most:
                self._sum -= self._held.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._held.clear()
            self._sum = 0


class Figures(NamedTuple):
    """What a graph comes to, for the sizes in `dims`: one pass forward of one batch."""

    nodes: int
    parameters: float
    flops: float
    unknown: Mapping[str, int]
    dims: Mapping[str, int]


class Graphs:
    """Graphs of this process: those of the database by id, and what was lately made of them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sources: Recent[Source] = Recent(KEPT_ROWS)
        self._workloads: Recent[Workload] = Recent(KEPT_ROWS)

    def source(self, graph: Mapping[str, Any] | None, graph_id: str | None) -> Source:
        """A request's graph: in its own JSON, or stored by POST /graphs. BadInput, or NotFound for the id."""
        if (graph is None) == (graph_id is None):
            message = "give either graph or graph_id" if graph is None else "give graph or graph_id, not both"
            raise refusal([FieldError(GRAPH_LOC, message)])
        if graph_id is None:
            return Source(JSON, check_graph(graph))
        found = self._sources.get(graph_id)
        if found is None:
            with self._database.begin() as connection:
                form, text = store.body(connection, graph_id)
            found = stored(form, text, graph_id)
            self._sources.put(graph_id, found, len(found.body["nodes"]))
        return found

    def workload(self, source: Source, dims: Mapping[str, int], run: Run) -> Workload:
        """The rows of one device; BadInput names the node that cannot be, or the dimension that has no size."""
        if not source.id or run.parallelism.tensor > 1:
            return lowered(source, dims, run)
        key = (source.id, run.device_batch, run.sequence, run.dtype, *sorted(dims.items()))
        found = self._workloads.get(key)
        if found is None:
            found = lowered(source, dims, run)
            self._workloads.put(key, found, len(found))
        return found

    def post(self, source: Source, dims: Mapping[str, int]) -> GraphRow:
        """Check and keep a graph; sent again it has the same id and changes nothing.

        Figures are for `dims`; a dimension that has no size there counts as 1.
        """
        figures = figured(source, dims)
        graph_id, text = source.named()
        row = GraphRow(id=graph_id, form=source.form, name=source.name, body=text.decode(), **figures._asdict())
        with self._database.begin() as connection:
            store.insert(connection, row)
        self._sources.put(graph_id, replace(source, id=graph_id), figures.nodes)
        return row

    def get(self, graph_id: str) -> tuple[GraphRow, Mapping[str, Any]]:
        """What is known of a graph, and its JSON form for the sizes of its figures; NotFound otherwise."""
        with self._database.begin() as connection:
            row = store.get(connection, graph_id)
        return row, self.source(None, graph_id).graph(row.dims)

    def page(self, *, after: str | None, limit: int) -> list[GraphRow]:
        """Up to `limit` graphs in the order of their ids, the first one after the id `after`."""
        with self._database.begin() as connection:
            return store.page(connection, after=after, limit=limit)


def lowered(source: Source, dims: Mapping[str, int], run: Run) -> Workload:
    """The rows of one device."""
    sizes = binding(dims, run.device_batch, run.sequence)
    return lower(source.graph(sizes), run, sizes)


def figured(source: Source, dims: Mapping[str, int]) -> Figures:
    """What a graph comes to; BadInput under the places of the graph or file itself."""
    known = binding(dims, 1, 1)
    sizes = {name: known.get(name, 1) for name in source.free_dims()} | dict(dims)
    try:
        graph = source.graph(sizes)
        workload = lower(graph, Run(dtype=source.dtype), sizes, loc=())
    except BadInput as error:
        assumed = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        raise type(error)(error.detail + f" (with {assumed[:500]})" * bool(assumed), errors=error.errors) from None
    flops = work_of(workload.ops, kinds_of(workload.ops)).flops * workload.runs
    parameters = float(workload.parameters.sum())
    return Figures(len(graph["nodes"]), parameters, float(flops.sum()), workload.unknown, sizes)
