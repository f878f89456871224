"""Kueue's resource flavours ranked by a job's predicted time on their GPU, and device selectors (DRA) of Kubernetes.

A flavour's GPU is that of its nodes' labels. Of a Job, the label MAX_EXEC_TIME ends a run that takes longer, and the
node affinity allows only flavours that meet the deadline: Kueue compares it with the flavours' `nodeLabels`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import Any, Literal, TypeAlias

from app.engine.gpu_types import CLOUD_LABELS, GPU_LABELS, gpu_of_type
from app.errors import BadInput, FieldError, NotFound
from app.services.compare.units import duration
from app.services.scheduling.extender import JobTime
from app.tables.catalog import Catalog
from app.tables.gpus import GpuSpec

MAX_EXEC_TIME = "kueue.x-k8s.io/max-exec-time-seconds"
LABELS = (*GPU_LABELS, *CLOUD_LABELS)
# Kueue reads the label as a 32-bit number.
_MOST_S = 2**31 - 1
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Flavor:
    """A resource flavour; `gpu` is None where no label names one, and `note` says why, or which product was chosen."""

    name: str
    labels: Mapping[str, str]
    gpu: str | None
    note: str


@dataclass(frozen=True, slots=True)
class Ranked:
    """A flavour with the job's time on it; `missing` says why the job should not run there, empty if it may."""

    flavor: Flavor
    time: JobTime | None
    missing: str


def read_manifests(text: str) -> list[Manifest]:
    """Return the objects of JSON or YAML, those of lists one by one. Raises BadInput."""
    try:
        parts = [json.loads(text)]
    except ValueError:
        parts = _yaml(text)
    manifests: list[Manifest] = []
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("metadata", {}), dict):
            raise BadInput(f"expected Kubernetes objects, got {str(part)[:60]!r}")
        manifests += part["items"] if isinstance(part.get("items"), list) else [part]
    return manifests


def _yaml(text: str) -> list[Any]:
    import yaml  # noqa: PLC0415 - only manifests that are no JSON

    try:
        return [part for part in yaml.safe_load_all(text) if part is not None]
    except yaml.YAMLError as error:
        raise BadInput(f"This is neither JSON nor YAML: {str(error)[:200]}") from None


def read_flavors(manifests: Iterable[Manifest], names: Mapping[str, str], catalog: Catalog) -> list[Flavor]:
    """Return the resource flavours of the objects; `names`: catalogue GPU of a label's value. Raises BadInput."""
    flavors = []
    for part in manifests:
        if part.get("kind") != "ResourceFlavor":
            continue
        labels = (part.get("spec") or {}).get("nodeLabels") or {}
        if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
            message = "expected an object of texts"
            raise BadInput(f"nodeLabels: {message}", errors=[FieldError(("spec", "nodeLabels"), message)])
        flavors.append(Flavor(str(part.get("metadata", {}).get("name", "")), labels, *_gpu(labels, names, catalog)))
    if not flavors:
        raise BadInput("No ResourceFlavor is among the objects: kubectl get resourceflavors -o json lists them.")
    return flavors


def _gpu(labels: Mapping[str, str], names: Mapping[str, str], catalog: Catalog) -> tuple[str | None, str]:
    label = next((name for name in LABELS if name in labels), None)
    if label is None:
        return None, f"no label of its nodes names a GPU: {', '.join(LABELS)}"
    try:
        gpu, note = gpu_of_type(labels[label], names, catalog, kind="")
    except NotFound as error:
        return None, error.detail
    return gpu, note


def rank_flavors(
    flavors: Sequence[Flavor], times: Mapping[str, JobTime], reasons: Mapping[str, str], *, by_cost: bool
) -> list[Ranked]:
    """Return the flavours in order: those that meet the goal by cost or by time, then the others.

    `times` and `reasons` (why a GPU cannot run the workload) are by GPU.
    """
    ranked = []
    for flavor in flavors:
        time = times.get(flavor.gpu or "")
        missing = time.missing if time else reasons.get(flavor.gpu or "", flavor.note)
        ranked.append(Ranked(flavor, time, missing))

    def order(one: Ranked) -> tuple[bool, bool, float, float]:
        if one.time is None:
            return True, True, 0.0, 0.0
        cost = one.time.cost_usd if by_cost else 0.0
        return bool(one.missing), cost is None, cost or 0.0, one.time.job_s

    return sorted(ranked, key=order)


