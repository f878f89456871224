"""The Kubernetes manifests: valid for the API's published schemas, whole, and as strict as the documentation says."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from app.api.access import OPEN, ROLES
from app.config import CHECKOUT, Settings

DEPLOY = CHECKOUT / "deploy" / "kubernetes"
PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("kubernetes_1_30.json").read_text("utf-8"))
Manifest = dict[str, Any]


def read(folder: str) -> dict[str, Manifest]:
    """Every object that the kustomization of a folder lists, by kind and name."""
    listed = yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text("utf-8"))["resources"]
    files = [name for name in listed if name.endswith(".yaml")]
    parts = [part for name in files for part in yaml.safe_load_all((DEPLOY / folder / name).read_text("utf-8"))]
    return {f"{part['kind']} {part['metadata']['name']}": part for part in parts}


BASE = read("base")
EXTENDER = read("scheduler-extender")
PODS = {name: part["spec"]["template"] for name, part in BASE.items() if part["kind"] in ("Deployment", "Job")}
POLICIES = {part["metadata"]["name"]: part["spec"] for part in BASE.values() if part["kind"] == "NetworkPolicy"}


def problems(manifest: Manifest) -> list[str]:
    """What the API's schema says against an object; a field that it does not know counts."""
    kind = PUBLISHED["kinds"].get(f"{manifest['apiVersion']}/{manifest['kind']}")
    if kind is None:
        return [f"no schema of {manifest['apiVersion']}/{manifest['kind']}"]
    schema = {"$ref": f"#/definitions/{kind}", "definitions": PUBLISHED["definitions"]}
    found = jsonschema_rs.Draft7Validator(schema).iter_errors(manifest)
    return [f"{'.'.join(map(str, error.instance_path))}: {error.message}" for error in found]


@pytest.mark.parametrize("manifest", [*BASE.values(), *EXTENDER.values()], ids=[*BASE, *EXTENDER])
def test_every_object_is_valid_for_the_published_schema(manifest: Manifest) -> None:
    assert not problems(manifest)


@pytest.mark.parametrize("wrong", ["replica", "containerPort", "selector"])
def test_the_schemas_refuse_unknown_wrong_and_missing_fields(wrong: str) -> None:
    manifest = json.loads(json.dumps(BASE["Deployment gpucast"]))
    if wrong == "selector":
        del manifest["spec"]["selector"]
    elif wrong == "replica":
        manifest["spec"]["replica"] = 2
    else:
        manifest["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] = "8000"
    assert len(problems(manifest)) == 1


def test_every_file_is_listed_and_every_listed_one_is_there() -> None:
    for folder in ("base", "scheduler-extender"):
        listed = set(yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text("utf-8"))["resources"])
        there = {path.name for path in (DEPLOY / folder).glob("*.yaml")}
        assert {name for name in listed if name.endswith(".yaml")} == there - {"kustomization.yaml", "scheduler.yaml"}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize(("folder", "keys"), [("base", "on"), ("scheduler-extender", "off")])
def test_kustomize_builds_what_the_schemas_allow(folder: str, keys: str) -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / folder)], capture_output=True, text=True, check=True, timeout=60
    )
    built = list(yaml.safe_load_all(done.stdout))
    assert not [problem for manifest in built for problem in problems(manifest)]
    (settings,) = [manifest for manifest in built if manifest["kind"] == "ConfigMap"]
    assert settings["data"]["GPUCAST_KEYS"] == keys
    pods = [manifest["spec"]["template"]["spec"] for manifest in built if manifest["kind"] in ("Deployment", "Job")]
    assert {pod["containers"][0]["envFrom"][0]["configMapRef"]["name"] for pod in pods} == {
        settings["metadata"]["name"]
    }
    assert {manifest["metadata"].get("namespace", "gpucast") for manifest in built} == {"gpucast"}


