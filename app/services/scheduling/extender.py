"""Kubernetes scheduler extender: which nodes can run a pod's workload, and how good each is for it.

A pod describes its workload in annotations: WORKLOAD, the JSON of a workload as in POST /predict; optionally DEADLINE,
the limit of one step in milliseconds, to be kept with PROBABILITY; optionally RANK_BY, as in POST /compare. A node has
its GPU in one of GPU_LABELS, as set by device plugins and discovery. Pods without a workload can run anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import msgspec
from msgspec import Struct

from app.bands.log_normal import probability_within
from app.engine.gpu_types import GPU_LABELS
from app.engine.snapshot import Snapshot
from app.errors import BadInput, FieldError, GpucastError, NotFound
from app.services.compare.compare import figure_of
from app.services.scheduling.comparison import Compare, compare_each, unfit
from app.wire.compare_form import RANKINGS, Compared, RankBy
from app.wire.field_facts import about
from app.wire.json_text import check_json_text

WORKLOAD, RANK_BY = "gpucast/workload", "gpucast/rank-by"
DEADLINE, PROBABILITY = "gpucast/deadline-ms", "gpucast/probability"
# The kube-scheduler's maximum.
BEST_SCORE = 10
_SURE = 0.9


class _Metadata(Struct, frozen=True):
    name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Item(Struct, frozen=True):
    metadata: _Metadata = _Metadata()


class _Nodes(Struct, frozen=True):
    items: list[msgspec.Raw] | None = None


class ExtenderArgs(Struct, frozen=True):
    """A request of the kube-scheduler: a pod, and its candidate nodes, raw and parsed."""

    annotations: Mapping[str, str]
    raw: list[msgspec.Raw]
    nodes: list[_Metadata]


class HostPriority(Struct, rename="pascal", frozen=True):
    """Score of a node, 0 to BEST_SCORE."""

    host: Annotated[str, about("Name of the node")]
    score: Annotated[int, about("0 to 10, in proportion to the best")]


class FilterResult(Struct, rename="pascal", frozen=True):
    """The nodes that can run the pod, and why the others cannot."""

    nodes: Annotated[dict[str, Any], about("Nodes that can run the pod")]
    failed_nodes: Annotated[dict[str, str], about("Per other node, why it cannot")]
    error: Annotated[str, about("Errors of the pod's annotations; empty: none")] = ""


def read_extender_args(body: bytes) -> ExtenderArgs:
    """Return the request from ExtenderArgs, with case-insensitive keys as in Go. Raises BadInput."""
    check_json_text(body)
    try:
        fields = {key.lower(): value for key, value in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items()}
        pod = msgspec.json.decode(fields.get("pod", b"{}"), type=_Item)
        raw = (msgspec.json.decode(fields.get("nodes", b"null"), type=_Nodes | None) or _Nodes()).items or []
        nodes = [msgspec.json.decode(each, type=_Item).metadata for each in raw]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"expected the kube-scheduler's ExtenderArgs: {error}"
        raise BadInput(message, errors=[FieldError((), message)]) from None
    if not raw and "nodenames" in fields:
        message = "node names do not identify GPUs: set nodeCacheCapable to false"
        raise BadInput(message, errors=[FieldError(("NodeNames",), message)])
    return ExtenderArgs(pod.metadata.annotations or {}, raw, nodes)


def filter_pod_nodes(question: ExtenderArgs, snapshot: Snapshot, compare: Compare) -> FilterResult:
    """Return the nodes whose GPU can run the pod's workload, within its memory and deadline."""
    try:
        reasons = _refusals(question, snapshot, compare)
    except GpucastError as error:
        return FilterResult({"items": []}, {}, f"annotation {WORKLOAD}: {error.detail}")
    kept = [raw for raw, node in zip(question.raw, question.nodes, strict=True) if node.name not in reasons]
    return FilterResult({"items": kept}, reasons)


