"""Health, readiness, metrics, pages, and headers of every request."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from app import __version__


def test_healthz(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok", "version": __version__}


def test_readyz(client: TestClient) -> None:
    told = client.get("/readyz").json()
    assert told["status"] == "ready"
    assert {name: part["ok"] for name, part in told["parts"].items()} == {
        "database": True,
        "queue": True,
        "store": True,
    }


def test_metrics_count_by_route(client: TestClient) -> None:
    client.get("/gpus/titan-v")
    client.post("/predict", content=b"{}")
    text = client.get("/metrics").text
    assert re.search(r'gpucast_requests_total\{method="GET",route="/gpus/\{name\}",status="200"\} [1-9]', text)
    assert re.search(r'gpucast_requests_total\{method="POST",route="/predict",status="422"\} [1-9]', text)
    assert "titan-v" not in text
    assert "gpucast_database_up 1.0" in text


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_load_nothing_from_other_hosts(client: TestClient, path: str) -> None:
    page = client.get(path)
    assert page.headers["content-type"].startswith("text/html")
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", page.text)
    assert "/openapi.json" in page.text


@pytest.mark.parametrize(("sent", "kept"), [("abc-1.2_3", True), ("x" * 65, False), ("a b", False), (None, False)])
def test_request_ids(client: TestClient, sent: str | None, kept: bool) -> None:
    headers = {} if sent is None else {"X-Request-ID": sent}
    answered = client.get("/healthz", headers=headers).headers["x-request-id"]
    assert answered == sent if kept else re.fullmatch("[0-9a-f]{32}", answered)
