"""Writing a Workload row by row: importers call `add` in the order operators run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.ops import MIXED_FIELDS, OP_CODE, OPS
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OUTPUT_BYTES, WEIGHT_BYTES, OpTable
from app.tables.workload import FORWARD, Workload

# Per operator, the columns of its fields in a mixed table, and what a field left out is (None: it may not be).
_COLUMNS = {op.name: [MIXED_FIELDS[column] for column in op.fields] for op in OPS[1:]}
DEFAULTS: Mapping[str, dict[str, float | None]] = {
    op.name: {column: dim.default for dim in op.dims for column in dim.columns} | {"eager": 0.0} for op in OPS[1:]
}


class Builder:
    """Rows of a network, in the order they run; `dtype` is that of rows that name none."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self._figures: dict[str, list[list[float | None]]] = {}
        self._rows: dict[str, list[int]] = {}
        self._kind: list[int] = []
        self._dtype: list[int] = []
        self._names: list[str] = []
        self._block: list[int] = []
        self._repeats: list[float] = []
        self._edges: list[tuple[int, int]] = []
        self._sizes: list[tuple[float, float, float, float]] = []
        self._unknown: dict[str, int] = {}

    def begin(self, repeats: float = 1.0) -> None:
        """What is added from here on is a block that runs `repeats` times."""
        self._repeats.append(float(repeats))

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

        `outputs`, `parameters` and `saved` count elements: written, held, and kept for backward (absent: `outputs`).
        ValueError for a field that the operator lacks or needs.
        """
        if not self._repeats:
            self.begin()
        given = DEFAULTS[op] | dims
        if len(given) != len(DEFAULTS[op]) or None in given.values():
            raise ValueError(f"{op} takes {', '.join(DEFAULTS[op])}; given: {', '.join(dims)}")
        row = len(self._kind)
        self._figures.setdefault(op, []).append(list(given.values()))
        self._rows.setdefault(op, []).append(row)
        self._kind.append(OP_CODE[op])
        self._dtype.append(DTYPE_CODE[dtype or self.dtype])
        self._names.append(name or op)
        self._block.append(len(self._repeats) - 1)
        self._edges += [(producer, row) for producer in inputs]
        self._sizes.append((outputs, parameters, outputs if saved is None else saved, kv_bytes))
        return row

    def add_unknown(self, op: str, inputs: Sequence[int] = (), *, moved_bytes: float, **row: Any) -> int:
        """An operator that nobody knows: bound by the bytes it reads and writes (NeuSight's rule), and counted.

        `row` is as in `add`.
        """
        self._unknown[op] = self._unknown.get(op, 0) + 1
        return self.add("memory", inputs, bytes=max(moved_bytes, 1.0), **row)

    def build(self) -> Workload:
        """The workload so far, all of it forward."""
        n = len(self._kind)
        dims = np.full((len(MIXED_FIELDS), n), np.nan)
        for op, rows in self._rows.items():
            dims[np.ix_(_COLUMNS[op], rows)] = np.array(self._figures[op], dtype=np.float64).T
        dtype = np.array(self._dtype, dtype=np.intp)
        ops = OpTable(np.array(self._kind, dtype=np.intp), dtype, np.zeros(n, dtype=np.intp), MIXED_FIELDS, dims)
        outputs, parameters, saved, kv_bytes = np.array(self._sizes, dtype=np.float64).reshape(n, 4).T
        return Workload(
            ops=ops,
            names=tuple(self._names),
            phase=np.full(n, FORWARD, dtype=np.intp),
            source=np.arange(n),
            block=np.array(self._block, dtype=np.intp),
            repeats=np.array(self._repeats),
            origin=np.arange(len(self._repeats)),
            edges=np.array(self._edges, dtype=np.intp).reshape(-1, 2).T,
            parameters=parameters,
            weight_bytes=parameters * WEIGHT_BYTES[dtype],
            output_bytes=outputs * OUTPUT_BYTES[dtype],
            saved_bytes=saved * DTYPE_BYTES[dtype],
            kv_bytes=kv_bytes,
            overlapped=np.zeros(n, dtype=np.bool_),
            unknown=self._unknown,
        )
