"""Roles of rows: what feeds them, experts that are dealt to devices, adapters (LoRA), products with a bias."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from app.networks.batched import same_in_all
from app.networks.build import ADAPTER
from app.networks.run import OFFLOAD, Run
from app.ops import OP_CODE, OPS
from app.tables.arrays import Bools, Ints
from app.tables.workload import FORWARD, Workload

# First word of the names of rows of routed experts.
EXPERTS = "grouped_experts"
# Last word of the names of rows that quantise a product's operands in training.
QUANTISED = ".quantised"
# Rows of eager attention between its two products (app.networks.transformers.attention).
_SCORES = tuple(f"attention.{part}" for part in ("scores", "scale", "softcap", "bias", "mask", "floor", "softmax"))
# Rows of the modules that Megatron-LM recomputes, by how their names begin.
_MODULES = {
    "layernorm": ("attention.norm", "mlp.norm"),
    "moe_act": (f"{EXPERTS}.activation", f"{EXPERTS}.down.quantised"),
    "mla_up_proj": tuple(f"attention.{part}" for part in ("query_norm", "query_up", "key_norm", "key_up", "rotary")),
    "mlp": ("mlp.gate", "mlp.up", "mlp.product", "mlp.down"),
    "moe": ("experts.", EXPERTS, "shared.", "all_to_all"),
    "shared_experts": ("shared.",),
}
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


def of_modules(w: Workload, modules: Collection[str]) -> Bools:
    """Return True for the rows of modules by Megatron's names (`recompute_modules`), bool [n]; for OFFLOAD all.

    What products read of a norm in few bits is the norm's, gathered or not.
    """
    if OFFLOAD in modules:
        return ~of_loss(w)
    begin = tuple(start for module in modules for start in _MODULES.get(module, ()))
    rows = np.array([name.startswith(begin) for name in w.names], dtype=np.bool_)
    if "layernorm" in modules:
        norms = rows | (w.ops.kind == OP_CODE["all_gather"])
        read = w.edges[1, norms[w.edges[0]]]
        rows[[row for row in read.tolist() if w.names[row].endswith(QUANTISED)]] = True
    return rows | of_scores(w) if "core_attn" in modules else rows


def of_loss(w: Workload) -> Bools:
    """Return True for the rows of the loss over the vocabulary, bool [n]."""
    return np.array([name.startswith(_LOSS) for name in w.names], dtype=np.bool_)


def unfused(w: Workload, run: Run) -> Bools:
    """Return True for rows that PyTorch's own kernels run one by one, bool [n]; those of a loss are fused."""
    if run.fused or run.release.fuses_training:
        return np.zeros(len(w), dtype=np.bool_)
    return ~of_loss(w)


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


# Operators without a producer in their block that do not read its input, but tables, masks or buffers.
_OWN_INPUT = np.flatnonzero([op.own_input for op in OPS])
_FLAT = np.flatnonzero([op.traffic == "streams" and op.rereads is None for op in OPS])
_TIED = np.flatnonzero([op.tied for op in OPS])


class Operands(NamedTuple):
    """Inputs and consumers of every row, [n] each.

    producers, consumers  number of rows of its block that feed it, and that it feeds
    from_outside          True if it reads the block's input
    learning              True if its output has a gradient: it has weights, or its input has a gradient
    fed                   True if its input has a gradient
    """

    producers: Ints
    consumers: Ints
    from_outside: Bools
    learning: Bools
    fed: Bools


def operands(w: Workload) -> Operands:
    """Return the operands of every row, from the edges.

    A block's input has no edge within the block. It is read by rows without a producer there, and by an addition with
    one producer (a residual), unless a softmax follows directly or behind an element-wise row: that adds a mask.
    """
    return Operands(*fed_by(w), *_gradients(w))


def fed_by(w: Workload) -> tuple[Ints, Ints, Bools]:
    """Return `producers`, `consumers` and `from_outside` of `operands`."""
    n = len(w)
    edges = w.edges[:, w.block[w.edges[0]] == w.block[w.edges[1]]]
    producers, consumers = np.bincount(edges[1], minlength=n), np.bincount(edges[0], minlength=n)
    masks = np.zeros(n, dtype=np.bool_)
    masks[edges[0, w.ops.kind[edges[1]] == OP_CODE["softmax"]]] = True
    masks[edges[0, (masks & np.isin(w.ops.kind, _FLAT))[edges[1]]]] = True
    first = (producers == 0) & ~np.isin(w.ops.kind, _OWN_INPUT)
    residual = (producers == 1) & (w.ops.kind == OP_CODE["add"]) & ~masks
    return producers, consumers, (first | residual) & (w.phase == FORWARD)


def _gradients(w: Workload) -> tuple[Bools, Bools]:
    """Return `learning` and `fed`. The input of every block but the first has a gradient; an unread output has none."""
    fed = (w.block > 0) & same_in_all(w.output_bytes > 0)
    # Tied embedding tables have their parameters at another row.
    learning = fed | same_in_all(w.parameters > 0) | np.isin(w.ops.kind, _TIED)
    for producer, consumer in w.edges[:, np.argsort(w.edges[1], kind="stable")].T.tolist():
        if learning[producer]:
            fed[consumer] = learning[consumer] = True
    return learning, fed
