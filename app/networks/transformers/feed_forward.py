"""Rows of a feed-forward part or a mixture of experts.

Tensor parallelism is Megatron's: inner features are split over devices. Experts are split over `expert` groups: first
over data-parallel replicas, which exchange tokens by two all-to-alls (GShard, Lepikhin et al. 2020), then over tensor
ranks, which hold the same tokens anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from app.coefficients import Coefficients
from app.networks.roles import EXPERTS
from app.networks.run import spanned
from app.networks.transformers.architecture import Experts, FeedForward
from app.networks.transformers.row_writer import ACTIVATIONS, Flow, RowWriter
from app.ops.collective import LOW_LATENCY, NCCL, NORMAL
from app.ops.experts import BALANCED, BY_GROUPS, GELU, OTHER, PLAIN, SILU, UNGATED
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, WEIGHT_DTYPES

_FITTED = Coefficients("networks")

# Exponent of the power law by which tokens of served requests spread over experts.
SERVED_LOAD = _FITTED.number("served_load_exponent")
# Format in which tokens are sent to experts of these formats, with which they are multiplied; the others' own.
_DISPATCHED = dict.fromkeys(("fp8", "fp8_block", "nvfp4", "w4a8_mxfp4_mxfp8"), "fp8")
# Bytes per element by which the bias of experts' outputs is weighed and added in FP32, in a pass.
_BIAS_BYTES = _FITTED.number("expert_bias_bytes")
# Bytes per inner feature by which the operands of a gate are clamped, in a pass.
_CLAMP_BYTES = _FITTED.number("expert_clamp_bytes")
_GATE_OF = {"silu": SILU, "swish": SILU} | {name: GELU for name in ACTIVATIONS if name.startswith("gelu")}


def feed_forward(
    rows: RowWriter, x: Flow, spec: FeedForward | Experts, sequences: float, tokens: float, width: float
) -> Flow:
    """Add a feed-forward part of `tokens`, from `width` features and back, and return its output rows."""
    x = rows.gathered(x, tokens, width)
    if isinstance(spec, FeedForward):
        y = dense(rows, x, spec, tokens, width, "mlp", rows.tensor)
    elif rows.run.mode == "training" and not spec.capacity:
        y = _mixture(rows, x, spec, tokens, width, _trained)
    elif not spec.capacity:
        y = _mixture(rows, x, spec, tokens, width, _grouped)
    else:
        y = _one_by_one(rows, x, spec, sequences, tokens, width)
    return rows.summed(y, tokens, width)


def dense(rows: RowWriter, x: Flow, spec: FeedForward, tokens: float, width: float, name: str, shards: int) -> Flow:
    """Add linear layers around an activation, inner features split over `shards` devices; return the output rows."""
    inner, bias = spec.inner / shards, spec.bias
    if not spec.gated:
        y = rows.linear(x, tokens, inner, width, f"{name}.up", bias=bias)
        y = rows.activation(y, tokens, inner, spec.activation, f"{name}.{spec.activation}")
    else:
        if spec.one_linear or rows.rules.merges_gate_up:
            gate = up = rows.linear(x, tokens, 2.0 * inner, width, f"{name}.gate_up", bias=bias)
        else:
            gate = rows.linear(x, tokens, inner, width, f"{name}.gate", bias=bias)
            up = rows.linear(x, tokens, inner, width, f"{name}.up", bias=bias)
        if rows.in_parts:
            gate = rows.activation(gate, tokens, inner, spec.activation, f"{name}.{spec.activation}")
        product = "gated_activation" if rows.rules.gates_in_activation else "mul"
        y = rows.each(product, (*dict.fromkeys((*gate, *up)),), tokens, inner, f"{name}.product")
    if spec.drops:
        y = rows.dropout(y, tokens, inner)
    return rows.linear(y, tokens, width, inner, f"{name}.down", bias=bias)


def _routed(rows: RowWriter, x: Flow, spec: Experts, tokens: float, width: float) -> Flow:
    """Add the router, which selects each token's experts and their weights, and return its rows."""
    bias = spec.count if spec.router_bias else 0
    held = width * spec.count + bias
    if spec.jitter and rows.run.mode == "training":
        x = rows.each("mul", x, tokens, width, "experts.jitter")
    y = rows.linear(x, tokens, spec.count, width, "experts.router", dtype=rows.dtype, parameters=held)
    if not rows.rules.routes_in_one:
        y = rows.each("softmax", y, tokens, spec.count, "experts.softmax")
    chosen = tokens * spec.top_k
    moved = tokens * spec.count * rows.size + chosen * (rows.size + 8.0)
    return rows.add("memory", y, outputs=chosen, name="experts.top_k", bytes=moved)