def score_nodes(question: ExtenderArgs, snapshot: Snapshot, compare: Compare) -> list[HostPriority]:
    """Return every node's score, relative to the best figure; 0 if the pod's workload is unknown."""
    gpu_of = _gpus(question.nodes, snapshot)
    try:
        rows = _compare(question, snapshot, compare, gpu_of)
    except GpucastError:
        rows = {}
    rank_by = cast(RankBy, question.annotations.get(RANK_BY, RANKINGS[0]))  # validated when there are rows
    figures = {gpu: figure_of(row, rank_by)[0] for gpu, row in rows.items() if row.memory.fits}
    scores = _scores({gpu: figure for gpu, figure in figures.items() if figure}, more=rank_by == "throughput")
    return [HostPriority(node.name, scores.get(gpu_of.get(node.name, ""), 0)) for node in question.nodes]


def _scores(figures: Mapping[str, float], *, more: bool) -> dict[str, int]:
    """Return the scores by GPU; `more` means that larger figures are better."""
    known = {gpu: 1.0 / figure if more else figure for gpu, figure in figures.items()}
    best = min(known.values(), default=0.0)
    return {gpu: round(BEST_SCORE * best / figure) for gpu, figure in known.items()}


def _refusals(question: ExtenderArgs, snapshot: Snapshot, compare: Compare) -> dict[str, str]:
    """Return, per node that cannot run the pod, the reason."""
    if WORKLOAD not in question.annotations:
        return {}
    gpu_of = _gpus(question.nodes, snapshot)
    allowed_ms = _number(question.annotations, DEADLINE, float("inf"))
    probability = _number(question.annotations, PROBABILITY, _SURE)
    rows = _compare(question, snapshot, compare, gpu_of)
    reasons = {}
    for node in question.nodes:
        gpu = gpu_of.get(node.name)
        if gpu is None:
            reasons[node.name] = _unnamed(node)
        elif gpu not in rows:
            reasons[node.name] = f"{gpu} cannot run this workload"
        elif reason := _unfit(rows[gpu], allowed_ms, probability):
            reasons[node.name] = f"{gpu}: {reason}"
    return reasons


def _unnamed(node: _Metadata) -> str:
    """Return why a node's GPU is unknown; partitioned (MIG) and shared GPUs have names of their own."""
    for label in GPU_LABELS:
        if label in (node.labels or {}):
            return f"{label} is {(node.labels or {})[label]}, which is no known GPU"
    return f"no label names a GPU: {', '.join(GPU_LABELS)}"


def _unfit(row: Compared, allowed_ms: float, required: float) -> str:
    if reason := unfit(row):
        return reason
    probability = probability_within(row.latency_ms, row.interval_ms.band(row.latency_ms), allowed_ms)
    if probability < required:
        return f"takes {row.latency_ms:.4g} ms, within {allowed_ms:.4g} ms with a probability of only {probability:.2g}"
    return ""


def _number(annotations: Mapping[str, str], name: str, default: float) -> float:
    text = annotations.get(name)
    try:
        number = default if text is None else float(text)
    except ValueError:
        number = float("nan")
    if not number > 0:
        message = f"{name} must be a positive number, got {str(text)[:50]!r}"
        raise BadInput(message, errors=[FieldError(("Pod", "metadata", "annotations", name), message)])
    return number


def _gpus(nodes: Sequence[_Metadata], snapshot: Snapshot) -> dict[str, str]:
    """Return the id of each node's GPU, where a label names one."""
    gpus = {}
    for node in nodes:
        labels = node.labels or {}
        name = next((labels[label] for label in GPU_LABELS if label in labels), None)
        if name is not None:
            try:
                gpus[node.name] = snapshot.engine.catalog.resolve(name).id
            except NotFound:
                continue
    return gpus


def _compare(
    question: ExtenderArgs, snapshot: Snapshot, compare: Compare, gpu_of: Mapping[str, str]
) -> dict[str, Compared]:
    """Return the comparison of the nodes' GPUs on the pod's workload, without GPUs that cannot run it."""
    gpus, annotations = sorted(set(gpu_of.values())), question.annotations
    if WORKLOAD not in annotations or not gpus:
        return {}
    fields = {"rank_by": annotations.get(RANK_BY, RANKINGS[0]), "workload": msgspec.Raw(annotations[WORKLOAD].encode())}
    return compare_each(snapshot, compare, fields, gpus)[0]


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
