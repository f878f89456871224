"""The workload form of a page: controls derived from the request structs, what is typed into them, examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from math import isfinite
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct
from msgspec.structs import fields as struct_fields

from app.errors import BadInput, FieldError, Malformed
from app.services.models.network_kinds import NetworkKind, networks_by_kind
from app.services.models.resolve_networks import network_names
from app.stacks.registry import serving_stacks
from app.wire.decoding import decode_plain
from app.wire.graph_form import GraphWorkload
from app.wire.kernel_workload import KERNEL_EXAMPLE, KernelWorkload
from app.wire.network_form import ModelWorkload
from app.wire.operator_forms import FORMS
from app.wire.serving_form import DEFAULT_SOFTWARE, ServingWorkload

Widget = Literal["number", "text", "choice", "check", "json", "pairs"]
Path = tuple[str | int, ...]

SERVING = "serving"
KINDS: Mapping[str, str] = {
    "model": "Model",
    "operators": "Operator",
    "kernel": "CUDA kernel",
    "graph": "Graph or ONNX",
}
# Longer addresses are refused by proxies; the API takes more in a body.
MOST_TYPED = 24_000


@dataclass(frozen=True, slots=True)
class FormField:
    """One control: its name in the query string, its label, and its place in the request's workload.

    Controls: `number`, `text`, `choice` of `choices`, `check` (true or absent), `json`, and `pairs`, lines of a name
    and a number. `more` fields are collapsed at first. `labels`: choices in plain words. A field without a path is not
    sent: it decides the path of another one. `networks`: the built-in networks by kind, where they are the choices.
    """

    name: str
    label: str
    control: Widget
    path: Path
    help: str = ""
    choices: tuple[str, ...] = ()
    required: bool = False
    more: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    networks: Mapping[NetworkKind, tuple[str, ...]] = field(default_factory=dict)


def _form(workload: type[Struct], controls: str, **changes: Mapping[str, Any]) -> tuple[FormField, ...]:
    """Return controls of a struct's fields: dotted paths, `path=name` for another name, `+` before collapsed ones.

    `changes` replaces attributes of controls, by name: what the page says in other words than the struct.
    """
    fields = [_control(workload, item) for item in controls.split()]
    return tuple(replace(control, **changes.get(control.name, {})) for control in fields)


def _control(workload: type[Struct], item: str) -> FormField:
    """Return the control of a field: title, meaning and choices are those of its struct."""
    place, _, name = item.removeprefix("+").partition("=")
    struct, path = workload, tuple(place.split("."))
    for part in path[:-1]:
        (struct,) = (kind for kind in _kinds(_hints(struct)[part]) if hasattr(kind, "__struct_fields__"))
    hint = _hints(struct)[path[-1]]
    kinds = list(_kinds(hint))
    described = [meta for meta in _metas(hint) if meta.description]
    title = next((meta.title for meta in described if meta.title), path[-1].replace("_", " ").capitalize())
    choices = tuple(kind for kind in kinds if isinstance(kind, str))
    required = next(item.required for item in struct_fields(struct) if item.name == path[-1])
    help_ = described[0].description or "" if described else ""
    return FormField(
        name or path[-1], title, _control_of(kinds), path, help_, choices, required, more=item.startswith("+")
    )


def _control_of(kinds: Sequence[Any]) -> Widget:
    """Return the control for values of these types; strings stand for the choices of a literal."""
    if bool in kinds:
        return "check"
    if any(isinstance(kind, str) for kind in kinds):
        return "choice"
    if str in kinds:
        return "text"
    containers = {get_origin(kind) for kind in kinds}
    if list in containers or (dict in containers and dict[str, Any] not in kinds):
        return "pairs"
    return "json" if dict in containers else "number"


@cache
def _hints(struct: type[Struct]) -> dict[str, Any]:
    return get_type_hints(struct, include_extras=True)


def _kinds(hint: Any) -> Iterator[Any]:
    """Yield the types of a field without None, and each value of a literal in its order."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from _kinds(parts[0])
    elif origin in (Union, UnionType):
        yield from chain.from_iterable(map(_kinds, parts))
    elif origin is Literal:
        yield from parts
    elif hint is not type(None):
        yield hint


