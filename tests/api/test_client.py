"""The typed Python client: it matches the OpenAPI document, type-checks, and works with the running service."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from app.config import CHECKOUT

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
        assert "gpucast_requests_total" in service.metrics()
        mine = service.register_gpu({**service.get_gpu("nvidia-l4"), "id": "a", "name": "A", "aliases": []})
        assert service.remove_gpu(mine["id"]) is None
        with pytest.raises(client.GpucastProblem, match="nvidia-l4, l40") as caught:
            service.get_gpu("nvidia-l4x")
        assert (caught.value.status, caught.value.problem["type"]) == (404, "urn:gpucast:problem:not-found")
        with pytest.raises(client.GpucastProblem) as caught:
            service.predict({"gpu": "nvidia-l4"})
        assert caught.value.errors[0]["loc"] == ["workload"]
