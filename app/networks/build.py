"""Rows of a Workload: its builder, which importers call once per operator in execution order, and rows of passes.

Tensors that PyTorch's autograd saves for backward follow from what each operator says of itself (`Op.saves`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from app.networks.batched import array_of, as_batched, distinct_values, in_steps
from app.ops import MIXED_FIELDS, OP_CODE, OPS
from app.tables.arrays import Bools, Floats, Ints
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OUTPUT_BYTES, WEIGHT_BYTES, OpTable, concatenate
from app.tables.workload import FORWARD, Workload

# First word of the names of low-rank adapters beside linear layers.
ADAPTER = "adapter"
FP32_BYTES = float(DTYPE_BYTES[DTYPE_CODE["fp32"]])
NEEDS_READ, NEEDS_WRITTEN = (np.array([what in op.saves for op in OPS]) for what in ("input", "output"))


def is_saved(kind: Ints, block: Ints, edges: Ints, own: Bools) -> Bools:
    """Return True for rows whose output is saved for backward, bool [n].

    kind, block  int [n], operator code and block of each row
    edges        int [2, e], producer and consumer rows
    own          bool [n], rows that state their saved bytes themselves, to which the rules do not apply

    A block's last row is always saved: the next block's norm or product reads it.
    The network's last one is too, unless it states its saved bytes itself.
    """
    needed = NEEDS_WRITTEN[kind] & ~own
    needed[edges[0, (NEEDS_READ[kind] & ~own)[edges[1]]]] = True
    needed[:-1] |= block[1:] != block[:-1]
    needed[-1:] |= ~own[-1:]
    return needed


# Default of each operator's fields (None: the field is required).
DEFAULTS: Mapping[str, dict[str, float | None]] = {
    op.name: {column: dim.default for dim in op.dims for column in dim.columns} | {"eager": -1.0} for op in OPS[1:]
}


# Operators that passes insert. A table of batched configurations has columns for the network's operators and these.
_ADDED = ("linear", "bmm", "add", "memory", "all_reduce")


@lru_cache(maxsize=256)
def _fields_of(ops: frozenset[str]) -> Mapping[str, int]:
    """Return MIXED_FIELDS with one shared last column for all fields that none of these operators has."""
    names = dict.fromkeys(name for op in sorted({*ops, *_ADDED}) for name in OPS[OP_CODE[op]].fields)
    return dict.fromkeys(MIXED_FIELDS, len(names)) | {name: k for k, name in enumerate(names)}


# Per row: codes of operator and dtype; elements of output, parameters and saved tensors; bytes of keys and values.
_SIZES = 6


class Builder:
    """Rows of a network in execution order; `dtype` is the default of rows, `stack` the code of their serving stack.

    `frozen`: of the weights only those of adapters are trained.
    """

    def __init__(self, dtype: str, stack: float = np.nan, *, frozen: bool = False) -> None:
        self.dtype = dtype
        self._frozen = frozen
        self._stack = {"stack": stack}
        # NumPy converts one flat list several times faster than a list of rows.
        self._ops: list[str] = []
        self._figures: list[float | None] = []  # per row, the operator's columns
        self._sizes: list[float | None] = []  # per row, _SIZES
        self._like: list[int] = []  # per row, its index into the lists above
        self._blocks: list[int] = []
        self._names: list[str] = []
        self._repeats: list[float] = []
        self._edges: list[int] = []  # per edge, producer and consumer
        self._unknown: dict[str, int] = {}

    def begin(self, repeats: float = 1.0) -> None:
        """Start a block that runs `repeats` times; rows added from here on belong to it."""
        self._repeats.append(repeats)

    def add(  # noqa: PLR0913  the figures of one row, by name
        self,
        op: str,
        inputs: Sequence[int] = (),
        *,
        outputs: float,
        name: str = "",
        dtype: str | None = None,
        parameters: float = 0.0,
        saved: float | None = None,
        kv_bytes: float = 0.0,
        **dims: float,
    ) -> int:
        """Add one operator and return its row number, which its consumers list in `inputs`.

        outputs, parameters  elements written, and of weights
        saved                elements saved for backward (None: by the rules of app/networks/build.py)
        dims                 the operator's fields as columns of the table, named values as their codes

        Raises ValueError for an unknown or a missing field.
        """
        if not self._repeats:
            self.begin()
        defaults = DEFAULTS[op]
        given = defaults | self._stack | dims
        if len(given) != len(defaults) or None in given.values():
            raise ValueError(f"{op} takes {', '.join(defaults)}; given: {', '.join(dims)}")
        self._ops.append(op)
        self._figures += given.values()
        code = DTYPE_CODE[dtype or self.dtype]
        self._sizes += (OP_CODE[op], code, outputs, parameters, saved, kv_bytes)
        return self._placed(len(self._ops) - 1, inputs, name or op)

    def add_again(self, row: int, inputs: Sequence[int], name: str) -> int:
        """Add a copy of an earlier row with other inputs, and return its row number."""
        return self._placed(self._like[row], inputs, name)

    def _placed(self, like: int, inputs: Sequence[int], name: str) -> int:
        row = len(self._like)
        self._like.append(like)
        self._blocks.append(len(self._repeats) - 1)
        self._names.append(name)
        for producer in inputs:
            self._edges += (producer, row)
        return row

    def add_unknown(self, op: str, inputs: Sequence[int] = (), *, moved_bytes: float, **row: Any) -> int:
        """Add an unknown operator as a memory-bound row (NeuSight's rule), count it, and return its row number.

        `moved_bytes` are all bytes it reads and writes; `row` are further arguments of `add`.
        """
        self._unknown[op] = self._unknown.get(op, 0) + 1
        return self.add("memory", inputs, bytes=max(moved_bytes, 1.0), **row)

    def _reads_inputs(self, kind: Ints) -> Bools:
        """Return True for rows whose input backward may read, bool [n]: not products whose weights are frozen."""
        reads = np.ones(len(kind), dtype=np.bool_)
        if self._frozen:
            reads = (kind != OP_CODE["linear"]) | np.array([name.startswith(ADAPTER) for name in self._names])
        return reads

    def build(self) -> Workload:
        """Return the workload added so far, all of it forward."""
        n, u = len(self._like), len(self._ops)
        figures, which = distinct_values(self._figures)
        ops, like = frozenset(self._ops), in_steps(self._like, np.intp)
        fields = MIXED_FIELDS if figures.ndim == 1 else _fields_of(ops)
        sizes = array_of(self._sizes)
        columns = np.moveaxis(sizes.reshape(u, _SIZES, *sizes.shape[1:]), 1, 0)
        place = np.zeros((1 + max(fields.values()), u), dtype=np.intp)
        rows, column = _places(ops, fields, (columns[0] if columns.ndim == 2 else columns[0, :, 0]).astype(np.intp))
        place[column, rows] = 1 + (np.arange(len(rows)) if which is None else which)
        place = place[:, like] if u < n else place
        figures = np.concatenate([np.full((1, *figures.shape[1:]), np.nan), figures])
        columns = columns[:, like] if u < n else columns.copy()  # each contiguous
        # All configurations share operators and dtypes.
        kind, dtype = (columns[:2] if columns.ndim == 2 else columns[:2, :, 0]).astype(np.intp)
        outputs, parameters, saved, kv_bytes = (column.T for column in columns[2:])
        block = in_steps(self._blocks, np.intp)
        edges = in_steps(self._edges, np.intp).reshape(-1, 2).T
        # Drop a last block without rows.
        repeats = array_of(self._repeats[: int(block.max(initial=-1)) + 1]).T
        own = ~np.isnan(np.atleast_2d(saved)[0])
        reads = self._reads_inputs(kind)[edges[1]]
        written = outputs * OUTPUT_BYTES[dtype]
        stated = np.where(own, saved, 0.0) * DTYPE_BYTES[dtype]
        label = np.zeros(n, dtype=np.intp)
        if figures.ndim == 1:
            table = OpTable(kind, dtype, label, fields, figures[place])
        else:
            table = OpTable(kind, dtype, label, fields, figures, place)
        return Workload(
            ops=table,
            names=tuple(self._names),
            phase=np.full(n, FORWARD, dtype=np.intp),
            source=np.arange(n),
            block=block,
            repeats=repeats,
            origin=np.arange(repeats.shape[-1]),
            edges=edges,
            parameters=parameters,
            weight_bytes=parameters * WEIGHT_BYTES[dtype],
            output_bytes=written,
            saved_bytes=written * is_saved(kind, block, edges[:, reads], own) + stated,
            kv_bytes=kv_bytes,
            overlapped=np.zeros(n, dtype=np.bool_),
            unknown=self._unknown,
        )


def _places(ops: Collection[str], fields: Mapping[str, int], kind: Ints) -> tuple[Ints, Ints]:
    """Return row and column of each figure of rows of these operators, which follow one another; kind: int [n]."""
    column = np.full((len(OPS), max((len(OPS[OP_CODE[op]].fields) for op in ops), default=0)), -1)
    for op in ops:
        of_op = [fields[name] for name in OPS[OP_CODE[op]].fields]
        column[OP_CODE[op], : len(of_op)] = of_op
    each = column[kind]
    rows, place = np.nonzero(each >= 0)
    return rows, each[rows, place]


class InsertedRows(NamedTuple):
    """m rows to insert.

    ops         OpTable of m rows
    source      int [m], the row of the workload that each derives from and whose name it takes
    block       int [m]
    order       float64 [m], position within the block; rows of the workload are at their own row number
    phase       code into PHASES
    overlapped  True for communication that overlaps computation
    """

    ops: OpTable
    source: Ints
    block: Ints
    order: Floats
    phase: int
    overlapped: bool = False


def table_of(op: str, dtype: Ints, fields: Mapping[str, int], **columns: Floats | float) -> OpTable:
    """Return a table of operator `op` with a row per entry of `dtype`; columns not given have their defaults."""
    batched = {name: column for name, column in columns.items() if np.ndim(column) > 1}
    dims = np.full((1 + max(fields.values()), len(dtype)), np.nan)
    for name, default in DEFAULTS[op].items():
        dims[fields[name]] = np.nan if name in batched else columns.get(name, default)
    kind = np.full(len(dtype), OP_CODE[op], dtype=np.intp)
    ops = OpTable(kind, dtype, np.zeros(len(dtype), dtype=np.intp), fields, dims)
    for name, column in batched.items():
        ops = with_column(ops, name, column)
    return ops


def with_column(ops: OpTable, name: str, values: Floats | float) -> OpTable:
    """Return the rows with one column replaced by a number, [n] or [c, n]."""
    row = ops.fields[name]
    if np.ndim(values) > 1:
        ops = as_batched(ops, len(np.asarray(values)))
    if ops.place is None:
        dims = ops.dims.copy()
        dims[row] = values
        return replace(ops, dims=dims)
    c, place = ops.dims.shape[1], ops.place.copy()
    added = np.broadcast_to(values, (c, len(ops) if np.ndim(values) else 1)).T
    place[row] = len(ops.dims) + np.arange(len(added))
    return replace(ops, dims=np.concatenate([ops.dims, added]), place=place)


def stacked(tables: Sequence[OpTable]) -> OpTable:
    """Return the tables one after another; batched ones (app/networks/batched.py) have equally many configurations."""
    c = max((table.dims.shape[1] for table in tables if table.place is not None), default=0)
    return concatenate([as_batched(table, c) for table in tables] if c else tables)


def inserted(w: Workload, parts: Sequence[InsertedRows]) -> Workload:
    """Return the workload with the rows inserted by block and order; they have no weights and save no tensors."""
    if not parts:
        return w
    n, sizes = len(w), [len(part.source) for part in parts]
    source, block, order = (
        np.concatenate([first, *(getattr(part, name) for part in parts)])
        for name, first in (("source", w.source), ("block", w.block), ("order", np.arange(n, dtype=np.float64)))
    )
    phase = np.concatenate([w.phase, np.repeat(np.array([part.phase for part in parts], dtype=np.intp), sizes)])
    overlapped = np.concatenate([w.overlapped, np.repeat([part.overlapped for part in parts], sizes)])
    by = np.lexsort((order, block))
    place = np.empty(len(by), dtype=np.intp)
    place[by] = np.arange(len(by))

    def spread(values: Floats) -> Floats:
        rows = np.zeros((len(by), *values.shape[:-1]))
        rows[place[:n]] = values.T
        return rows.T

    return replace(
        w,
        ops=stacked([w.ops, *(part.ops for part in parts)]).take(by),
        names=tuple(w.names[k] for k in source[by].tolist()),
        phase=phase[by],
        source=place[source[by]],
        block=block[by],
        edges=place[w.edges],
        overlapped=overlapped[by],
        parameters=spread(w.parameters),
        weight_bytes=spread(w.weight_bytes),
        output_bytes=spread(w.output_bytes),
        saved_bytes=spread(w.saved_bytes),
        kv_bytes=spread(w.kv_bytes),
    )