def _metas(hint: Any) -> Iterator[Meta]:
    if get_origin(hint) is Annotated:
        inner, *metas = get_args(hint)
        yield from (meta for meta in reversed(metas) if isinstance(meta, Meta))
        yield from _metas(inner)
    elif get_origin(hint) in (Union, UnionType):
        yield from chain.from_iterable(map(_metas, get_args(hint)))


_MODES = {
    "inference": "Inference: a forward pass",
    "training": "Training: a step",
    "prefill": "Prefill: reads the prompt",
    "decode": "Decode: writes a token",
}
_CONFIG, _MODE = {"label": "or its config.json"}, {"labels": _MODES, "help": ""}
_RUNNING = (
    "+optimizer +software +host +fused +memory_format +recompute +gradient_accumulation +dataset_size +parallelism.data"
    " +parallelism.tensor +parallelism.pipeline +parallelism.virtual_pipeline +parallelism.context +parallelism.expert"
    " +parallelism.microbatches +parallelism.nodes +parallelism.zero"
)
MODEL_FIELDS = _form(
    ModelWorkload,
    "name config mode batch sequence +image_size +image_width +frames +part dtype +output_tokens +attention"
    f" +input_copy {_RUNNING}",
    name={"control": "choice", "choices": network_names(), "networks": networks_by_kind(), "help": ""},
    config=_CONFIG,
    mode=_MODE,
)
GRAPH_FIELDS = _form(
    GraphWorkload,
    f"graph_id mode batch sequence dtype +dims {_RUNNING}",
    graph_id={"required": True, "help": "returned by POST /graphs; set by uploading a file"},
    mode=_MODE,
    dims={"help": "one per line: name size"},
)
KERNEL_FIELDS = _form(
    KernelWorkload,
    "name flops bytes working_set_bytes threads_per_block blocks registers_per_thread shared_memory_per_block"
    " access_pattern dtype measured +size.n +size.rows +size.cols +size.iterations +lane_operations +atomic_operations"
    " +atomic_addresses +branch_divergence +stride_bytes +bank_conflict_ways",
    measured={"help": "one per line: GPU milliseconds. Narrows the interval"},
)
# Networks of the built-in ones that generate no tokens as decoders do, of those that generate some.
_NO_DECODERS = ("flan", "t5", "switch")
_DECODERS = {
    kind: tuple(name for name in names if not name.startswith(_NO_DECODERS))
    for kind, names in networks_by_kind().items()
    if "decode" in kind.modes
}
USERS = "users"  # of whom each sends a request every so many seconds
LOADS = {"rate_per_s": "requests/s", USERS: "users", "concurrency": "in flight"}
_STACKS = {stack.name: stack.title for stack in serving_stacks()}
_SERVED = _form(
    ServingWorkload,
    "name config dtype software parallelism.tensor parallelism.replicas input_tokens output_tokens",
    name={"control": "choice", "choices": tuple(chain(*_DECODERS.values())), "networks": _DECODERS, "help": ""},
    config=_CONFIG,
    software={"control": "choice", "choices": (*_STACKS,), "labels": _STACKS, "help": ""},
    tensor={"help": "tensor parallel; empty: splits and replicas are searched"},
    input_tokens={"help": "the most of a prompt"},
    output_tokens={"help": "the most of an answer"},
)
_SERVED_MORE = _form(
    ServingWorkload,
    "+kv_dtype +parallelism.expert +parallelism.attention_data +parallelism.pipeline +parallelism.nodes +length_spread"
    " +prefix_hit +max_batched_tokens +max_sequences +prefill_wait_steps +memory_share +prefill_pool.replicas=pool"
    " +prefill_pool.parallelism.tensor=pool_tensor +speculative.tokens +speculative.acceptance",
    pool={"label": "Replicas for prompts"},
    pool_tensor={"label": "GPUs of each of these"},
    tokens={"required": False},
    acceptance={"required": False},
)
# How a model is split and replicated: what a plan searches.
SPLIT = frozenset(("tensor", "replicas", "expert", "attention_data", "pipeline", "nodes", "pool", "pool_tensor"))
_LOAD = FormField("load", "Load", "choice", (), choices=tuple(LOADS), labels=LOADS, required=True)
# What a served workload needs besides its model, and the first load of each kind.
_NEEDED = {"software": DEFAULT_SOFTWARE, "input_tokens": "2048", "output_tokens": "512", "load": "rate_per_s"}
_LEVELS = {"concurrency": "64", "rate_per_s": "4", USERS: "240"}
SERVED_EXAMPLE: Mapping[str, str] = {
    "name": "llama-3.1-70b", "dtype": "fp8", **_NEEDED, "level": _LEVELS["rate_per_s"],
}  # fmt: skip


