"""`gpucast predict` gives the answers of POST /predict from a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.config import CHECKOUT, Settings
from tests.forked import run_command
from tests.service import Service

pytestmark = pytest.mark.slow

# Says at the end whether the compiler was loaded.
LOADED = """
import atexit, sys
from app.cli import main
atexit.register(lambda: print("numba" in sys.modules, file=sys.stderr))
"""


def gpucast(settings: Settings, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_command("predict", *arguments, env=os.environ | settings.environment(), stdin=stdin)


@pytest.fixture
def bare(kernel: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kernel.items() if name != "measured"}


def test_a_file_equals_the_route(
    client: TestClient, settings: Settings, kernel: dict[str, Any], tmp_path: Path
) -> None:
    request = {"gpus": ["rtx-4070", "titan-v"], "workload": kernel, "detail": True}
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request))
    run = gpucast(settings, str(file), "--json")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == client.post("/predict", json=request).json()


def test_standard_input_and_options(settings: Settings, bare: dict[str, Any]) -> None:
    options = ("--gpu", "rtx-4070", "--measured", "titan-v=0.91", "--coverage", "0.5", "--set", "size.n=7")
    run = gpucast(settings, "-", *options, stdin=json.dumps(bare))
    assert run.returncode == 0, run.stderr
    head, row = run.stdout.splitlines()
    assert head.split()[:2] == ["GPU", "ms"]
    assert row.startswith("rtx-4070")
    assert "(50%)" in row


def test_flags_alone_on_all_gpus(settings: Settings, bare: dict[str, Any]) -> None:
    flags = [flag for name, value in bare.items() if name != "size" for flag in ("--set", f"{name}={value}")]
    run = gpucast(settings, *flags, "--gpu", "all")
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) > 45


def test_invalid_arguments_are_reported_without_a_traceback(settings: Settings, bare: dict[str, Any]) -> None:
    run = gpucast(settings, "-", "--gpu", "rtx-4070", "--set", "flops=-1", stdin=json.dumps(bare))
    assert run.returncode == 1
    assert "workload.flops" in run.stderr
    assert "Traceback" not in run.stderr
    assert gpucast(settings, "no-such-file.json").returncode == 1
    assert gpucast(settings, "-", stdin="{").returncode == 1
    assert gpucast(settings, "-", "--measured", "titan-v", stdin=json.dumps(bare)).returncode == 1


def test_one_error_is_printed_once(settings: Settings) -> None:
    run = gpucast(settings, "--gpu", "rtx-4070", "--set", "kind=operator")
    assert run.returncode == 1 and run.stderr.count("'operator' is unknown") == 1
    several = gpucast(settings, "--gpu", "rtx-4070", "--set", "flops=1e9")
    assert several.stderr.count("required field is missing") > several.stderr.count("(and ") == 1


def test_a_running_service_is_used_without_loading_artefacts(service: Service, settings: Settings) -> None:
    known = service.client.get("/gpus/titan-v").raise_for_status().json()
    mine = {**known, "id": "mine", "name": "Mine", "aliases": []}
    service.client.post("/gpus", json=mine).raise_for_status()
    words = ["predict", "--model", "resnet50", "--gpu", "mine", "--json"]
    run = subprocess.run(
        [sys.executable, "-c", f"{LOADED}\nsys.argv[1:] = {words}\nmain()"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=CHECKOUT,
        env=os.environ | settings.environment(),
    )
    assert (run.returncode, run.stderr) == (0, "False\n")
    request = {"gpus": ["mine"], "workload": {"kind": "model", "name": "resnet50"}}
    assert json.loads(run.stdout) == service.client.post("/predict", json=request).raise_for_status().json()
