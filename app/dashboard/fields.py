"""Fields of the dashboard's workload form: labels, and places in an API request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from app.dashboard.field import Control, Field, choice, number
from app.dashboard.serving_fields import SERVING, completed, serving_fields
from app.graphs.run import MODES, Attention, DiffusionPart, InputCopy, MemoryFormat, Optimizer
from app.services.models.network_kinds import networks_by_kind
from app.services.models.resolve_networks import network_names
from app.wire.kernel_workload import KERNEL_EXAMPLE, AccessPattern, Dtype
from app.wire.operators.row_forms import FORMS

KINDS: Mapping[str, str] = {
    "model": "Model",
    "operators": "Operator",
    "kernel": "CUDA kernel",
    "graph": "Graph or ONNX",
}
# Longer addresses are refused by proxies; the API takes more in a body.
MOST_TYPED = 24_000


_DTYPES = get_args(Dtype)
_RUNNING = (
    choice("optimizer", "Optimizer", get_args(Optimizer), help="of training; none omits the update", more=True),
    Field("software", "Software stack", "text", ("software",), "pytorch-2.1 or vllm-0.24, for example", more=True),
    Field("fused", "Element-wise operators are fused", "check", ("fused",), more=True),
    choice("memory_format", "Layout of images", get_args(MemoryFormat), more=True),
    Field("recompute", "Activations are recomputed", "check", ("recompute",), more=True),
    number("gradient_accumulation", "Accumulated steps", more=True),
    number("dataset_size", "Samples in an epoch", more=True),
    number("data", "Data-parallel devices", "parallelism", "data", more=True),
    number("tensor", "Tensor-parallel devices", "parallelism", "tensor", more=True),
    number("pipeline", "Pipeline stages", "parallelism", "pipeline", more=True),
    number("virtual_pipeline", "Chunks of layers per stage", "parallelism", "virtual_pipeline", more=True),
    number("context", "Devices that share a sequence", "parallelism", "context", more=True),
    number("expert", "Expert-parallel devices", "parallelism", "expert", more=True),
    number("microbatches", "Microbatches", "parallelism", "microbatches", more=True),
    number("nodes", "Machines", "parallelism", "nodes", more=True),
    number("zero", "ZeRO stage", "parallelism", "zero", more=True),
)
_MODES = {
    "inference": "Inference: a forward pass",
    "training": "Training: a step",
    "prefill": "Prefill: reads the prompt",
    "decode": "Decode: writes a token",
}
MODEL_FIELDS = (
    choice("name", "Network", network_names(), networks=networks_by_kind()),
    Field("config", "or its config.json", "json", ("config",), "as Hugging Face has it, in place of a network's name"),
    choice("mode", "Mode", MODES, labels=_MODES),
    number("batch", "Batch", help="sequences or images, over all devices"),
    number("sequence", "Context length", help="tokens of the prompt or text; in decode all so far"),
    number("image_size", "Image side, pixels", help="of networks for images; a frame's height", more=True),
    number("image_width", "Frame's width, pixels", help="of diffusion transformers", more=True),
    number("frames", "Frames", help="of diffusion transformers for videos", more=True),
    choice("part", "Part of a diffusion model", get_args(DiffusionPart), more=True),
    choice("dtype", "Number format", _DTYPES),
    number("output_tokens", "Output tokens", help="adds serving figures", more=True),
    choice("attention", "Attention", get_args(Attention), more=True),
    choice("input_copy", "Input copied from host memory", get_args(InputCopy), more=True),
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
    choice("mode", "Mode", ("inference", "training"), labels=_MODES),
    number("batch", "Batch"),
    number("sequence", "Context length", help="tokens"),
    choice("dtype", "Number format", _DTYPES, help="overrides the graph's own"),
    Field("dims", "Named dimensions", "pairs", ("dims",), "one per line: name size", more=True),
    *_RUNNING,
)
_COUNTS = {"atomic_operations": "Atomic operations", "atomic_addresses": "Addresses of atomics"}
KERNEL_FIELDS = (
    Field("name", "Kernel", "text", ("name",), "groups measurements of one kernel", required=True),
    number("flops", "FLOPs", help="of the whole launch", required=True),
    number("bytes", "Bytes moved", required=True),
    number("working_set_bytes", "Distinct bytes", required=True),
    number("threads_per_block", "Threads in a block", required=True),
    number("blocks", "Blocks", required=True),
    number("registers_per_thread", "Registers in a thread", required=True),
    number("shared_memory_per_block", "Shared bytes in a block", required=True),
    choice("access_pattern", "Access pattern", get_args(AccessPattern), required=True),
    choice("dtype", "Number format", _DTYPES, required=True),
    Field("measured", "Measured on", "pairs", ("measured",), "one per line: GPU milliseconds. Narrows the interval"),
    number("n", "Size n", "size", "n", more=True),
    number("rows", "Rows", "size", "rows", more=True),
    number("cols", "Columns", "size", "cols", more=True),
    number("iterations", "Iterations", "size", "iterations", more=True),
    number("lane_operations", "Operations of lanes", help="loads, stores, atomics and loop steps", more=True),
    *(number(name, label, more=True) for name, label in _COUNTS.items()),
    number("branch_divergence", "Divergence", help="0 none to 1 every branch", more=True),
    number("stride_bytes", "Stride, bytes", more=True),
    number("bank_conflict_ways", "Ways of bank conflicts", more=True),
)


# Every name of a control in any of the forms.
NAMES = frozenset(
    {field.name for fields in (MODEL_FIELDS, GRAPH_FIELDS, KERNEL_FIELDS, serving_fields({})) for field in fields}
    | {item.name for form in FORMS.values() for item in form.fields}
    | {"op"}
)


def fields_of(kind: str, values: Mapping[str, str]) -> tuple[Field, ...]:
    """Return the form of a kind of workload; typed `values` decide the operator, and the kind of load."""
    if kind == "operators":
        return _operator_fields(values.get("op", ""))
    if kind == SERVING:
        return serving_fields(values)
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


def filled(kind: str, typed: Mapping[str, str]) -> Mapping[str, str]:
    """Return what was typed of a workload, or an example; of a served model with what it needs besides."""
    if kind == SERVING:
        return completed(typed)
    return typed if typed.keys() - {"op"} else example(kind, typed.get("op", ""))


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