class _Deal(NamedTuple):
    """Placement of experts.

    replicas  data-parallel replicas that exchange tokens
    shards    devices that share an expert
    experts   experts per device
    pairs     pairs of token and expert that a device sends to the replicas, its share of the tensor-parallel group's
    """

    replicas: int
    shards: int
    experts: float
    pairs: float


def _dealt(rows: RowWriter, spec: Experts, tokens: float) -> _Deal:
    run = rows.run.parallelism
    replicas = run.expert_replicas
    shards = rows.tensor * replicas // run.expert
    return _Deal(replicas, shards, spec.count / run.expert, tokens * spec.top_k * replicas / run.expert)


def _gathered(rows: RowWriter, x: Flow, deal: _Deal, own: float, op: str) -> Flow:
    """Add the collective `op` of replicas that share each expert: it gathers their tokens, or sums their results.

    own  elements of a replica
    """
    return rows.add(
        op,
        x,
        outputs=own if op == "reduce_scatter" else own * deal.replicas,
        saved=0.0,
        name=f"experts.{op}",
        message_bytes=own * deal.replicas * rows.size,
        devices=deal.replicas,
        nodes=spanned(deal.replicas, rows.tensor, rows.run),
        implementation=NCCL,
    )


def _exchanged(rows: RowWriter, x: Flow, spec: Experts, deal: _Deal, tokens: float, width: float, op: str) -> Flow:
    """Add the exchange `op` that sends tokens to their experts' devices or back; none if replicas hold all experts."""
    run, whole = rows.run, spec.count % rows.run.parallelism.expert == 0
    if run.parallelism.expert < deal.replicas:
        return _gathered(rows, x, deal, tokens * width, "all_gather" if op == "expert_dispatch" else "reduce_scatter")
    if deal.replicas == 1 or not rows.rules.exchanges_by_expert or run.parallelism.nodes > 1 or not whole:
        return _swapped(rows, x, spec, deal, width)
    return rows.add(
        op,
        x,
        outputs=deal.pairs * width,
        saved=0.0,
        name=op,
        dtype=_DISPATCHED.get(rows.expert_dtype, rows.dtype) if op == "expert_dispatch" else rows.dtype,
        tokens=max(deal.pairs / spec.top_k, 1.0),
        hidden=width,
        top_k=spec.top_k,
        experts=spec.count,
        devices=run.parallelism.expert,
        mode=LOW_LATENCY if run.mode == "decode" else NORMAL,
    )


def _swapped(rows: RowWriter, x: Flow, spec: Experts, deal: _Deal, width: float) -> Flow:
    """Add the all-to-all that sends tokens to their experts' devices or back; none if replicas hold all experts.

    DeepEP's and HybridEP's kernels send a token to a machine once, but in decode once per expert (DeepEP, low latency).
    """
    if deal.replicas == 1:
        return x
    outputs, once = deal.pairs * width, rows.rules.exchanges_by_expert and rows.run.mode != "decode"
    nodes = spanned(deal.replicas, rows.tensor, rows.run)
    return rows.add(
        "all_to_all",
        x,
        outputs=outputs,
        saved=0.0,
        name="all_to_all",
        message_bytes=outputs * rows.size,
        devices=deal.replicas,
        nodes=nodes,
        spread=deal.replicas * rows.tensor,
        copies=spec.top_k if once else 1.0,
        reach=_machines(spec, nodes),
    )


