"""Fields of the dashboard's workload form: labels, and places in an API request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from app.graphs.run import MODES, Attention, Optimizer
from app.services.models.resolve_networks import network_names
from app.wire.kernel_workload import KERNEL_EXAMPLE, AccessPattern, Dtype
from app.wire.operators.row_forms import FORMS

Control = Literal["number", "text", "choice", "check", "json", "pairs"]

KINDS: Mapping[str, str] = {
    "model": "Model",
    "operators": "Operator",
    "kernel": "CUDA kernel",
    "graph": "Graph or ONNX",
}
# Longer addresses are refused by proxies; the API takes more in a body.
MOST_TYPED = 24_000


@dataclass(frozen=True, slots=True)
class Field:
    """One control: its name in the query string, its label, and its place in the request's workload.

    Controls: `number`, `text`, `choice` of `choices`, `check` (true or absent), `json`, and `pairs`, lines of a name
    and a number. `more` fields are collapsed at first.
    """

    name: str
    label: str
    control: Control
    path: tuple[str | int, ...]
    help: str = ""
    choices: tuple[str, ...] = ()
    required: bool = False
    more: bool = False


def _number(name: str, label: str, *path: str | int, **more: Any) -> Field:
    return Field(name, label, "number", path or (name,), **more)


def _choice(name: str, label: str, choices: tuple[str, ...], *path: str | int, **more: Any) -> Field:
    return Field(name, label, "choice", path or (name,), choices=choices, **more)


_DTYPES = get_args(Dtype)
_RUNNING = (
    _choice("optimizer", "Optimizer", get_args(Optimizer), help="of training; none omits the update", more=True),
    Field("software", "Software stack", "text", ("software",), "pytorch-2.1 or vllm-0.24, for example", more=True),
    Field("fused", "Element-wise operators are fused", "check", ("fused",), more=True),
    Field("recompute", "Activations are recomputed", "check", ("recompute",), more=True),
    _number("gradient_accumulation", "Accumulated steps", more=True),
    _number("dataset_size", "Samples in an epoch", more=True),
    _number("data", "Data-parallel devices", "parallelism", "data", more=True),
    _number("tensor", "Tensor-parallel devices", "parallelism", "tensor", more=True),
    _number("pipeline", "Pipeline stages", "parallelism", "pipeline", more=True),
    _number("virtual_pipeline", "Chunks of layers per stage", "parallelism", "virtual_pipeline", more=True),
    _number("context", "Devices that share a sequence", "parallelism", "context", more=True),
    _number("expert", "Expert-parallel devices", "parallelism", "expert", more=True),
    _number("microbatches", "Microbatches", "parallelism", "microbatches", more=True),
    _number("nodes", "Machines", "parallelism", "nodes", more=True),
    _number("zero", "ZeRO stage", "parallelism", "zero", more=True),
)
MODEL_FIELDS = (
    _choice("name", "Network", network_names(), help="built in; or paste a configuration below"),
    Field("config", "or its config.json", "json", ("config",), "as Hugging Face has it, in place of a network's name"),
    _choice("mode", "Mode", MODES),
    _number("batch", "Batch", help="sequences or images, over all devices"),
    _number("sequence", "Sequence, tokens", help="of transformers; in decode the context length"),
    _number("image_size", "Image side, pixels", help="of networks for images", more=True),
    _choice("dtype", "Number format", _DTYPES),
    _number("output_tokens", "Output tokens", help="adds serving figures", more=True),
    _choice("attention", "Attention", get_args(Attention), more=True),
    *_RUNNING,
)
GRAPH_FIELDS = (
    Field(
        "graph_id",
        "Graph id",
        "text",
        ("graph_id",),
        "returned by POST /graphs; set by uploading a file",
        required=True,
    ),
    _choice("mode", "Mode", ("inference", "training")),
    _number("batch", "Batch"),
    _number("sequence", "Sequence, tokens"),
    _choice("dtype", "Number format", _DTYPES, help="overrides the graph's own"),
    Field("dims", "Named dimensions", "pairs", ("dims",), "one per line: name size", more=True),
    *_RUNNING,
)
_COUNTS = {"atomic_operations": "Atomic operations", "atomic_addresses": "Addresses of atomics"}
KERNEL_FIELDS = (
    Field("name", "Kernel", "text", ("name",), "groups measurements of one kernel", required=True),
    _number("flops", "FLOPs", help="of the whole launch", required=True),
    _number("bytes", "Bytes moved", required=True),
    _number("working_set_bytes", "Distinct bytes", required=True),
    _number("threads_per_block", "Threads in a block", required=True),
    _number("blocks", "Blocks", required=True),
    _number("registers_per_thread", "Registers in a thread", required=True),
    _number("shared_memory_per_block", "Shared bytes in a block", required=True),
    _choice("access_pattern", "Access pattern", get_args(AccessPattern), required=True),
    _choice("dtype", "Number format", _DTYPES, required=True),
    Field("measured", "Measured on", "pairs", ("measured",), "one per line: GPU milliseconds. Narrows the interval"),
    _number("n", "Size n", "size", "n", more=True),
    _number("rows", "Rows", "size", "rows", more=True),
    _number("cols", "Columns", "size", "cols", more=True),
    _number("iterations", "Iterations", "size", "iterations", more=True),
    _number("lane_operations", "Operations of lanes", help="loads, stores, atomics and loop steps", more=True),
    *(_number(name, label, more=True) for name, label in _COUNTS.items()),
    _number("branch_divergence", "Divergence", help="0 none to 1 every branch", more=True),
    _number("stride_bytes", "Stride, bytes", more=True),
    _number("bank_conflict_ways", "Ways of bank conflicts", more=True),
)


def fields_of(kind: str, op: str) -> tuple[Field, ...]:
    """Return the form of a kind of workload, for operators that of `op`, which may be unknown."""
    if kind == "operators":
        return _operator_fields(op)
    return {"model": MODEL_FIELDS, "graph": GRAPH_FIELDS, "kernel": KERNEL_FIELDS}[kind]


def _operator_fields(op: str) -> tuple[Field, ...]:
    row: tuple[str | int, ...] = ("operators", 0)
    which = Field("op", "Operator", "choice", (*row, "op"), choices=tuple(FORMS), required=True)
    if op not in FORMS:
        return (which,)
    fields = [which]
    for item in FORMS[op].fields:
        control: Control = "choice" if item.words else "text" if item.number is not None or item.dim.pair else "number"
        label = item.name.replace("_", " ").capitalize() if len(item.name) > 1 else item.name
        place, folded = (*row, item.name), not item.required and item.name != "count"
        help_ = item.help.replace("backward: ", "")
        fields.append(Field(item.name, label, control, place, help_, item.words, item.required, folded))
    fields.append(Field("dtype", "Number format", "choice", (*row, "dtype"), choices=FORMS[op].op.dtypes))
    return tuple(fields)


def _example_row(op: str) -> dict[str, str]:
    """Return the required fields of an operator with their examples, or minima."""
    if op not in FORMS:
        return {}
    known = FORMS[op].op.example
    return {item.name: f"{known.get(item.name, item.dim.least):.15g}" for item in FORMS[op].fields if item.required}


def example(kind: str, op: str) -> dict[str, str]:
    """Return a valid workload as typed text."""
    if kind == "operators":
        op = op or "linear"
        return {"op": op, **_example_row(op), "dtype": "bf16"}
    if kind == "kernel":
        return _typed(KERNEL_EXAMPLE, KERNEL_FIELDS)
    if kind == "graph":
        return {"batch": "1", "mode": "inference"}
    return {"name": "llama-3-8b", "mode": "prefill", "batch": "1", "sequence": "2048", "dtype": "bf16"}


def _typed(workload: Mapping[str, Any], fields: tuple[Field, ...]) -> dict[str, str]:
    """Return a workload of the API as typed text of its form."""
    typed = {}
    for field in fields:
        value: Any = workload
        for part in field.path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if field.control == "pairs" and value:
            typed[field.name] = "\n".join(f"{row['gpu']} {row['latency_ms']}" for row in value)
        elif value:
            typed[field.name] = value if isinstance(value, str) else json.dumps(value)
    return typed
