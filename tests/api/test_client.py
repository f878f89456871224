"""The typed Python client: it matches the OpenAPI document, type-checks, and works with the running service."""

from __future__ import annotations

import gzip
import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from app.config import CHECKOUT
from tests.hostile_server import JSON, PROBLEM, endless, hostile, whole

pytestmark = pytest.mark.slow

FOLDER = CHECKOUT / "clients" / "python"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_client_matches_the_openapi_document(server: httpx.Client) -> None:
    generate = loaded("generate")
    made = generate.module(server.get("/openapi.json").json())
    assert made == generate.MODULE.read_text("utf-8"), "run `make client`"


def test_the_client_and_its_example_type_check(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "--config-file", ""]
    wrong = tmp_path / "wrong.py"
    wrong.write_text('from gpucast_client import Gpucast\nGpucast().get_job("one")["state"] + 1\n')
    done = subprocess.run(
        [*command, "example.py", "gpucast_skypilot.py", str(wrong)],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.findall(r"^(.+?\.py):\d+: error: .*\[(.+)\]$", done.stdout, re.MULTILINE) == [
        (str(wrong), "arg-type"),
        (str(wrong), "operator"),
    ], done.stdout


def test_the_example_runs(server: httpx.Client) -> None:
    command = [sys.executable, "example.py", str(server.base_url)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert re.fullmatch(r"rtx-4070: \d+\.\d{3} ms\n", done.stdout), done.stdout + done.stderr


def test_answers_and_problems(server: httpx.Client) -> None:
    client = loaded("gpucast_client")
    with client.Gpucast(str(server.base_url), key="not asked for") as service:
        assert service.get_gpu("NVIDIA L4") == server.get("/gpus/nvidia-l4").json()
        assert service.list_measurements(limit=1, gpu="nvidia-l4")["items"] == []
        assert "gpucast_requests_total" in service.get_metrics()
        mine = service.register_gpu({**service.get_gpu("nvidia-l4"), "id": "a", "name": "A", "aliases": []})
        assert service.remove_gpu(mine["id"]) is None
        with pytest.raises(client.GpucastProblem, match="nvidia-l4, l40") as caught:
            service.get_gpu("nvidia-l4x")
        assert (caught.value.status, caught.value.problem["type"]) == (404, "urn:gpucast:problem:not-found")
        with pytest.raises(client.GpucastProblem) as caught:
            service.predict({"gpu": "nvidia-l4"})
        assert caught.value.errors[0]["loc"] == ["workload"]


@pytest.mark.parametrize(
    ("status", "media", "content"),
    [
        ("200 OK", JSON, b"<html>"),
        ("200 OK", JSON, b""),
        ("200 OK", JSON, b"[" * 2_000_000),
        ("200 OK", JSON, b"1" * 5_000),
        ("200 OK", f"{JSON}; charset=zip", b"\xff"),
        ("302 Found", JSON, b""),
        ("400 Bad", PROBLEM, b"[1]"),
        ("400 Bad", PROBLEM, b"{"),
        ("400 Bad", PROBLEM, b"{}"),
        ("400 Bad", PROBLEM, b'{"detail": 1, "errors": 2}'),
        ("422 Bad", f"{PROBLEM}; charset=utf-8", b'{"detail": "\\u001b]0;owned\\u0007", "errors": [1, {"loc": 3}]}'),
        ("500 Bad", "text/html; charset=rot13", b"x" * 2_000_000),
    ],
)
def test_an_answer_that_is_none_is_a_short_problem(status: str, media: str, content: bytes) -> None:
    """They were errors of every sort; a problem had the whole text, with what a terminal obeys."""
    client = loaded("gpucast_client")
    script = whole(content, status, media, Location="file://localhost/etc/passwd", Retry_After=10**9)
    with hostile(script) as url, client.Gpucast(url) as service, pytest.raises(client.GpucastProblem) as caught:
        service.list_gpus()
    assert caught.value.status == int(status[:3]) and caught.value.errors == []
    assert len(str(caught.value)) < 3_000 and str(caught.value).isprintable()


def test_an_answer_is_bounded_in_bytes_and_in_time() -> None:
    """10 GB were read; an answer that came byte by byte had no end; one packed twice unpacked without a bound."""
    client = loaded("gpucast_client")
    packed = whole(gzip.compress(gzip.compress(bytes(2**24))), Content_Encoding="gzip, gzip")
    refused = client.GpucastProblem
    with hostile(packed) as url, client.Gpucast(url) as service, pytest.raises(refused, match="compressed"):
        service.list_gpus()
    with hostile(endless()) as url, client.Gpucast(url, most_bytes=2**20) as service, pytest.raises(refused):
        service.list_gpus()
    began, slow = time.monotonic(), endless(b" ", every_s=0.05)
    with hostile(slow) as url, client.Gpucast(url, timeout_s=1.0) as service, pytest.raises(httpx.ReadTimeout):
        service.list_gpus()
    assert time.monotonic() - began < 20


def test_no_name_reaches_another_path_and_no_error_shows_the_key() -> None:
    """DELETE /gpus/.. was DELETE /, and an error about the line break after a key showed the key."""
    client = loaded("gpucast_client")
    with client.Gpucast("http://127.0.0.1:9") as service:
        for name in ("", ".", ".."):
            with pytest.raises(ValueError, match="names nothing"):
                service.remove_gpu(name)
    with pytest.raises(ValueError, match="characters") as caught:
        client.Gpucast(key="secret\nX: y")
    assert "secret" not in str(caught.value)
    with hostile(whole(b'{"items": []}')) as url, client.Gpucast(url, key="secret\n") as service:
        assert service.list_gpus() == {"items": []}
