"""Writing a Workload row by row: importers call `add` in the order operators run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from app.graphs.kept import kept
from app.graphs.many import array_of, differing
from app.ops import MIXED_FIELDS, OP_CODE, OPS
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OUTPUT_BYTES, WEIGHT_BYTES, OpTable
from app.tables.workload import FORWARD, Workload

# Per operator, what a field left out is (None: it may not be).
DEFAULTS: Mapping[str, dict[str, float | None]] = {
    op.name: {column: dim.default for dim in op.dims for column in dim.columns} | {"eager": -1.0} for op in OPS[1:]
}


# Operators that passes add to a network's own: of many configurations a table has the columns of these alone.
_ADDED = ("linear", "bmm", "add", "memory", "all_reduce")


@lru_cache(maxsize=256)
def _fields_of(ops: frozenset[str]) -> Mapping[str, int]:
    """MIXED_FIELDS, those that none of these operators has all as one column, the last."""
    names = dict.fromkeys(name for op in sorted({*ops, *_ADDED}) for name in OPS[OP_CODE[op]].fields)
    return dict.fromkeys(MIXED_FIELDS, len(names)) | {name: k for k, name in enumerate(names)}


# Of a row: operator and dtype, by number; elements written, held and kept; bytes of keys and values.
_SIZES = 6


class Builder:
    """Rows of a network, in the order they run; `dtype` is that of rows that name none."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        # One flat list is several times faster to make a table of than a list of rows.
        self._ops: list[str] = []
        self._figures: list[float | None] = []  # per row, the operator's columns
        self._sizes: list[float | None] = []  # per row, _SIZES
        self._like: list[int] = []  # per row, the one of those above that it is
        self._blocks: list[int] = []
        self._names: list[str] = []
        self._repeats: list[float] = []
        self._edges: list[tuple[int, int]] = []
        self._unknown: dict[str, int] = {}

    def begin(self, repeats: float = 1.0) -> None:
        """What is added from here on is a block that runs `repeats` times."""
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
        """One operator, its fields as columns of the table (words as their codes); its row, for its consumers.

        `outputs`, `parameters` and `saved` count elements: written, held, and kept for backward in place of what the
        operator itself needs of what it reads and writes (absent: that, app/graphs/kept.py).
        ValueError for a field that the operator lacks or needs.
        """
        if not self._repeats:
            self.begin()
        defaults = DEFAULTS[op]
        given = defaults | dims
        if len(given) != len(defaults) or None in given.values():
            raise ValueError(f"{op} takes {', '.join(defaults)}; given: {', '.join(dims)}")
        self._ops.append(op)
        self._figures += given.values()
        code = DTYPE_CODE[dtype or self.dtype]
        self._sizes += (OP_CODE[op], code, outputs, parameters, saved, kv_bytes)
        return self._placed(len(self._ops) - 1, inputs, name or op)

    def add_again(self, row: int, inputs: Sequence[int], name: str) -> int:
        """A row like an earlier one, of other inputs."""
        return self._placed(self._like[row], inputs, name)

    def _placed(self, like: int, inputs: Sequence[int], name: str) -> int:
        row = len(self._like)
        self._like.append(like)
        self._blocks.append(len(self._repeats) - 1)
        self._names.append(name)
        for producer in inputs:
            self._edges.append((producer, row))
        return row

    def add_unknown(self, op: str, inputs: Sequence[int] = (), *, moved_bytes: float, **row: Any) -> int:
        """An operator that nobody knows: bound by the bytes it reads and writes (NeuSight's rule), and counted.

        `row` is as in `add`.
        """
        self._unknown[op] = self._unknown.get(op, 0) + 1
        return self.add("memory", inputs, bytes=max(moved_bytes, 1.0), **row)

    def build(self) -> Workload:
        """The workload so far, all of it forward."""
        n, u = len(self._like), len(self._ops)
        figures, which = differing(self._figures)
        fields = MIXED_FIELDS if figures.ndim == 1 else _fields_of(frozenset(self._ops))
        place = np.zeros((1 + max(fields.values()), u), dtype=np.intp)
        if u:
            columns_of = {op: [fields[name] for name in OPS[OP_CODE[op]].fields] for op in set(self._ops)}
            places = [columns_of[op] for op in self._ops]
            rows = np.repeat(np.arange(u), [len(place) for place in places])
            place[np.concatenate(places), rows] = 1 + (np.arange(len(rows)) if which is None else which)
        place = place[:, self._like] if u < n else place
        figures = np.concatenate([np.full((1, *figures.shape[1:]), np.nan), figures])
        sizes = array_of(self._sizes)
        columns = np.moveaxis(sizes.reshape(u, _SIZES, *sizes.shape[1:]), 1, 0)
        columns = columns[:, self._like] if u < n else columns.copy()  # each contiguous
        # What a row is, all configurations share.
        kind, dtype = (columns[:2] if columns.ndim == 2 else columns[:2, :, 0]).astype(np.intp)
        outputs, parameters, saved, kv_bytes = (column.T for column in columns[2:])
        block = np.array(self._blocks, dtype=np.intp)
        edges = np.array(self._edges, dtype=np.intp).reshape(-1, 2).T
        # Less a last block of no rows.
        repeats = array_of(self._repeats[: int(block.max(initial=-1)) + 1]).T
        own = ~np.isnan(np.atleast_2d(saved)[0])
        saved = outputs * kept(kind, block, edges, own) + np.where(own, saved, 0.0)
        label = np.zeros(n, dtype=np.intp)
        if figures.ndim == 1:
            ops = OpTable(kind, dtype, label, fields, figures[place])
        else:
            ops = OpTable(kind, dtype, label, fields, figures, place)
        return Workload(
            ops=ops,
            names=tuple(self._names),
            phase=np.full(n, FORWARD, dtype=np.intp),
            source=np.arange(n),
            block=block,
            repeats=repeats,
            origin=np.arange(repeats.shape[-1]),
            edges=edges,
            parameters=parameters,
            weight_bytes=parameters * WEIGHT_BYTES[dtype],
            output_bytes=outputs * OUTPUT_BYTES[dtype],
            saved_bytes=saved * DTYPE_BYTES[dtype],
            kv_bytes=kv_bytes,
            overlapped=np.zeros(n, dtype=np.bool_),
            unknown=self._unknown,
        )
