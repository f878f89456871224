"""Defaults of serving stacks: token budget, sequences, memory, and how they schedule, as a table with sources."""

from __future__ import annotations

from typing import NamedTuple

_GIB = 2.0**30


class Stack(NamedTuple):
    """How a serving stack schedules where nothing else is asked for.

    budget_tokens   most tokens of a step, on GPUs with less and with at least `large_bytes` of memory
    raises_budget   the budget is at least a whole prompt and a token of every other request
    sequences       most sequences at once
    mixes           prompts are computed beside decoding sequences, not in steps of their own that come first
    splits          prompts are computed in chunks that fill the budget, not whole
    memory_share    share of a GPU's memory for weights, activations, keys and values
    reserved        share of an output's keys and values that a sequence has on average or from its admission on
    patience        steps that prompts wait, where attention has replicas, until each replica has one; 0: none
    source          where this is written
    """

    budget_tokens: tuple[int, int]
    large_bytes: float
    raises_budget: bool
    sequences: tuple[int, int]
    mixes: bool
    splits: bool
    memory_share: float
    reserved: float
    patience: float
    source: str


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


STACKS = {
    "vllm": Stack(
        (2048, 8192),
        70.0 * _GIB,
        False,
        (256, 1024),
        True,
        True,
        0.9,
        0.5,
        0.0,
        "vllm engine/arg_utils.py EngineArgs.get_batch_defaults, gpu_memory_utilization; a full cache preempts, so a "
        "sequence holds half of its output on average",
    ),
    "sglang": Stack(
        (8192, 16384),
        60.0 * _GIB,
        False,
        (2048, 4096),
        False,
        True,
        0.88,
        0.7,
        0.0,
        "sglang srt/server_args.py chunked_prefill_size, mem_fraction_static; managers/schedule_policy.py "
        "init_new_token_ratio 0.7",
    ),
    "trtllm": Stack(
        (8192, 8192),
        0.0,
        True,
        (2048, 2048),
        True,
        False,
        0.9,
        1.0,
        50.0,
        "tensorrt_llm llmapi/llm_args.py max_num_tokens, max_batch_size, free_gpu_memory_fraction; capacity scheduler "
        "GUARANTEED_NO_EVICT; attention_dp_config timeout_iters 50",
    ),
}

_VLLM = HostTimes(38e-6, 9.9e-6, 20e-3, 0.0, 2.8e-6, 1.17)
# Fitted to InferenceX's closed loops. `gpucast evaluate serving --fit` fits them anew, and prints errors with
# deployments held out. SGLang's loads there are all of DeepSeek-R1: its own times are for latent attention alone. Other
# models have vLLM's (docs/explanation/notebook.md has Qwen3-32B, to which nothing is fitted).
HOST = {
    "vllm": _VLLM,
    "sglang": _VLLM,
    "sglang-latent": HostTimes(38e-6, 0.0, 79e-3, 14e-3, 0.0, 1.44),
    "trtllm": HostTimes(34e-6, 3.7e-6, 25e-3, 0.92e-3, 4.7e-6, 1.01, 77e-3),
}
