"""Kueue's flavours and labels: ranking, the longest time, the affinity; each job is valid for the published schema."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from app.engine.catalogue import load_seed_specs
from app.errors import BadInput
from app.services.scheduling.extender import JobTime
from app.services.scheduling.kueue import (
    MAX_EXEC_TIME,
    Ranked,
    label_job,
    rank_flavors,
    read_flavors,
    read_manifests,
)
from app.tables.catalog import Catalog
from tests.unit.deploy.test_kubernetes import problems

FLAVORS = """\
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: a100}
spec: {nodeLabels: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: l4}
spec: {nodeLabels: {cloud.google.com/gke-accelerator: nvidia-l4, cloud.google.com/gke-spot: "true"}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: v100}
spec: {nodeLabels: {karpenter.k8s.aws/instance-gpu-name: v100}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: slice}
spec: {nodeLabels: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB-MIG-1g.10gb}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: default}
"""
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: finetune, labels: {kueue.x-k8s.io/queue-name: team}}
spec:
  suspend: true
  template:
    spec:
      restartPolicy: Never
      containers: [{name: train, image: train, resources: {limits: {nvidia.com/gpu: "1"}}}]
"""
TIMES = {
    "a100-sxm4-80gb": JobTime("a100-sxm4-80gb", 1, 1000.0, 900.0, 1100.0, 1200.3, 0.4, ""),
    "nvidia-l4": JobTime("nvidia-l4", 1, 4000.0, 3900.0, 4100.0, 4200.0, 0.9, ""),
}
REASONS = {"tesla-v100-sxm2-16gb": "does not compute in bf16"}


@pytest.fixture(scope="module")
def ranked() -> list[Ranked]:
    flavors = read_flavors(read_manifests(FLAVORS), {}, Catalog(load_seed_specs()))
    return rank_flavors(flavors, TIMES, REASONS, by_cost=True)


def test_flavours_are_ranked_by_the_gpu_of_their_nodes(ranked: list[Ranked]) -> None:
    assert [one.flavor.name for one in ranked] == ["a100", "l4", "v100", "slice", "default"]
    assert [one.flavor.gpu for one in ranked] == ["a100-sxm4-80gb", "nvidia-l4", "tesla-v100-sxm2-16gb", None, None]
    assert not ranked[0].missing and ranked[2].missing == "does not compute in bf16"
    assert "the usual product" in ranked[2].flavor.note and "slice" in ranked[3].missing
    assert "no label of its nodes names a GPU" in ranked[4].missing


def test_names_of_the_user_come_first() -> None:
    flavors = read_flavors(read_manifests(FLAVORS), {"v100": "tesla-v100-pcie-32gb"}, Catalog(load_seed_specs()))
    assert flavors[2].gpu == "tesla-v100-pcie-32gb" and not flavors[2].note


def test_a_job_gets_its_longest_time_and_the_flavours_that_meet_the_goal(ranked: list[Ranked]) -> None:
    job = yaml.safe_load(JOB)
    found = label_job(job, ranked)
    assert found["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team", MAX_EXEC_TIME: "4200"}
    assert label_job(job, ranked[:1])["metadata"]["labels"][MAX_EXEC_TIME] == "1201"
    assert job == yaml.safe_load(JOB) and not problems(found)
    assert terms_of(found) == [
        {"matchExpressions": [required("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB")]},
        {
            "matchExpressions": [
                required("cloud.google.com/gke-accelerator", "nvidia-l4"),
                required("cloud.google.com/gke-spot", "true"),
            ]
        },
    ]


def test_what_a_job_requires_already_stays(ranked: list[Ranked]) -> None:
    once = label_job(yaml.safe_load(JOB), ranked[1:2])
    twice = label_job(once, ranked[:1])
    (term,) = terms_of(twice)
    assert [one["key"] for one in term["matchExpressions"]][::2] == [
        "cloud.google.com/gke-accelerator",
        "nvidia.com/gpu.product",
    ]
    assert not problems(twice)


def test_jobs_of_other_kinds_get_the_label_only(ranked: list[Ranked]) -> None:
    found = label_job({"kind": "RayJob", "metadata": {"name": "ray"}, "spec": {}}, ranked)
    assert found["metadata"]["labels"] == {MAX_EXEC_TIME: "4200"} and found["spec"] == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "neither JSON nor YAML"),
        ("[1]", "expected Kubernetes objects, got '\\[1\\]'"),
        ("kind: Job", "No ResourceFlavor"),
        ("{kind: ResourceFlavor, spec: {nodeLabels: [a]}}", "nodeLabels: expected an object of texts"),
    ],
)
def test_wrong_manifests_are_refused(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read_flavors(read_manifests(text), {}, Catalog([]))


def test_a_job_that_no_flavour_can_take_is_refused(ranked: list[Ranked]) -> None:
    with pytest.raises(BadInput, match="No flavour meets the goal"):
        label_job(yaml.safe_load(JOB), ranked[2:])
    long = [Ranked(ranked[0].flavor, JobTime("a", 1, 3e9, 3e9, 3e9, 3e9, None, ""), "")]
    with pytest.raises(BadInput, match=r"takes up to 3\.47e\+04 days"):
        label_job(yaml.safe_load(JOB), long)


def terms_of(job: dict[str, Any]) -> Any:
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    return affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


def required(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": [value]}