def _served_fields(load: str) -> tuple[FormField, ...]:
    """Return the fields of a served model; the kind of load decides what its number is."""
    level = FormField("level", "How many", "number", ("load", "concurrency" if load == "concurrency" else "rate_per_s"))
    return (*_SERVED, _LOAD, level, *_SERVED_MORE)


def _operator_fields(op: str) -> tuple[FormField, ...]:
    row: Path = ("operators", 0)
    which = FormField("op", "Operator", "choice", (*row, "op"), choices=tuple(FORMS), required=True)
    if op not in FORMS:
        return (which,)
    fields = [which]
    for item in FORMS[op].fields:
        control: Widget = "choice" if item.words else "text" if item.number is not None or item.dim.pair else "number"
        label = item.name.replace("_", " ").capitalize() if len(item.name) > 1 else item.name
        place, folded = (*row, item.name), not item.required and item.name != "count"
        help_ = item.help.replace("backward: ", "")
        fields.append(FormField(item.name, label, control, place, help_, item.words, item.required, folded))
    fields.append(FormField("dtype", "Number format", "choice", (*row, "dtype"), choices=FORMS[op].op.dtypes))
    return tuple(fields)


def fields_of(kind: str, values: Mapping[str, str]) -> tuple[FormField, ...]:
    """Return the form of a kind of workload; typed `values` decide the operator, and the kind of load."""
    if kind == "operators":
        return _operator_fields(values.get("op", ""))
    if kind == SERVING:
        return _served_fields(values.get("load", ""))
    return {"model": MODEL_FIELDS, "graph": GRAPH_FIELDS, "kernel": KERNEL_FIELDS}[kind]


# Every name of a control in any of the forms.
NAMES = frozenset(
    {field.name for fields in (MODEL_FIELDS, GRAPH_FIELDS, KERNEL_FIELDS, _served_fields("")) for field in fields}
    | {item.name for form in FORMS.values() for item in form.fields}
    | {"op"}
)


def filled(kind: str, typed: Mapping[str, str]) -> Mapping[str, str]:
    """Return what was typed of a workload, or an example; of a served model with what it needs besides."""
    if kind == SERVING:
        if not {"name", "config"} & typed.keys():
            typed = {**SERVED_EXAMPLE, **typed}
        needed = {name: value for name, value in _NEEDED.items() if name not in typed}
        return {"level": _LEVELS.get({**needed, **typed}["load"], "4"), **needed, **typed}
    return typed if typed.keys() - {"op"} else example(kind, typed.get("op", ""))


