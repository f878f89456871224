"""The Kubernetes scheduler extender: filtering and scoring of nodes, and the manifests."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from app.config import CHECKOUT, knobs
from app.services.scheduling.extender import DEADLINE, EXTENDER_EXAMPLE, RANK_BY, WORKLOAD

DEPLOY = CHECKOUT / "deploy" / "kubernetes"
LINEAR = {"kind": "operators", "operators": [{"op": "linear", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}]}
NODES = {
    "a100": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
    "h100": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
    "l4": {"nvidia.com/gpu.product": "NVIDIA-L4"},
    "cpu": {"kubernetes.io/arch": "amd64"},
    "mig": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"},
}


def question(workload: Any = LINEAR, **annotations: str) -> dict[str, Any]:
    said = {WORKLOAD: workload if isinstance(workload, str) else json.dumps(workload)} | annotations
    items = [{"metadata": {"name": name, "labels": labels}, "status": {"x": 1}} for name, labels in NODES.items()]
    return {"Pod": {"metadata": {"name": "p", "annotations": said}}, "Nodes": {"items": items}, "NodeNames": None}


def ask(client: TestClient, verb: str, body: Any) -> Any:
    answer = client.post(f"/scheduler/{verb}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def kept(answer: dict[str, Any]) -> list[str]:
    return [node["metadata"]["name"] for node in answer["Nodes"]["items"]]


def test_nodes_that_can_run_a_pod_are_returned_unchanged(client: TestClient) -> None:
    asked = question()
    answer = ask(client, "filter", asked)
    assert kept(answer) == ["a100", "h100", "l4"] and answer["Error"] == ""
    assert answer["Nodes"]["items"] == asked["Nodes"]["items"][:3]
    assert "no label names a GPU" in answer["FailedNodes"]["cpu"]
    assert "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb" in answer["FailedNodes"]["mig"]


def test_memory_and_deadline_filter_nodes(client: TestClient) -> None:
    big = {"kind": "model", "name": "llama-3.1-70b", "batch": 1, "sequence": 128, "dtype": "bf16", "mode": "prefill"}
    answer = ask(client, "filter", question(big))
    assert kept(answer) == [] and "GiB of memory, has 24" in answer["FailedNodes"]["l4"]
    published = {"kind": "model", "name": "llama-3.1-8b", "sequence": 128, "mode": "prefill"}  # in 16 bits, 16 GB
    assert "l4" in kept(ask(client, "filter", question(published)))
    times = client.post("/predict", json={"workload": LINEAR, "gpus": ["h100-sxm5-80gb", "nvidia-l4"]}).json()
    fast = times["predictions"][0]["interval_ms"]["high"]
    answer = ask(client, "filter", question(**{DEADLINE: str(2 * fast)}))
    assert "h100" in kept(answer) and "probability" in answer["FailedNodes"]["l4"]


def test_scores_are_in_proportion_to_the_best(client: TestClient) -> None:
    scores = {row["Host"]: row["Score"] for row in ask(client, "prioritize", question())}
    assert scores["h100"] == 10 and 10 > scores["a100"] > scores["l4"] >= 0 and scores["cpu"] == 0
    scores = {row["Host"]: row["Score"] for row in ask(client, "prioritize", question(**{RANK_BY: "throughput"}))}
    assert scores["h100"] == 10 and scores["a100"] < 10


def test_a_pod_without_annotations_passes_every_node(client: TestClient) -> None:
    asked = question() | {"Pod": {"metadata": {"name": "p"}}}
    assert kept(ask(client, "filter", asked)) == list(NODES)
    assert {row["Score"] for row in ask(client, "prioritize", asked)} == {0}


def test_a_dtype_that_one_gpu_lacks_does_not_stop_the_others(client: TestClient) -> None:
    fp8 = {"kind": "operators", "operators": [{"op": "linear", "m": 512, "n": 512, "k": 512, "dtype": "fp8"}]}
    answer = ask(client, "filter", question(fp8))
    assert kept(answer) == ["h100", "l4"] and "cannot run" in answer["FailedNodes"]["a100"]


@pytest.mark.parametrize("workload", ["{", "[]", '{"kind": "unknown"}'])
def test_an_unreadable_workload_is_reported_to_the_scheduler(client: TestClient, workload: str) -> None:
    answer = ask(client, "filter", question(workload))
    assert kept(answer) == [] and WORKLOAD in answer["Error"]
    assert {row["Score"] for row in ask(client, "prioritize", question(workload))} == {0}


def test_keys_are_case_insensitive_as_in_go(client: TestClient) -> None:
    asked = {key.lower(): value for key, value in EXTENDER_EXAMPLE.items()}
    assert ask(client, "filter", asked) == ask(client, "filter", EXTENDER_EXAMPLE)


@pytest.mark.parametrize("body", ["[]", "{", '{"Nodes": {"items": [1]}}', '{"NodeNames": ["a"]}'])
def test_invalid_extender_requests_are_rejected(client: TestClient, body: str) -> None:
    answer = client.post("/scheduler/filter", content=body)
    assert answer.status_code == 422 and answer.json()["errors"]


def test_the_schedulers_configuration_names_what_exists(client: TestClient) -> None:
    """The rest of the manifests: tests/unit/deploy/test_kubernetes.py."""
    extender_folder = DEPLOY / "scheduler-extender"
    assert [path.name for path in sorted(extender_folder.glob("*"))] == [
        *("kustomization.yaml", "network.yaml", "scheduler.yaml")
    ]
    (extender,) = yaml.safe_load((extender_folder / "scheduler.yaml").read_text("utf-8"))["extenders"]
    paths = client.get("/openapi.json").json()["paths"]
    assert {f"/scheduler/{extender[verb]}" for verb in ("filterVerb", "prioritizeVerb")} <= set(paths)
    parts = [
        part for path in sorted(DEPLOY.glob("base/*.yaml")) for part in yaml.safe_load_all(path.read_text("utf-8"))
    ]
    service = next(part for part in parts if part["kind"] == "Service")
    namespace = next(part["namespace"] for part in parts if part["kind"] == "Kustomization")
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert extender["urlPrefix"] == f"http://{name}.{namespace}.svc:{port}/scheduler"
    pods = [part["spec"]["template"]["spec"] for part in parts if part["kind"] in ("Deployment", "Job")]
    containers = [container for pod in pods for container in pod["containers"]]
    settings = {variable["name"] for one in containers for variable in one["env"]}
    generators = [part["configMapGenerator"] for part in parts if part["kind"] == "Kustomization"]
    settings |= {literal.partition("=")[0] for (generator,) in generators for literal in generator["literals"]}
    assert settings <= {knob.env for knob in knobs().values()}
    (api,) = next(part for part in parts if part["kind"] == "Deployment")["spec"]["template"]["spec"]["containers"]
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    assert {api[probe]["httpGet"]["path"] for probe in probes} <= set(paths)
