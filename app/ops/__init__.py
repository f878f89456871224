"""What an operator is: one file per family, registered in OPS. Looks at no GPU."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from app.ops import kernel
from app.ops.attention import ATTENTION_MIXED, ATTENTION_OPS
from app.ops.attention_module import ATTENTION_MODULE_OPS
from app.ops.base import Op, columns
from app.ops.collective import COLLECTIVE_OPS, EXPERT_ALL_TO_ALL_OPS
from app.ops.conv import CONV_OPS
from app.ops.elementwise import ELEMENTWISE_OPS
from app.ops.figures import Work
from app.ops.gemm import GEMM_OPS
from app.ops.hyper_connections import HYPER_CONNECTION_OPS
from app.ops.linear_attention import LINEAR_ATTENTION_OPS
from app.ops.memory import EMBEDDING_OPS, GLUE_OPS, MEMORY_OPS, QUANTIZE_OPS
from app.ops.moe import MOE_OPS, MOE_WIDE_OPS
from app.ops.network import NETWORK_OPS
from app.ops.norm import NORM_OPS
from app.ops.pool import POOL_OPS
from app.ops.recurrent import RECURRENT_OPS
from app.tables.arrays import Floats, Ints
from app.tables.ops import OpTable

OPS = (
    kernel.OP,
    *GEMM_OPS,
    *CONV_OPS,
    *NORM_OPS,
    *POOL_OPS,
    *ELEMENTWISE_OPS,
    *EMBEDDING_OPS,
    *RECURRENT_OPS,
    *ATTENTION_OPS,
    *MOE_OPS,
    *COLLECTIVE_OPS,
    *MEMORY_OPS,
    *GLUE_OPS,
    ATTENTION_MIXED,
    *LINEAR_ATTENTION_OPS,
    *ATTENTION_MODULE_OPS,
    *HYPER_CONNECTION_OPS,
    *QUANTIZE_OPS,
    *EXPERT_ALL_TO_ALL_OPS,
    *MOE_WIDE_OPS,
    *NETWORK_OPS,
)
OP_CODE = {op.name: code for code, op in enumerate(OPS)}
# Columns of a table that mixes deep-learning operators: NaN where a family lacks one.
MIXED_FIELDS = columns(dim for op in OPS[1:] for dim in op.dims)


class Kind(NamedTuple):
    """Rows of one family: their places in the whole table, and a table of them alone."""

    op: Op
    rows: Ints | slice
    table: OpTable


def kinds_of(ops: OpTable) -> list[Kind]:
    """The rows of each family; a table sorted by family is not copied."""
    order, families, step = None, [], np.diff(ops.kind, append=len(OPS))
    if (step < 0).any():
        order = np.argsort(ops.kind, kind="stable")
        ops = ops.take(order)
        step = np.diff(ops.kind, append=len(OPS))
    ends = np.flatnonzero(step) + 1
    for start, end in pairwise([0, *ends.tolist()]):
        op, part = OPS[int(ops.kind[start])], slice(start, end)
        families.append(Kind(op, part if order is None else order[part], ops.of_family(part, op.fields)))
    return families


def work_of(ops: OpTable, kinds: list[Kind]) -> Work:
    """Work of every row, float64 [n] each."""
    if len(kinds) == 1:
        return kinds[0].op.work(kinds[0].table)
    work = Work(*np.empty((3, ops.kind.size)))
    for op, rows, table in kinds:
        for column, part in zip(work, op.work(table), strict=True):
            column[rows] = part
    return work


class Demands(NamedTuple):
    """What rows demand of any device.

    work         as their kernels do it
    least_flops  float64 [n], by the cheapest algorithm known
    sent         float64 [n], bytes that each device sends over its link; None where no row is a collective
    """

    work: Work
    least_flops: Floats
    sent: Floats | None


def demands_of(ops: OpTable, kinds: list[Kind]) -> Demands:
    """Return the demands of every row."""
    work, sent = work_of(ops, kinds), None
    least = work.flops
    for op, rows, table in kinds:
        if op.saving is not None:
            least = least.copy()
            least[rows] /= op.saving(table)
        if op.link_bytes is not None:
            sent = np.zeros(ops.kind.size) if sent is None else sent
            sent[rows] = op.link_bytes(table)
    return Demands(work, least, sent)
