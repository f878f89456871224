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
from app.tables.arrays import Bools
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPES, OpTable
from app.tables.predictions import COMPUTE, Predictions

STEADY = 1.12
_PRODUCTS = [OP_CODE[name] for name in ("linear", "bmm", "moe", "conv2d")]
_FULL = ("fp64", "fp32", "tf32")
_CONVOLUTION, _HBM, _SET_ON_NETWORKS = OP_CODE["conv2d"], "/hbm", ("pascal", "volta")


def with_steady_products(
    answer: Predictions, table: OpTable, run: Run, gpus: GpuTable, targets: Sequence[int]
) -> Predictions:
    """Return predictions of the rows on GPU rows `targets`, GPU by GPU, with products as long as in a busy network."""
    if run.mode not in ("training", "inference"):
        return answer
    rows = np.isin(table.kind, _PRODUCTS)
    on = np.concatenate([rows & _slows(table, gpus, target) for target in targets])
    ratio = np.where(on & (answer.bound == COMPUTE), STEADY, 1.0)
    return replace(answer, latency_s=answer.latency_s * ratio, low_s=answer.low_s * ratio, high_s=answer.high_s * ratio)


def _slows(table: OpTable, gpus: GpuTable, target: int) -> Bools:
    """Return which rows would take longer on a GPU if they are products, bool [n]."""
    architecture = gpus.architectures[target] if gpus.architectures else ""
    set_apart = architecture.endswith(_HBM) and not architecture.startswith(_SET_ON_NETWORKS)
    slows: Bools = _has_tensor_units(gpus, target)[table.dtype] & (set_apart | (table.kind != _CONVOLUTION))
    return slows


def _has_tensor_units(gpus: GpuTable, target: int) -> Bools:
    """Return for which number formats of 16 bits and fewer a GPU has tensor units, bool [dtypes]."""
    pipes = [[pipe for pipe in PIPES_OF_DTYPE[name] if pipe.endswith("_tensor")] for name in DTYPES]
    return np.array(
        [
            name not in _FULL and any(np.isfinite(gpus.column(f"peak_{pipe}_flops")[target]) for pipe in known)
            for name, known in zip(DTYPES, pipes, strict=True)
        ]
    )
