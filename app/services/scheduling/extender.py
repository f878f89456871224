"""A Kubernetes scheduler extender: which nodes can run a pod's workload, and how good each is for it.

A pod says what it runs in annotations: WORKLOAD, the JSON of a workload as POST /predict takes it; perhaps DEADLINE,
the most milliseconds that one step may take, to be kept with PROBABILITY; perhaps RANK_BY, as POST /compare has it. A
node says its GPU in a label: one of GPU_LABELS, as device plugins and discovery set them. Pods without a workload go
anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from app.engine.gpu_rows import Snapshot
from app.errors import BadInput, FieldError, GpucastError, NotFound
from app.services.compare.compare import figure_of
from app.services.compare.request import read_compare
from app.services.compare.time_distribution import probability_within
from app.wire.compare_form import Compared, CompareRequest, CompareResponse
from app.wire.json_text import check_json_text
from app.wire.rankings import RANKINGS, RankBy

WORKLOAD, RANK_BY = "gpucast/workload", "gpucast/rank-by"
DEADLINE, PROBABILITY = "gpucast/deadline-ms", "gpucast/probability"
# The first that a node has counts.
GPU_LABELS = ("gpucast/gpu", "nvidia.com/gpu.product", "amd.com/gpu.product-name")
# As the kube-scheduler has it.
BEST_SCORE = 10
_SURE = 0.9

Compare = Callable[[Snapshot, CompareRequest], CompareResponse]


class _Metadata(Struct, frozen=True):
    name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Item(Struct, frozen=True):
    metadata: _Metadata = _Metadata()


class _Nodes(Struct, frozen=True):
    items: list[msgspec.Raw] | None = None


class Question(Struct, frozen=True):
    """What the kube-scheduler sends: a pod, and the nodes that it may go to, as they came and as they are read."""

    annotations: Mapping[str, str]
    raw: list[msgspec.Raw]
    nodes: list[_Metadata]


class HostPriority(Struct, rename="pascal", frozen=True):
    """How good a node is, 0 to BEST_SCORE."""

    host: str
    score: int


class FilterResult(Struct, rename="pascal", frozen=True):
    """The nodes that can run the pod, and why each other one cannot."""

    nodes: dict[str, Any]
    failed_nodes: dict[str, str]
    error: str = ""


def read_question(body: bytes) -> Question:
    """ExtenderArgs, whose keys are read in any case, as Go reads them; BadInput where it is none."""
    check_json_text(body)
    try:
        given = {key.lower(): value for key, value in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items()}
        pod = msgspec.json.decode(given.get("pod", b"{}"), type=_Item)
        raw = (msgspec.json.decode(given.get("nodes", b"null"), type=_Nodes | None) or _Nodes()).items or []
        nodes = [msgspec.json.decode(each, type=_Item).metadata for each in raw]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"expected the kube-scheduler's ExtenderArgs: {error}"
        raise BadInput(message, errors=[FieldError((), message)]) from None
    if not raw and "nodenames" in given:
        message = "names of nodes tell no GPU: set nodeCacheCapable to false"
        raise BadInput(message, errors=[FieldError(("NodeNames",), message)])
    return Question(pod.metadata.annotations or {}, raw, nodes)


def filtered(question: Question, snapshot: Snapshot, compare: Compare) -> FilterResult:
    """The nodes whose GPU can run the pod's workload, within its memory and deadline."""
    try:
        why = _refusals(question, snapshot, compare)
    except GpucastError as error:
        return FilterResult({"items": []}, {}, f"annotation {WORKLOAD}: {error.detail}")
    kept = [raw for raw, node in zip(question.raw, question.nodes, strict=True) if node.name not in why]
    return FilterResult({"items": kept}, why)


def prioritised(question: Question, snapshot: Snapshot, compare: Compare) -> list[HostPriority]:
    """Every node's score: in proportion to the best one's figure. 0 for a pod whose workload is not known."""
    gpu_of = _gpus(question.nodes, snapshot)
    try:
        rows = _compared(question, snapshot, compare, gpu_of)
    except GpucastError:
        rows = {}
    rank_by = cast(RankBy, question.annotations.get(RANK_BY, RANKINGS[0]))  # checked, where there are rows
    figures = {gpu: figure_of(row, rank_by)[0] for gpu, row in rows.items() if row.memory.fits}
    scores = _scores({gpu: figure for gpu, figure in figures.items() if figure}, more=rank_by == "throughput")
    return [HostPriority(node.name, scores.get(gpu_of.get(node.name, ""), 0)) for node in question.nodes]


