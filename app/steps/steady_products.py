"""Products of tensor units between the other operators of a network, minute after minute.

Products were measured alone, for milliseconds: on a cool card, whose power limit had yet to bring the clock down. In a
training step, or where a network runs again and again, the card is hot and at its board power, and they take longer. By
how much was fitted to the training steps of Megatron-Bridge, MLPerf and MPT: with 1.06, 1.09, 1.12 and 1.15 the medians
of their errors sum to 21.9, 21.4, 21.2 and 20.5 % (26.7 without); at 1.15 Megatron-Bridge is at its limit of 8. With
attention too the best sum is 22.6. Steps of serving stacks are left as they are: what else they take was fitted to
whole served loads. So are convolutions before Ampere and on cards without HBM, whose rate was set on whole networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.graphs.run import Run
from app.ops import OP_CODE
from app.predictors.roofline import PIPES_OF_DTYPE
from app.tables.arrays import Bools, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPES, OpTable
from app.tables.predictions import COMPUTE, Predictions

STEADY = 1.12
_PRODUCTS = [OP_CODE[name] for name in ("linear", "bmm", "moe", "conv2d")]
_FULL = ("fp64", "fp32", "tf32")
# (number format, pipe of tensor units that multiplies it)
_TENSOR_PIPES = tuple(
    (code, pipe)
    for code, name in enumerate(DTYPES)
    for pipe in PIPES_OF_DTYPE[name]
    if name not in _FULL and pipe.endswith("_tensor")
)
_CONVOLUTION, _HBM, _SET_ON_NETWORKS = OP_CODE["conv2d"], "/hbm", ("pascal", "volta")


def with_steady_products(
    answer: Predictions, table: OpTable, run: Run, gpus: GpuTable, targets: Sequence[int]
) -> Predictions:
    """Return predictions of the rows on GPU rows `targets`, GPU by GPU, with products as long as in a busy network."""
    if run.mode not in ("training", "inference"):
        return answer
    on = np.isin(table.kind, _PRODUCTS) & _slows(table, gpus, np.asarray(targets, dtype=np.intp))
    ratio = np.where(on.ravel() & (answer.bound == COMPUTE), STEADY, 1.0)
    return replace(answer, latency_s=answer.latency_s * ratio, low_s=answer.low_s * ratio, high_s=answer.high_s * ratio)


def _slows(table: OpTable, gpus: GpuTable, targets: Ints) -> Bools:
    """Return which rows would take longer on which GPUs if they are products, bool [targets, n]."""
    names = [gpus.architectures[target] if gpus.architectures else "" for target in targets]
    set_apart = np.array([name.endswith(_HBM) and not name.startswith(_SET_ON_NETWORKS) for name in names])
    has = _has_tensor_units(gpus, targets)[:, table.dtype]
    slows: Bools = has & (set_apart[:, None] | (table.kind != _CONVOLUTION))
    return slows


def _has_tensor_units(gpus: GpuTable, targets: Ints) -> Bools:
    """Return which GPUs have tensor units for which number formats of 16 bits and fewer, bool [targets, dtypes]."""
    has = np.zeros((len(targets), len(DTYPES)), dtype=np.bool_)
    for code, pipe in _TENSOR_PIPES:
        has[:, code] |= np.isfinite(gpus.column(f"peak_{pipe}_flops")[targets])
    return has