def _machines(spec: Experts, nodes: float) -> float:
    """Return the machines on which a token's groups of experts are, each chosen as often as any other."""
    chosen = spec.of_groups / spec.groups
    reached: float = nodes * (1.0 - (1.0 - chosen) ** max(spec.groups / nodes, 1.0))
    return max(reached, 1.0)


_AddExperts: TypeAlias = Callable[[RowWriter, Flow, Experts, float, float], Flow]


def _mixture(rows: RowWriter, x: Flow, spec: Experts, tokens: float, width: float, routed: _AddExperts) -> Flow:
    """Add the routed experts by `routed`, then the shared expert, and return the output rows."""
    y = (*x, *_routed(rows, x, spec, tokens, width))
    spec = _with_shared(rows, spec)
    if spec.latent:
        y = rows.linear(y, tokens, spec.latent, width, "experts.down_to_latent")
    y = routed(rows, y, spec, tokens, spec.latent or width)
    if spec.latent:
        y = rows.linear(y, tokens, width, spec.latent, "experts.up_from_latent")
    if spec.shared is None:
        return y
    always = dense(rows, x, spec.shared, tokens, width, "shared", rows.tensor)
    if spec.shared_gate:
        gate = rows.linear(x, tokens, 1.0, width, "shared.gate_of_all", dtype=rows.dtype)
        always = rows.each("mul", (*always, *gate), tokens, width, "shared.weighted")
    return rows.each("add", (*y, *always), tokens, width, "experts.sum")


def _with_shared(rows: RowWriter, spec: Experts) -> Experts:
    """Return the experts with the shared one as one that all tokens choose, where the stack runs it so; else as given.

    It must be like the others, of the same format, not of four bits (FlashInfer's kernels lack it), and on each device.
    """
    shared, dtype = spec.shared, rows.expert_dtype
    alike = shared is not None and shared.inner == spec.each.inner and rows.format_of("shared.up") == dtype
    apart = spec.latent or spec.shared_gate or spec.top_k == 1 or rows.run.parallelism.expert > 1
    if (
        not rows.rules.merges_shared
        or not alike
        or apart
        or DTYPE_BYTES[DTYPE_CODE[dtype]] < 1.0
        or dtype in WEIGHT_DTYPES
    ):
        return spec
    return replace(spec, count=spec.count + 1, top_k=spec.top_k + 1, shared=None)


def _grouped(rows: RowWriter, x: Flow, spec: Experts, tokens: float, width: float) -> Flow:
    """Add the routed experts of `width` features between the exchanges of tokens, and return the output rows."""
    deal, each = _dealt(rows, spec, tokens), spec.each
    inner, matrices = each.inner / deal.shards, 3.0 if each.gated else 2.0
    biases = (matrices - 1.0) * inner + width if each.bias else 0.0
    y = _exchanged(rows, x, spec, deal, tokens, width, "expert_dispatch")
    y = rows.add(
        "moe",
        y,
        outputs=tokens * width,
        name="experts",
        dtype=rows.expert_dtype,
        parameters=deal.experts * (matrices * width * inner + biases),
        saved=deal.pairs * (width + matrices * inner),
        tokens=tokens * deal.replicas,
        hidden=width,
        intermediate=spec.each.inner,
        experts=spec.count,
        top_k=spec.top_k,
        tensor_parallel=deal.shards,
        expert_parallel=rows.run.parallelism.expert,
        gate=_GATE_OF.get(each.activation, OTHER) if each.gated else UNGATED,
        router=BY_GROUPS if spec.groups > 1 else PLAIN,
        distribution=SERVED_LOAD if rows.rules.spreads_unevenly else BALANCED,
    )
    return _exchanged(rows, y, spec, deal, tokens, width, "expert_combine")