def _scores(figures: Mapping[str, float], *, more: bool) -> dict[str, int]:
    """Per GPU, from its figure; `more` of it is better."""
    known = {gpu: 1.0 / figure if more else figure for gpu, figure in figures.items()}
    best = min(known.values(), default=0.0)
    return {gpu: round(BEST_SCORE * best / figure) for gpu, figure in known.items()}


def _refusals(question: Question, snapshot: Snapshot, compare: Compare) -> dict[str, str]:
    """Per node that cannot run the pod, why."""
    if WORKLOAD not in question.annotations:
        return {}
    gpu_of = _gpus(question.nodes, snapshot)
    allowed_ms = _number(question.annotations, DEADLINE, float("inf"))
    sure = _number(question.annotations, PROBABILITY, _SURE)
    rows = _compared(question, snapshot, compare, gpu_of)
    why = {}
    for node in question.nodes:
        gpu = gpu_of.get(node.name)
        if gpu is None:
            why[node.name] = _unnamed(node)
        elif gpu not in rows:
            why[node.name] = f"{gpu} cannot run this workload"
        elif words := _unfit(rows[gpu], allowed_ms, sure):
            why[node.name] = f"{gpu}: {words}"
    return why


def _unnamed(node: _Metadata) -> str:
    """Why a node's GPU is not known: parts of one (MIG) and shared ones are called otherwise than the whole."""
    for label in GPU_LABELS:
        if label in (node.labels or {}):
            return f"{label} says {(node.labels or {})[label]}: no GPU is called so here"
    return f"no label names a GPU: {', '.join(GPU_LABELS)}"


def _unfit(row: Compared, allowed_ms: float, sure: float) -> str:
    if not row.memory.fits:
        needed, has = (size / 2**30 for size in (row.memory.required_bytes, row.memory.capacity_bytes))
        return f"needs {needed:.3g} GiB of memory, has {has:.3g}"
    chance = probability_within(row.latency_ms, row.interval_ms, allowed_ms)
    if chance < sure:
        return f"takes {row.latency_ms:.4g} ms, within {allowed_ms:.4g} ms with a probability of {chance:.2g} only"
    return ""


def _number(annotations: Mapping[str, str], name: str, default: float) -> float:
    given = annotations.get(name)
    try:
        number = default if given is None else float(given)
    except ValueError:
        number = float("nan")
    if not number > 0:
        message = f"{name} must be a positive number, got {str(given)[:50]!r}"
        raise BadInput(message, errors=[FieldError(("Pod", "metadata", "annotations", name), message)])
    return number


def _gpus(nodes: Sequence[_Metadata], snapshot: Snapshot) -> dict[str, str]:
    """Per node the id of its GPU, where a label names one."""
    found = {}
    for node in nodes:
        labels = node.labels or {}
        name = next((labels[label] for label in GPU_LABELS if label in labels), None)
        if name is not None:
            try:
                found[node.name] = snapshot.engine.catalog.resolve(name).id
            except NotFound:
                continue
    return found


def _compared(
    question: Question, snapshot: Snapshot, compare: Compare, gpu_of: Mapping[str, str]
) -> dict[str, Compared]:
    """Each GPU of the nodes on the pod's workload, but those that cannot run it at all."""
    gpus, annotations = sorted(set(gpu_of.values())), question.annotations
    if WORKLOAD not in annotations or not gpus:
        return {}
    # The pod has said how it is split: no other ways are searched.
    fields = {"gpus": gpus, "rank_by": annotations.get(RANK_BY, RANKINGS[0]), "max_devices": 1}
    workload = msgspec.Raw(annotations[WORKLOAD].encode())
    try:
        rows = compare(snapshot, read_compare(msgspec.json.encode(fields | {"workload": workload}))).ranking
    except BadInput:
        if len(gpus) == 1:
            raise
        rows = []
        for gpu in gpus:  # one GPU that lacks the workload's dtype must not stop the others
            one = msgspec.json.encode(fields | {"gpus": [gpu], "workload": workload})
            try:
                rows += compare(snapshot, read_compare(one)).ranking
            except BadInput:
                continue
        if not rows:
            raise
    return {row.gpu: row for row in rows}


EXTENDER_EXAMPLE: dict[str, Any] = {
    "Pod": {
        "metadata": {
            "name": "finetune",
            "annotations": {
                WORKLOAD: '{"kind": "model", "name": "gpt2", "mode": "training", "batch": 8, "sequence": 1024}',
                DEADLINE: "2000",
            },
        }
    },
    "Nodes": {
        "items": [
            {"metadata": {"name": "node-1", "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}}},
            {"metadata": {"name": "node-2", "labels": {"nvidia.com/gpu.product": "NVIDIA-L4"}}},
        ]
    },
}