def example(kind: str, op: str) -> dict[str, str]:
    """Return a valid workload as typed text."""
    if kind == "operators":
        op = op or "linear"
        form = FORMS.get(op)
        sizes = {} if form is None else {item.name: item for item in form.fields if item.required}
        known = {} if form is None else form.op.example
        row = {name: f"{known.get(name, item.dim.least):.15g}" for name, item in sizes.items()}
        return {"op": op, **row, "dtype": "bf16"}
    if kind == "kernel":
        return {item.name: text for item in KERNEL_FIELDS if (text := _text_of(item, KERNEL_EXAMPLE))}
    if kind == "graph":
        return {"batch": "1", "mode": "inference"}
    return {"name": "llama-3-8b", "mode": "prefill", "batch": "1", "sequence": "2048", "dtype": "bf16"}


def _text_of(control: FormField, workload: Mapping[str, Any]) -> str:
    """Return the typed text of a control for a workload of the API; an empty string where it has no value."""
    value: Any = workload
    for part in control.path:
        value = value.get(part) if isinstance(value, Mapping) else None
    if control.control == "pairs" and value:
        return "\n".join(f"{row['gpu']} {row['latency_ms']}" for row in value)
    return value if isinstance(value, str) else json.dumps(value) if value else ""


_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def put(workload: dict[str, Any], path: Path, value: Any) -> None:
    """Set the value at its path, creating objects and lists on the way."""
    if path[0] == "operators":
        workload.setdefault("operators", [{}])[0][path[2]] = value
        return
    for name in path[:-1]:
        workload = workload.setdefault(str(name), {})
    workload[str(path[-1])] = value


def value_of(field: FormField, text: str) -> Any:
    """Return the JSON value of a control. Raises BadInput for what no value can be read from."""
    if field.control == "number":
        return number_of(text)
    if field.control == "check":
        return True
    if field.control == "json":
        return json_of(field.name, ("workload", *field.path), text)
    if field.control == "pairs":
        pairs = pairs_of(("workload", *field.path), text)
        return [{"gpu": gpu, "latency_ms": ms} for gpu, ms in pairs.items()] if field.name == "measured" else pairs
    parts = [number_of(part) for part in text.strip("[]").split(",")]
    numbers = field.control == "text" and not any(isinstance(part, str) for part in parts)
    if numbers and field.path[0] == "operators":  # a size, or [height, width]
        return parts if len(parts) > 1 else parts[0]
    return text


def number_of(text: str) -> int | float | str:
    """Return the number as JSON; other text unchanged, for the API to refuse with a reason."""
    try:
        value = float(text)
    except ValueError:
        return text
    if not isfinite(value):
        return text
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def json_of(name: str, loc: Path, text: str) -> Any:
    """Return the value of JSON text. Raises BadInput that names the control."""
    try:
        return decode_plain(text.encode("utf-8", "surrogatepass"))
    except BadInput as error:
        message = f"not valid JSON: {(isinstance(error, Malformed) and error.reason) or error.detail.removesuffix('.')}"
        if name == "config" and _REPOSITORY.fullmatch(text):
            message = f"{text!r} is a name on Hugging Face: paste the text of its config.json"
        raise BadInput(message, errors=[FieldError(loc, message)]) from None


def pairs_of(loc: Path, text: str) -> dict[str, Any]:
    """Return the numbers of lines of a name and a number. Raises BadInput that names the line."""
    pairs: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, _, figure = line.strip().replace("\t", " ").rpartition(" ")
        value = number_of(figure)
        if not name or isinstance(value, str):
            plain = f"{name or figure} {_plain_number(figure) if name else '0.8'}".strip()
            message = f"line {number}: expected a name, a space and a number, such as {plain[:60]!r}, not {line[:60]!r}"
            raise BadInput(message, errors=[FieldError(loc, message)])
        pairs[name.strip()] = value
    return pairs


def _plain_number(figure: str) -> str:
    """Return the number in a figure with a currency, a unit or a decimal comma; an example where it has none."""
    plain = re.search(r"\d+(?:[.,]\d+)?", figure)
    return plain[0].replace(",", ".") if plain else "0.8"
