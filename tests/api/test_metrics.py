"""Metrics of the running service, of all its processes together, and the files of deploy/ that name them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app.config import CHECKOUT, Settings
from app.wire.operator_forms import OPERATOR_TABLE_EXAMPLE
from app.wire.prediction_form import PREDICT_EXAMPLE
from tests.learning import workload
from tests.service import Service

pytestmark = pytest.mark.slow

BOARD: dict[str, Any] = json.loads((CHECKOUT / "deploy" / "grafana" / "gpucast.json").read_text("utf-8"))
(RULE,) = yaml.safe_load((CHECKOUT / "deploy" / "prometheus" / "adapter.yaml").read_text("utf-8"))["rules"]
ALERTS_FILE = CHECKOUT / "deploy" / "prometheus" / "alerts.yml"
ALERTS = [rule for group in yaml.safe_load(ALERTS_FILE.read_text("utf-8"))["groups"] for rule in group["rules"]]
EXPRESSIONS = [
    *(rule["expr"] for rule in ALERTS if rule["alert"] != "GpucastDown"),  # `up` is Prometheus's own
    *(target["expr"] for panel in BOARD["panels"] for target in panel["targets"]),
    RULE["seriesQuery"].partition("{")[0],
]
WORKERS = 2
AT_ONCE = 8


@pytest.fixture(scope="module")
def many(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    log = tmp_path_factory.mktemp("many") / "log"
    with Service(settings, log, {"GPUCAST_WORKERS": str(WORKERS), "GPUCAST_DATA_DIR": str(log.parent)}) as running:
        yield running


def samples(client: httpx.Client) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(client.get("/metrics").raise_for_status().text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def value(client: httpx.Client, name: str, **labels: str) -> float:
    return samples(client).get((name, frozenset(labels.items())), 0.0)


def test_predictions_of_all_processes_add_up(many: Service) -> None:
    def ask(_: int) -> None:
        httpx.post(f"{many.client.base_url}/predict", json=PREDICT_EXAMPLE).raise_for_status()

    def answering() -> int:
        """How many processes have counted a request."""
        return len(list((Path(many.log.parent) / "metrics").glob("*/*[0-9]")))

    sent, deadline = 0, time.monotonic() + 60
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while answering() < WORKERS:  # the system alone decides which process takes a connection
            assert time.monotonic() < deadline, sent
            list(pool.map(ask, range(AT_ONCE)))
            sent += AT_ONCE
    counted, deadline = -1.0, time.monotonic() + 20
    while counted != sent:
        assert time.monotonic() < deadline, (counted, sent)
        time.sleep(0.2)
        counted = value(many.client, "gpucast_predictions_total", predictor="auto", support="interpolated")
    asked = value(many.client, "gpucast_requests_total", method="POST", route="/predict", status="200")
    assert asked == value(many.client, "gpucast_request_seconds_count", route="/predict") == sent > 0
    assert len(list((Path(many.log.parent) / "metrics").iterdir())) == 1
    assert answering() == WORKERS


def test_metrics_of_columns_drift_jobs_and_versions(many: Service) -> None:
    many.client.post("/predict", json=OPERATOR_TABLE_EXAMPLE).raise_for_status()
    row = {
        "gpu": "rtx-4070",
        "software": "cuda",
        "source": "test",
        "workload": workload("add", 1024),
        "latency_ms": 2.0,
    }
    assert many.client.post("/measurements", json=[row]).raise_for_status().json()["drift"]["rows"] == 1
    deadline = time.monotonic() + 20
    while not value(many.client, "gpucast_drift_median_percent") or not value(
        many.client, "gpucast_predictions_total", predictor="auto", support="columns"
    ):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert value(many.client, "gpucast_jobs", state="failed") == 0.0
    served = [labels for name, labels in samples(many.client) if name == "gpucast_version_served"]
    assert {"auto", "roofline", "li"} <= {dict(labels)["predictor"] for labels in served}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_board_alerts_and_adapter_name_only_what_the_service_tells(many: Service, expression: str) -> None:
    told = many.client.get("/metrics").text
    known = set(re.findall(r"^# TYPE (\w+) ", told, re.MULTILINE))
    known |= {f"{name}_{part}" for name in known for part in ("bucket", "sum", "count")}
    named = set(re.findall(r"\bgpucast_\w+", expression))
    assert named and named <= known
    labels = {label for _, pairs in samples(many.client) for label, _ in pairs}
    asked = re.findall(r"by \(([\w, ]+)\)", expression) + re.findall(r"[{,](\w+)=", expression)
    assert {label.strip() for group in asked for label in group.split(",")} <= labels


def test_every_alert_is_explained_and_rated() -> None:
    page = (CHECKOUT / "docs" / "how-to" / "operate.md").read_text("utf-8")
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS) >= 8
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning") and rule["annotations"]["summary"]
        assert f"| `{rule['alert']}` |" in page


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_accepts_the_alerts() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(ALERTS_FILE)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_grafana_dashboard_is_valid() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 10
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places) and all(
        panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels
    )
    assert {panel["datasource"]["uid"] for panel in panels} == {"${source}"}
