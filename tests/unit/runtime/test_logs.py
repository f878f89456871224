"""Logs as JSON: one object a line, with the id of the request that they were written for."""

from __future__ import annotations

import io
import json
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from app.api.metrics import Metrics
from app.api.middleware import Observe
from app.config import Settings
from app.runtime.logs import JsonLines
from tests.busy_machine import PATIENCE_S
from tests.service import Service

LOG = logging.getLogger("gpucast.test")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonLines())
    LOG.addHandler(handler)
    yield written
    LOG.removeHandler(handler)


def read(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_has_the_id_of_its_request_in_task_and_thread(lines: io.StringIO) -> None:
    async def handler(request: Request) -> PlainTextResponse:
        LOG.warning("in the task")
        await run_in_threadpool(LOG.warning, "in a %s", "thread")
        return PlainTextResponse("")

    app = Observe(Starlette(routes=[Route("/", handler)]), Metrics())
    client = TestClient(app)
    client.get("/", headers={"X-Request-ID": "first"})
    made = client.get("/").headers["x-request-id"]
    LOG.warning("of nobody")
    found = read(lines.getvalue())
    assert [line.get("request_id") for line in found] == ["first", "first", made, made, None]
    assert found[1]["message"] == "in a thread" and found[1]["level"] == "warning"


def test_an_exception_and_lines_of_text_stay_one_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        LOG.exception('a "quoted"\nmessage')
    (line,) = read(lines.getvalue())
    assert line["message"] == 'a "quoted"\nmessage' and line["exception"].endswith("ValueError: two\nlines")
    assert line["time"].endswith("+00:00") and line["logger"] == "gpucast.test"


@pytest.mark.slow
def test_every_log_line_of_a_service_is_json(settings: Settings, tmp_path: Path) -> None:
    with Service(settings, tmp_path / "log", {"GPUCAST_LOG_FORMAT": "json"}) as running:
        assert running.process is not None
        (worker,) = [child for child in psutil.Process(running.process.pid).children() if "worker" in child.cmdline()]
        worker.send_signal(signal.SIGKILL)
        worker.wait(PATIENCE_S)
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if not line.startswith("gpucast starts on")]
    found = read("\n".join(lines))
    assert {"uvicorn.error"} <= {line["logger"] for line in found}
