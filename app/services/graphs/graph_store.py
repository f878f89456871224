"""Stored graphs: kept by id, and lowered once per batch, sizes and dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from app.errors import BadInput, FieldError
from app.networks.importers.json_graph import GRAPH_LOC, lower, refusal
from app.networks.importers.tensors import binding
from app.networks.run import Run
from app.ops.kinds import kinds_of, work_of
from app.runtime.sized_cache import SizedCache
from app.services.graphs.source import JSON, ONNX, Source, from_database
from app.store import graphs as store
from app.store.graphs import GraphRow
from app.store.session import Database
from app.tables.workload import Workload
from app.wire.graph_form import check_graph

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
        self._sources: SizedCache[Source] = SizedCache(CACHED_JSON_BYTES)
        self._workloads: SizedCache[Workload] = SizedCache(CACHED_ROWS)

    def source(self, graph: Mapping[str, Any] | None, graph_id: str | None) -> Source:
        """Return a request's graph, inline JSON or stored by POST /graphs. Raises BadInput, or NotFound for the id."""
        if (graph is None) == (graph_id is None):
            message = "give either graph or graph_id" if graph is None else "give graph or graph_id, not both"
            raise refusal([FieldError(GRAPH_LOC, message)])
        if graph_id is None:
            return Source(JSON, check_graph(graph))
        source = self._sources.get(graph_id)
        if source is None:
            self._before_reading()
            with self._database.begin() as connection:
                form, text = store.body(connection, graph_id)
            source = from_database(form, text, graph_id)
            self._sources.put(graph_id, source, len(text))
        return source

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

    def add(self, source: Source, dims: Mapping[str, int]) -> GraphRow:
        """Check and store a graph, and return its row. A graph sent again has the same id and changes nothing.

        Figures are for `dims`, in which batch and sequence may be missing (1); no other dimension may.
        """
        figures = graph_figures(source, dims)
        graph_id, text = source.identity()
        row = GraphRow(id=graph_id, form=source.form, name=source.name, body=text.decode(), **figures._asdict())
        with self._database.begin() as connection:
            store.insert(connection, row)
        self._sources.put(graph_id, replace(source, id=graph_id), len(text))
        return row

    def get(self, graph_id: str) -> tuple[GraphRow, Mapping[str, Any]]:
        """Return a graph's row, and its JSON for the sizes of its figures. Raises NotFound."""
        with self._database.begin() as connection:
            row = store.get(connection, graph_id)
        return row, self.source(None, graph_id).graph(row.dims)

    def page(self, *, after: str | None, limit: int) -> list[GraphRow]:
        """Return up to `limit` graphs ordered by id, starting after the id `after`."""
        with self._database.begin() as connection:
            return store.page(connection, after=after, limit=limit)


def lower_source(source: Source, dims: Mapping[str, int], run: Run) -> Workload:
    """Return the rows of one device."""
    sizes = binding(dims, run.device_batch, run.sequence, source.free_dims() if source.form == ONNX else ())
    return lower(source.graph(sizes), run, sizes)


def missing_dims(source: Source, dims: Mapping[str, int]) -> list[str]:
    """Return the named dimensions of a graph without a size: neither in `dims`, nor batch or sequence."""
    known = binding(dims, 1, 1)
    return [name for name in source.free_dims() if name not in known]


def graph_figures(source: Source, dims: Mapping[str, int]) -> GraphFigures:
    """Return the size of a graph. Raises BadInput with places in the graph or file itself."""
    if missing := missing_dims(source, dims):
        query = "&".join(f"dims={name}=SIZE" for name in missing)
        message = f"sizes of {', '.join(missing)} are needed: send ?{query}"
        raise BadInput(f"dims: {message}", errors=[FieldError(("dims",), message)])
    known = binding(dims, 1, 1)
    sizes = {name: known[name] for name in source.free_dims()} | dict(dims)
    try:
        graph = source.graph(sizes)
        workload = lower(graph, Run(dtype=source.dtype), sizes, loc=())
    except BadInput as error:
        assumed = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        asked = "&".join(f"dims={name}=SIZE" for name in sizes if name not in dims)
        message = f" (with {assumed[:500]}{f'; give sizes: ?{asked[:500]}' if asked else ''})" if assumed else ""
        raise type(error)(error.detail + message, errors=error.errors) from None
    flops = work_of(workload.ops, kinds_of(workload.ops)).flops * workload.runs
    parameters = float(workload.parameters.sum())
    return GraphFigures(len(graph["nodes"]), parameters, float(flops.sum()), workload.unknown, sizes)