def label_job(job: Manifest, ranked: Sequence[Ranked]) -> Manifest:
    """Return the job with its longest time on the flavours that meet the goal, and a Job with an affinity to them.

    Raises BadInput if no flavour meets the goal, or the time is too long for Kueue.
    """
    allowed = [(one.flavor, one.time) for one in ranked if one.time and not one.missing]
    if not allowed:
        raise BadInput("No flavour meets the goal.")
    most_s = ceil(max(time.limit_s for _, time in allowed))
    if most_s > _MOST_S:
        raise BadInput(
            f"The job takes up to {duration(1e3 * most_s)}, and Kueue's limit has at most {duration(1e3 * _MOST_S)}."
        )
    labelled = copy.deepcopy(job)
    metadata = labelled.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), MAX_EXEC_TIME: str(most_s)}
    if labelled.get("kind") == "Job":
        pod = labelled.setdefault("spec", {}).setdefault("template", {}).setdefault("spec", {})
        _restrict(pod, [flavor.labels for flavor, _ in allowed])
    return labelled


def _restrict(pod: Manifest, labels: Sequence[Mapping[str, str]]) -> None:
    """Restrict a pod to nodes with one of several sets of labels, beside what it requires already."""
    affinity = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    before = affinity.get(_REQUIRED, {}).get("nodeSelectorTerms") or [{}]
    ours = [[{"key": key, "operator": "In", "values": [value]} for key, value in one.items()] for one in labels]
    terms = [
        {**old, "matchExpressions": [*old.get("matchExpressions", []), *new]} for old, new in product(before, ours)
    ]
    affinity[_REQUIRED] = {"nodeSelectorTerms": terms}


DRIVER = "gpu.nvidia.com"
# Longest expression, bytes: CELDeviceSelector of resource.k8s.io/v1.
_MOST = 10 * 1024
# How NVIDIA's driver library names products.
_BRANDS = ("NVIDIA ", "Tesla ", "Quadro ", "TITAN ", "GeForce ", "GRID ")

Kind: TypeAlias = Literal["ResourceClaimTemplate", "ResourceClaim", "DeviceClass"]


def product_names(spec: GpuSpec) -> list[str]:
    """Return the names under which NVIDIA's driver may report a GPU; none for other vendors."""
    return [name for name in dict.fromkeys((spec.name, *spec.aliases)) if name.startswith(_BRANDS)]


def selector(specs: Sequence[GpuSpec]) -> str:
    """Return the expression in CEL that is true of these GPUs, not of slices. Raises BadInput if it is too long."""
    names = [name for spec in specs for name in product_names(spec)]
    if not names:
        raise BadInput(f"None of these GPUs is one that the driver {DRIVER} knows.")
    attributes = f"device.attributes[{json.dumps(DRIVER)}]"
    known = f'device.driver == {json.dumps(DRIVER)} && {attributes}.type == "gpu"'
    expression = f"{known} && {attributes}.productName in {json.dumps(names)}"
    if len(expression) > _MOST:
        raise BadInput(
            f"The selector of {len(specs)} GPUs has {len(expression):,} bytes of {_MOST:,}: name fewer GPUs."
        )
    return expression


def manifest(kind: Kind, name: str, expression: str, count: int) -> dict[str, Any]:
    """Return an object of resource.k8s.io/v1 that selects `count` devices (a class: any number)."""
    selectors = [{"cel": {"expression": expression}}]
    exactly = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": count, "selectors": selectors}
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    spec: dict[Kind, dict[str, Any]] = {
        "DeviceClass": {"selectors": selectors},
        "ResourceClaim": claim,
        "ResourceClaimTemplate": {"spec": claim},
    }
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec[kind]}
