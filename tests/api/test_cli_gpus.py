"""`gpucast gpus` on a real database, as a process."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from app.config import Settings
from tests.forked import run_command

pytestmark = pytest.mark.slow

PROTOTYPE = {
    "name": "Prototype 1",
    "compute_capability": "9.0",
    "sm_count": 10,
    "boost_clock_hz": 1e9,
    "memory_bytes": 1e10,
    "memory_bandwidth_bytes_per_s": 1e11,
}


def _gpus(settings: Settings, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return run_command("gpus", *words, env=os.environ | settings.environment(), stdin=text)


def test_list_and_show(settings: Settings) -> None:
    assert "titan-v" in _gpus(settings, "list").stdout
    items = json.loads(_gpus(settings, "list", "--json").stdout)["items"]
    shown = json.loads(_gpus(settings, "show", "NVIDIA TITAN V").stdout)
    assert shown in items


def test_an_unknown_gpu_lists_close_names(settings: Settings) -> None:
    done = _gpus(settings, "show", "rtx 4071")
    assert done.returncode == 1
    assert "rtx-4070" in done.stderr


def test_adding_a_gpu_twice_is_rejected(settings: Settings) -> None:
    assert _gpus(settings, "add", "-", text=json.dumps(PROTOTYPE)).stdout == "Added prototype-1.\n"
    assert json.loads(_gpus(settings, "show", "prototype 1").stdout)["sm_count"] == 10
    clash = _gpus(settings, "add", "-", text=json.dumps({**PROTOTYPE, "id": "another"}))
    assert clash.returncode == 1
    assert "prototype-1" in clash.stderr


def test_a_file_that_is_not_json_is_reported(settings: Settings) -> None:
    done = _gpus(settings, "add", "-", text="{")
    assert done.returncode == 1
    assert "not a readable JSON file" in done.stderr
