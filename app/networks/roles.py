"""Roles of rows: experts that are dealt to devices and adapters (LoRA), by their names, and products with a bias."""

from __future__ import annotations

import numpy as np

from app.networks.batched import same_in_all
from app.networks.run import Run
from app.ops import OPS
from app.tables.arrays import Bools
from app.tables.workload import Workload

# First word of the names of rows of routed experts, and of the low-rank adapters beside linear layers.
EXPERTS, ADAPTER = "grouped_experts", "adapter"
# Rows of eager attention between its two products (app.networks.transformers.attention).
_SCORES = tuple(f"attention.{part}" for part in ("scores", "scale", "softcap", "bias", "mask", "floor", "softmax"))
# Rows of the loss (app.networks.transformers.lowering).
_LOSS = "loss."
_WEIGHTED = [kind for kind, op in enumerate(OPS) if op.weights is not None]
_HAS_EXPERTS = np.array(["expert_parallel" in op.fields for op in OPS])


def of_experts(w: Workload) -> Bools:
    """Return True for rows whose weights are dealt to expert-parallel devices, bool [n]."""
    named: Bools = _HAS_EXPERTS[w.ops.kind] | np.array([name.startswith(EXPERTS) for name in w.names], dtype=np.bool_)
    return named


def of_scores(w: Workload) -> Bools:
    """Return True for rows from attention's scores to its weights, bool [n]; fused attention keeps none of them."""
    return np.array([name.removeprefix("cross.").startswith(_SCORES) for name in w.names], dtype=np.bool_)


def unfused(w: Workload, run: Run) -> Bools:
    """Return True for rows that PyTorch's own kernels run one by one, bool [n]; those of a loss are fused."""
    if run.fused or run.release.fuses_training:
        return np.zeros(len(w), dtype=np.bool_)
    return np.array([not name.startswith(_LOSS) for name in w.names], dtype=np.bool_)


def biased(w: Workload) -> Bools:
    """Return True for products with a bias: those with more parameters than their weight matrix, bool [n]."""
    held = w.parameters / w.ops.column("count")
    more = np.zeros_like(held, dtype=np.bool_)
    for kind in _WEIGHTED:
        weights = OPS[kind].weights
        if weights is not None and (rows := w.ops.kind == kind).any():
            more = more | (rows & (held > weights(w.ops)))
    return same_in_all(more)


def learning(w: Workload, run: Run) -> Bools:
    """Return True for rows whose weights training changes, bool [n]: all, or with adapters only these."""
    if not run.adapter_rank:
        return np.ones(len(w), dtype=np.bool_)
    return np.array([name.startswith(ADAPTER) for name in w.names], dtype=np.bool_)
