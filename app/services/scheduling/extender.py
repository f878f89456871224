"""Kubernetes scheduler extender: which nodes can run a pod's workload, and how good each is for it.

A pod describes its workload in annotations: WORKLOAD, the JSON of a workload as in POST /predict; optionally DEADLINE,
the limit of one step in milliseconds, to be kept with PROBABILITY; optionally RANK_BY, as in POST /compare. A node has
its GPU in one of GPU_LABELS, as set by device plugins and discovery. Pods without a workload can run anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, cast

import msgspec
from msgspec import Struct

from app.bands.band import probability_within, quantile
from app.engine.gpu_types import GPU_LABELS
from app.engine.snapshot import Snapshot
from app.errors import BadInput, FieldError, GpucastError, NotFound
from app.services.compare.compare import figure_of
from app.services.compare.request import read_compare
from app.services.compare.units import duration, unfit
from app.wire.compare_form import RANKINGS, Compared, CompareRequest, CompareResponse, RankBy
from app.wire.examples import EXAMPLES
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
    if reason := unfit(row.memory):
        return reason
    probability = probability_within(row.latency_ms, row.interval_ms.band(row.latency_ms), allowed_ms)
    if probability < required:
        return _too_slow(row.latency_ms, allowed_ms, probability)
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


EXTENDER_EXAMPLE: dict[str, Any] = EXAMPLES["extender"]


Compare = Callable[[Snapshot, CompareRequest], CompareResponse]


def compare_each(
    snapshot: Snapshot, compare: Compare, fields: Mapping[str, Any], gpus: Sequence[str]
) -> tuple[dict[str, Compared], dict[str, str]]:
    """Return the figures by GPU, and why the other GPUs cannot run the workload. Raises BadInput if none can.

    `fields` are those of POST /compare. The workload states its split over devices: no others are searched.
    """

    def rows(names: Sequence[str]) -> list[Compared]:
        body = msgspec.json.encode({**fields, "gpus": names, "max_devices": 1})
        return compare(snapshot, read_compare(body)).ranking

    try:
        return {row.gpu: row for row in rows(gpus)}, {}
    except BadInput:
        if len(gpus) == 1:
            raise
    figures: dict[str, Compared] = {}
    reasons: dict[str, str] = {}
    first: BadInput | None = None
    for gpu in gpus:  # a GPU without the workload's dtype must not affect the others
        try:
            figures |= {row.gpu: row for row in rows([gpu])}
        except BadInput as error:
            reasons[gpu], first = error.detail, first or error
    if not figures and first is not None:
        raise first
    return figures, reasons


@dataclass(frozen=True, slots=True)
class Job:
    """Runs of a workload, and the goal: `deadline_s`, to be kept with `probability`."""

    steps: float
    deadline_s: float = inf
    probability: float = 0.9


@dataclass(frozen=True, slots=True)
class JobTime:
    """Seconds of a job on one GPU type, and its cost; `missing` says why it misses the goal, empty if it does not.

    The time is `low_s` to `high_s` with the comparison's coverage; `limit_s` is kept with 95 %.
    """

    gpu: str
    devices: int
    job_s: float
    low_s: float
    high_s: float
    limit_s: float
    cost_usd: float | None
    missing: str

    @classmethod
    def of(cls, row: Compared, job: Job) -> JobTime:
        """Return the job's time from the figures of one step: the error of a prediction is the same in every step."""
        steps_s, interval = job.steps / 1e3, row.interval_ms
        limit_s = steps_s * quantile(row.latency_ms, interval.band(row.latency_ms), 0.95)
        cost = None if row.cost_usd is None else job.steps * row.cost_usd
        seconds = (steps_s * row.latency_ms, steps_s * interval.low, steps_s * interval.high)
        return cls(row.gpu, row.devices, *seconds, limit_s, cost, _missing(row, job))


def _missing(row: Compared, job: Job) -> str:
    if reason := unfit(row.memory):
        return reason
    allowed_ms = job.deadline_s / job.steps * 1e3
    likely = probability_within(row.latency_ms, row.interval_ms.band(row.latency_ms), allowed_ms)
    if likely >= job.probability:
        return ""
    return _too_slow(job.steps * row.latency_ms, 1e3 * job.deadline_s, likely)


def _too_slow(takes_ms: float, allowed_ms: float, probability: float) -> str:
    return f"takes {duration(takes_ms)}, within {duration(allowed_ms)} with a probability of only {probability:.2g}"
