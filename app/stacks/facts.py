"""Facts of a stack's releases: their names, meanings and types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_type_hints

import msgspec


class HostWait(NamedTuple):
    """Seconds that the device waits for a serving engine's host: per step, and per sequence in it."""

    step_s: float
    sequence_s: float


# Hosts that launch eager operators, by how long a launch takes them.
Host = Literal["datacenter", "desktop", "old"]
# Links of a machine's devices that can be asked for in place of the best that they have.
Link = Literal["nvlink_bridge", "pcie"]

NO_WAIT = HostWait(0.0, 0.0)


class HostTimes(NamedTuple):
    """What the host of a serving stack takes, seconds.

    step_s, sequence_s      of every step, and of every sequence that decodes in it
    request_s               from a request's arrival until the engine has it, others aside
    serial_s, serial_token_s  of a request, and of a token of its prompt, for which other requests wait
    prefill                 factor on steps with prompts, which run outside of CUDA graphs
    latent_s                of a request to a model with latent attention, more than request_s
    """

    step_s: float = 0.0
    sequence_s: float = 0.0
    request_s: float = 0.0
    serial_s: float = 0.0
    serial_token_s: float = 0.0
    prefill: float = 1.0
    latent_s: float = 0.0


class Scheduler(NamedTuple):
    """How a serving stack schedules where the request gives nothing else.

    budget_tokens   most tokens of a step, on GPUs with less and with at least `large_bytes` of memory
    sequences       most sequences at once, on the same GPUs
    mixes           prompts are computed beside decoding sequences, not in steps of their own that come first
    splits          prompts are computed in chunks that fill the budget, not whole
    memory_share    share of a GPU's memory for weights, activations, keys and values
    reserved        share of an output's keys and values that a sequence has on average or from its admission on
    large_bytes     0: all GPUs are alike
    raises_budget   the budget is at least a whole prompt and a token of every other request
    patience        steps that prompts wait, where attention has replicas, until each replica has one; 0: none
    decode_steps    decode steps that the host schedules at once, a round
    recv_interval   rounds after which the engine looks for new requests
    """

    budget_tokens: tuple[int, int]
    sequences: tuple[int, int]
    mixes: bool
    splits: bool
    memory_share: float
    reserved: float
    large_bytes: float = 0.0
    raises_budget: bool = False
    patience: float = 0.0
    decode_steps: float = 1.0
    recv_interval: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerRules:
    """How a stack lowers a transformer layer: what it merges, fuses and sums how; nothing where PyTorch's kernels run.

    merges_qkv          query, key and value are one product
    merges_gate_up      gate and up projection are one product
    merges_latent_down  the down projections of latent attention are one product
    adds_in_norm        the residual sum is computed with the norm that follows
    gates_in_activation  the gate is multiplied within the activation
    rotates_into_cache  rotary positions and the store to the cache are one kernel
    routes_in_one       the router's scores and choice are one kernel
    spreads_unevenly    tokens load experts by a power law
    sums_itself         small all-reduces run kernels of its own
    norms_in_sum        the norm is computed with the all-reduce before it
    exchanges_by_expert  replicas of attention exchange tokens by expert (DeepEP)
    merges_shared       the shared expert runs as one of the routed ones
    gathers_again       backward gathers a sequence that tensor parallelism splits again, of which a share was saved
    tells_hybrids       attention's kernels are chosen by the kind of a hybrid model
    samples             a token is sampled at the end
    products_of         the stack as whose products those in FP8 and NVFP4 are timed; None: its own
    """

    merges_qkv: bool = False
    merges_gate_up: bool = False
    merges_latent_down: bool = False
    adds_in_norm: bool = False
    gates_in_activation: bool = False
    rotates_into_cache: bool = False
    routes_in_one: bool = False
    spreads_unevenly: bool = False
    sums_itself: bool = False
    norms_in_sum: bool = False
    exchanges_by_expert: bool = False
    merges_shared: bool = False
    gathers_again: bool = False
    tells_hybrids: bool = False
    samples: bool = False
    products_of: str | None = None


NO_RULES = LayerRules()

# Facts of a release itself: fields of Release (app.stacks.release), where their meanings are.
RELEASE_FACTS: Mapping[str, Any] = {
    "eager_host_s": float,
    "host_wait": HostWait,
    "stream_wait_s": float,
    "host_beside": HostWait,
    "ranks_s": float,
    "drift": float,
    "sums_by_library": bool,
    "waits_in_sums": bool,
    "early_launch": bool,
    "untuned_products": tuple[tuple[float, float], ...],
    "reads_by_head": bool,
    "product_tile": tuple[float, float],
    "first_flash": bool,
    "cudnn_attention": bool,
    "fuses_attention": bool,
    "multi_tensor": bool,
    "fuses_training": bool,
    "quantised_cache": str,
    "gradient_bucket": tuple[float, float],
    "gathers_beside_forward": bool,
    "recompute": Literal["none", "selective", "selective_op", "full"],
    "recompute_or": tuple[tuple[tuple[str, ...], float], ...],
    "selects_operators": bool,
    "zero": Literal[0, 1, 2, 3],
    "splits_sequence": bool,
    "copies_units": bool,
    "reduces_in_fp32": bool,
    "complex_rotary": bool,
    "fused_loss": bool,
    "trains_mtp": bool,
}
# Of a stack's kernels and of its host, whatever the version. Decoding heads that share no keys are masked multi-head
# attention (app.ops.attention_kernels); the stack whose products in FP8 by blocks are chosen where they are quicker;
# generations of GPUs on which experts in MXFP4 take activations in MXFP8 where nothing else is said; what its host
# takes, and in mixtures of experts, where that was fitted apart.
KERNEL_FACTS: Mapping[str, Any] = {
    "masked_decode": bool,
    "fp8_block_products_of": str,
    "mxfp8_activations": tuple[str, ...],
}
HOST_FACTS: Mapping[str, Any] = {"host_times": HostTimes, "mixture_host_times": HostTimes}
RULE_FACTS = frozenset(LayerRules.__dataclass_fields__)
SCHEDULER_FACTS = frozenset(Scheduler._fields)
FACT_TYPES: Mapping[str, Any] = {
    **get_type_hints(LayerRules),
    **get_type_hints(Scheduler),
    **RELEASE_FACTS,
    **KERNEL_FACTS,
    **HOST_FACTS,
}


def to_value(fact: str, raw: Any) -> Any:
    """Return the value of a fact as its type. Raises ValueError for an unknown fact or another type."""
    if fact not in FACT_TYPES:
        raise ValueError(f"unknown fact {fact!r}")
    if isinstance(raw, Mapping):
        return FACT_TYPES[fact](**raw)
    return msgspec.convert(raw, FACT_TYPES[fact])