@pytest.mark.parametrize("name", list(PODS))
def test_no_container_can_do_more_than_it_must(name: str) -> None:
    pod = PODS[name]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    for kind in ("requests", "limits"):
        assert set(container["resources"][kind]) == {"cpu", "memory"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert all(volume["emptyDir"]["sizeLimit"] for volume in volumes.values())


@pytest.mark.parametrize("name", list(PODS))
def test_the_database_comes_from_a_secret_and_keys_are_on(name: str) -> None:
    (container,) = PODS[name]["spec"]["containers"]
    url = next(variable for variable in container["env"] if variable["name"] == "DATABASE_URL")
    assert url["valueFrom"] == {"secretKeyRef": {"name": "gpucast-database", "key": "url"}} and "value" not in url
    (generator,) = yaml.safe_load((DEPLOY / "base" / "kustomization.yaml").read_text())["configMapGenerator"]
    assert container["envFrom"] == [{"configMapRef": {"name": generator["name"]}}]
    assert "GPUCAST_KEYS=on" in generator["literals"]


def test_a_rollout_loses_no_request() -> None:
    spec = BASE["Deployment gpucast"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    sleeping = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > sleeping + Settings().stop_grace_s
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert "replicas" not in spec, "or each apply would undo what the autoscaler did"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert ROLES[container[probe]["httpGet"]["path"]]["GET"] is OPEN, "kubelets have no key"
    assert "--timeout-graceful-shutdown" in (CHECKOUT / "Dockerfile").read_text()


def test_pods_spread_and_a_drain_takes_one_at_a_time() -> None:
    labels = BASE["Deployment gpucast"]["spec"]["selector"]["matchLabels"]
    assert labels.items() <= PODS["Deployment gpucast"]["metadata"]["labels"].items()
    spread = PODS["Deployment gpucast"]["spec"]["topologySpreadConstraints"]
    assert {one["topologyKey"] for one in spread} == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    budget = BASE["PodDisruptionBudget gpucast"]["spec"]
    assert budget["maxUnavailable"] == 1
    service = BASE["Service gpucast"]["spec"]["selector"]
    assert [one["labelSelector"]["matchLabels"] for one in spread] == [labels, labels]
    assert budget["selector"]["matchLabels"] == service == labels


def test_the_autoscaler_asks_for_a_metric_that_the_adapter_makes_of_ours() -> None:
    scaler = BASE["HorizontalPodAutoscaler gpucast"]["spec"]
    assert f"Deployment {scaler['scaleTargetRef']['name']}" in BASE
    asked = [one["pods"]["metric"]["name"] for one in scaler["metrics"] if one["type"] == "Pods"]
    (rule,) = yaml.safe_load((CHECKOUT / "deploy" / "prometheus" / "adapter.yaml").read_text("utf-8"))["rules"]
    assert asked == [rule["name"]["as"]]


def test_only_clients_and_prometheus_come_in_and_only_names_and_postgresql_go_out() -> None:
    assert POLICIES["gpucast-nothing-else"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    port = {"protocol": "TCP", "port": "http"}
    for name in ("gpucast-clients", "gpucast-prometheus"):
        assert POLICIES[name]["podSelector"]["matchLabels"].items() <= (
            PODS["Deployment gpucast"]["metadata"]["labels"].items()
        )
        assert [way["ports"] for way in POLICIES[name]["ingress"]] == [[port]]
    (prometheus,) = POLICIES["gpucast-prometheus"]["ingress"][0]["from"]
    assert set(prometheus) == {"namespaceSelector", "podSelector"}, "one peer: both must fit"
    for name, pod in PODS.items():
        labels = pod["metadata"]["labels"]
        assert POLICIES["gpucast-database"]["podSelector"]["matchLabels"].items() <= labels.items(), name
    out = [one["port"] for way in POLICIES["gpucast-database"]["egress"] for one in way["ports"]]
    assert out == [53, 53, 5432]
