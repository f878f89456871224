"""Fields of the form of a served model, and its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import get_args

from app.dashboard.field import Field, choice, number
from app.services.models.network_kinds import networks_by_kind
from app.wire.network_form import KvDtype, NetworkDtype

SERVING = "serving"
# Networks of the built-in ones that generate no tokens as decoders do, of those that generate some.
_NO_DECODERS = ("flan", "t5", "switch")
LOADS = {"rate_per_s": "requests/s", "concurrency": "in flight"}
EXAMPLE: Mapping[str, str] = {
    "name": "llama-3.1-70b",
    "dtype": "fp8",
    "tensor": "4",
    "software": "vllm",
    "input_tokens": "2048",
    "output_tokens": "512",
    "load": "rate_per_s",
    "level": "4",
}
# What a workload needs besides its model.
_NEEDED = ("software", "input_tokens", "output_tokens", "load")
_LEVELS = {"concurrency": "64", "rate_per_s": "4"}


def serving_fields(values: Mapping[str, str]) -> tuple[Field, ...]:
    """Return the fields; the typed kind of load decides what its number is."""
    load = values.get("load", "")
    load = load if load in LOADS else "rate_per_s"
    return (*_MODEL, number("level", "How many", "load", load), *_MORE)


def completed(typed: Mapping[str, str]) -> Mapping[str, str]:
    """Return a typed workload with what it needs besides: a model, lengths and a load."""
    if not {"name", "config"} & typed.keys():
        typed = {**EXAMPLE, **typed}
    needed = {name: EXAMPLE[name] for name in _NEEDED if name not in typed}
    load = {**needed, **typed}["load"]
    return {"level": _LEVELS.get(load, "4"), **needed, **typed}


def _split(name: str, label: str, help_: str = "", *, more: bool = True) -> Field:
    return number(name, label, "parallelism", name, help=help_, more=more)


_DECODERS = {
    kind: tuple(name for name in names if not name.startswith(_NO_DECODERS))
    for kind, names in networks_by_kind().items()
    if "decode" in kind.modes
}
_MODEL = (
    choice("name", "Model", tuple(chain(*_DECODERS.values())), networks=_DECODERS),
    Field("config", "or its config.json", "json", ("config",), "as Hugging Face has it, in place of a model's name"),
    choice("dtype", "Weights", get_args(NetworkDtype), help="empty: as published"),
    choice("software", "Serving stack", ("vllm", "sglang", "trtllm"), labels={"trtllm": "TensorRT-LLM"}),
    _split("tensor", "GPUs per replica", "tensor parallel; empty: as many as the load needs, up to 8", more=False),
    _split("replicas", "Replicas", "engines beside one another", more=False),
    number("input_tokens", "Input tokens", help="of a prompt"),
    number("output_tokens", "Output tokens", help="of an answer"),
    Field("load", "Load", "choice", (), choices=tuple(LOADS), labels=LOADS, required=True),
)
_MORE = (
    choice("kv_dtype", "KV cache", get_args(KvDtype), help="empty: as the stack's default", more=True),
    _split("expert", "Expert-parallel GPUs", "of mixtures of experts"),
    _split("attention_data", "Replicas of attention", "data-parallel attention within a replica"),
    _split("pipeline", "Pipeline stages"),
    _split("nodes", "Machines"),
    number("length_spread", "Spread of lengths", help="uniform in 1 - spread to 1 of the tokens above", more=True),
    number("prefix_hit", "Prefix hits", help="share of a prompt that is cached, 0 to 1", more=True),
    number("max_batched_tokens", "Tokens of a step", help="at most; empty: the stack's default", more=True),
    number("max_sequences", "Sequences", help="at once, at most; empty: the stack's default", more=True),
    number(
        "prefill_wait_steps", "Wait of prompts", help="decode steps, for other prompts; empty: the default", more=True
    ),
    number("memory_share", "Memory share", help="of weights and KV cache, 0 to 1", more=True),
    number(
        "pool", "Replicas for prompts", "prefill_pool", "replicas", help="engines of their own; empty: none", more=True
    ),
    number(
        "pool_tensor",
        "GPUs of each of these",
        "prefill_pool",
        "parallelism",
        "tensor",
        help="tensor parallel",
        more=True,
    ),
    number("tokens", "Drafted tokens", "speculative", "tokens", help="speculative decoding, in a step", more=True),
    number("acceptance", "Acceptance", "speculative", "acceptance", help="of a drafted token, 0 to 1", more=True),
)
