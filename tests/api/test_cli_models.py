"""`gpucast predict --model` and `gpucast scale` from a terminal."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from fastapi.testclient import TestClient

from app.config import Settings
from app.wire.network_form import GPT2_LARGE
from tests.forked import run_command

pytestmark = pytest.mark.slow


def gpucast(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, env=os.environ | settings.environment())


def test_a_name_and_a_configuration_equal_the_route(client: TestClient, settings: Settings, tmp_path: Path) -> None:
    run = gpucast(
        settings,
        "predict",
        "--model",
        "resnet50",
        "--batch",
        "8",
        "--image-size",
        "160",
        "--gpu",
        "nvidia-l4",
        "--json",
    )
    assert run.returncode == 0, run.stderr
    workload = {"kind": "model", "name": "resnet50", "batch": 8, "image_size": 160}
    assert json.loads(run.stdout) == client.post("/predict", json={"gpus": ["nvidia-l4"], "workload": workload}).json()
    file = tmp_path / "config.json"
    file.write_text(json.dumps(GPT2_LARGE))
    options = ("--mode", "training", "--batch", "8", "--sequence", "128", "--dtype", "fp16")
    split = ("--set", "parallelism.data=4", "--set", "recompute=true", "--set", "optimizer=sgd")
    run = gpucast(settings, "predict", "--model", str(file), *options, *split, "--gpu", "nvidia-l4", "--json")
    assert run.returncode == 0, run.stderr
    workload = {"kind": "model", "config": GPT2_LARGE, "mode": "training", "batch": 8, "sequence": 128, "dtype": "fp16"}
    workload |= {"parallelism": {"data": 4}, "recompute": True, "optimizer": "sgd"}
    assert json.loads(run.stdout) == client.post("/predict", json={"gpus": ["nvidia-l4"], "workload": workload}).json()


def test_invalid_arguments_are_reported_without_a_traceback(settings: Settings) -> None:
    run = gpucast(settings, "predict", "--model", "resnet5O", "--gpu", "nvidia-l4")
    assert run.returncode == 1
    assert "resnet50" in run.stderr and "Traceback" not in run.stderr
    assert gpucast(settings, "predict", "--model", "no-such.json", "--gpu", "nvidia-l4").returncode == 1
    assert gpucast(settings, "scale", "--model", "resnet50", "--gpu", "nvidia-l4", "--devices", "1,x").returncode == 1


def test_scaling_curves_as_numbers_and_as_a_plot(settings: Settings, tmp_path: Path) -> None:
    plot = tmp_path / "scaling.svg"
    sizes = ("--devices", "1,2,8,16", "--batches", "16,64", "--json", "--plot", str(plot))
    run = gpucast(settings, "scale", "--model", "resnet50", "--gpu", "nvidia-l4", "--gpu", "tesla-t4", *sizes)
    assert run.returncode == 0, run.stderr
    points = json.loads(run.stdout)
    assert [(one["gpu"], one["devices"], one["batch"]) for one in points[:4]] == [
        ("nvidia-l4", count, 16 * count) for count in (1, 2, 8, 16)
    ]
    assert [one["nodes"] for one in points[:4]] == [1, 1, 1, 2]
    assert points[0]["efficiency"] == 1
    for one, more in pairwise(points[:4]):
        assert more["throughput_per_s"] > one["throughput_per_s"]
        assert 0.1 < more["efficiency"] <= 1
    for one in points:
        assert one["throughput_per_s"] == pytest.approx(one["batch"] / one["latency_ms"] * 1e3)
    drawn = ElementTree.fromstring(plot.read_text("utf-8"))
    assert len(drawn.findall("{*}polyline")) == 8  # with the ideal beside each


def test_scaling_splits_a_batch_over_devices(settings: Settings) -> None:
    sizes = ("--devices", "1,4", "--batch", "64", "--strong", "--json")
    run = gpucast(settings, "scale", "--model", "resnet18", "--gpu", "nvidia-l4", *sizes)
    assert run.returncode == 0, run.stderr
    alone, shared = json.loads(run.stdout)
    assert alone["batch"] == shared["batch"] == 64
    assert alone["latency_ms"] > 2 * shared["latency_ms"]
    run = gpucast(settings, "scale", "--model", "resnet18", "--gpu", "nvidia-l4", "--batch", "8,32")
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 3