def _trained(rows: RowWriter, x: Flow, spec: Experts, tokens: float, width: float) -> Flow:
    """Add the routed experts of training as products of each, on equally many tokens, and return the output rows.

    Tokens are permuted into the order of their experts before, and summed with their weights after (Megatron-LM;
    TransformerEngine's GroupedLinear runs a product per expert). Clamps of a gate's operands, and the bias of the
    outputs, which is weighed before it is added, are kernels of their own (Megatron-LM, weighted_bias_quick_geglu_impl
    and TEGroupedMLP._apply_bias).
    """
    deal, each = _dealt(rows, spec, tokens), spec.each
    experts, inner = deal.experts, each.inner / deal.shards
    taken = -(-tokens * deal.replicas * spec.top_k // spec.count)
    dtype = rows.expert_dtype
    sent = _swapped(rows, rows.each("copy", x, deal.pairs, width, f"{EXPERTS}.permute"), spec, deal, width)
    merged = each.one_linear or rows.rules.merges_gate_up
    ups = 1 if merged or not each.gated else 2
    wide = inner * (2.0 if each.gated and merged else 1.0)
    parts: Flow = ()
    for _ in range(ups):
        parts += rows.linear(sent, taken, wide, width, f"{EXPERTS}.up", bias=each.bias, dtype=dtype, count=experts)
    if each.clamped:
        held = experts * taken * inner
        moved = held * _CLAMP_BYTES
        # Saves nothing here: recipes recompute the activation where memory is short (recompute_modules: moe_act).
        parts = rows.add("memory", parts, outputs=2.0 * held, saved=0.0, name=f"{EXPERTS}.clamp", bytes=moved)
    if each.gated:
        y = rows.each("gated_activation", parts, experts * taken, inner, f"{EXPERTS}.activation")
    else:
        y = rows.activation(parts, experts * taken, inner, each.activation, f"{EXPERTS}.activation")
    y = rows.linear(y, taken, width, inner, f"{EXPERTS}.down", bias=each.bias, dtype=dtype, count=experts)
    if each.bias:
        elements = experts * taken * width
        moved = elements * _BIAS_BYTES
        y = rows.add("memory", y, outputs=elements, saved=0.0, name=f"{EXPERTS}.bias", bytes=moved)
    y = _swapped(rows, y, spec, deal, width)
    # Tokens are weighed with the activation, so nothing of them is saved here.
    return rows.add("mul", y, outputs=deal.pairs * width, saved=0.0, name=f"{EXPERTS}.unpermute", b=deal.pairs, h=width)


def _one_by_one(rows: RowWriter, x: Flow, spec: Experts, sequences: float, tokens: float, width: float) -> Flow:
    """Add experts of limited capacity, each as operators of its own on its tokens (Switch); return the output rows."""
    deal, each = _dealt(rows, spec, tokens), spec.each
    y = _routed(rows, x, spec, tokens, width)
    x = _swapped(rows, (*x, *y), spec, deal, width)
    if spec.capacity:  # each expert's tokens are numbered, and those over its capacity masked
        moved = 2.0 * tokens * spec.count * rows.size
        counted = rows.add("memory", y, outputs=tokens * spec.count, name="experts.cumsum", bytes=moved)
        y = rows.each("mul", (*y, *counted), tokens, spec.count, "experts.mask")
    even = -(-tokens * spec.top_k // spec.count)
    taken = deal.replicas * (min(even, spec.capacity * sequences) if spec.capacity else even)
    experts, inner, activation = deal.experts, each.inner / deal.shards, ACTIVATIONS[each.activation][1]
    x = rows.each("copy", x, taken, width, "experts.take", experts)
    x = rows.linear(x, taken, inner, width, "experts.up", bias=each.bias, count=experts)
    x = rows.each(activation, x, taken, inner, f"experts.{activation}", experts)
    if each.drops:
        x = rows.dropout(x, taken, inner, count=experts)
    x = rows.linear(x, taken, width, inner, "experts.down", bias=each.bias, count=experts)
    x = rows.each("copy", x, taken, width, "experts.put", experts)
    x = _swapped(rows, x, spec, deal, width)
    return rows.each("mul", (*x, *y), tokens, width, "experts.weighted")
