"""Context parallelism: devices that share a sequence pass its keys and values around a ring, beside their attention.

Each device holds an equal share of the queries, dealt so that all have as many pairs of query and key (zig-zag, as in
Megatron-LM and Llama 3, 2024). Forward sends every device's keys and values to all others; backward sends them again,
and returns their gradients. A ring of sends moves the bytes of an all_gather and of a reduce_scatter.
"""

from __future__ import annotations

import numpy as np

from app.networks.inserted_rows import InsertedRows, inserted, table_of
from app.networks.run import Run, spanned
from app.ops import OP_CODE
from app.ops.attention_tiles import shared_heads
from app.tables.arrays import Floats, Ints
from app.tables.ops import DTYPE_BYTES
from app.tables.workload import BACKWARD, Workload

_ATTENTION = OP_CODE["attention_prefill"]


def with_key_exchange(w: Workload, run: Run) -> Workload:
    """Return the workload with the exchange of keys and values (unchanged where no devices share a sequence)."""
    if run.parallelism.context == 1:
        return w
    rows = np.flatnonzero(w.ops.kind == _ATTENTION)
    back = w.phase[rows] == BACKWARD
    parts = [_exchange("all_gather", w, rows[~back], run), _exchange("all_gather", w, rows[back], run)]
    parts.append(_exchange("reduce_scatter", w, rows[back], run))
    return inserted(w, [part for part in parts if len(part.source)])


def _exchange(op: str, w: Workload, rows: Ints, run: Run) -> InsertedRows:
    """Return a collective of the keys and values of attention `rows`: a gather beside it, a reduction behind it."""
    ops, split = w.ops.take(rows), run.parallelism
    place = {
        "devices": split.context,
        "nodes": spanned(split.context, split.tensor, run),
        "spread": split.context * split.tensor,
    }
    count = ops.column("count")
    made = table_of(op, ops.dtype, w.ops.fields, message_bytes=_bytes(w, rows) * split.context, count=count, **place)
    order: Floats = rows.astype(np.float64) + (0.25 if op == "reduce_scatter" else -0.25)
    phase = int(w.phase[rows[0]]) if len(rows) else BACKWARD
    return InsertedRows(made, rows, w.block[rows], order, phase, overlapped=True)


def _bytes(w: Workload, rows: Ints) -> Floats:
    """Return the bytes of a device's own keys and values, as many tokens as it has queries."""
    ops = w.ops.take(rows)
    tokens = ops.column("batch") * ops.column("query_length")
    held: Floats = 2.0 * tokens * shared_heads(ops) * ops.column("head_dim") * DTYPE_BYTES[ops.dtype]
    return held
