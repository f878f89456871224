"""Builder of a Workload: importers call `add` once per operator, in execution order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from app.networks.batched import array_of, distinct_values
from app.networks.saved_tensors import is_saved
from app.ops import MIXED_FIELDS, OP_CODE, OPS
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OUTPUT_BYTES, WEIGHT_BYTES, OpTable
from app.tables.workload import FORWARD, Workload

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
    """Rows of a network in execution order; `dtype` is the default of rows, `stack` the code of their serving stack."""

    def __init__(self, dtype: str, stack: float = np.nan) -> None:
        self.dtype = dtype
        self._stack = {"stack": stack}
        # NumPy converts one flat list several times faster than a list of rows.
        self._ops: list[str] = []
        self._figures: list[float | None] = []  # per row, the operator's columns
        self._sizes: list[float | None] = []  # per row, _SIZES
        self._like: list[int] = []  # per row, its index into the lists above
        self._blocks: list[int] = []
        self._names: list[str] = []
        self._repeats: list[float] = []
        self._edges: list[tuple[int, int]] = []
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
        saved                elements saved for backward (None: by the rules of app/networks/saved_tensors.py)
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
            self._edges.append((producer, row))
        return row

    def add_unknown(self, op: str, inputs: Sequence[int] = (), *, moved_bytes: float, **row: Any) -> int:
        """Add an unknown operator as a memory-bound row (NeuSight's rule), count it, and return its row number.

        `moved_bytes` are all bytes it reads and writes; `row` are further arguments of `add`.
        """
        self._unknown[op] = self._unknown.get(op, 0) + 1
        return self.add("memory", inputs, bytes=max(moved_bytes, 1.0), **row)

    def build(self) -> Workload:
        """Return the workload added so far, all of it forward."""
        n, u = len(self._like), len(self._ops)
        figures, which = distinct_values(self._figures)
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
        # All configurations share operators and dtypes.
        kind, dtype = (columns[:2] if columns.ndim == 2 else columns[:2, :, 0]).astype(np.intp)
        outputs, parameters, saved, kv_bytes = (column.T for column in columns[2:])
        block = np.array(self._blocks, dtype=np.intp)
        edges = np.array(self._edges, dtype=np.intp).reshape(-1, 2).T
        # Drop a last block without rows.
        repeats = array_of(self._repeats[: int(block.max(initial=-1)) + 1]).T
        own = ~np.isnan(np.atleast_2d(saved)[0])
        saved = outputs * is_saved(kind, block, edges, own) + np.where(own, saved, 0.0)
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
