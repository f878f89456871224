"""The time estimator of clients/python with the real SkyPilot, in an environment of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

from app import __version__
from app.config import SEED_DATA
from tests.api.test_client import FOLDER, loaded
from tests.client_environment import client_python

pytestmark = pytest.mark.slow

TRAINING = {"kind": "model", "name": "gpt2", "mode": "training", "batch": 16, "sequence": 512, "dtype": "bf16"}
PROGRAM = """
import json, sys, warnings
import sky
from gpucast_skypilot import NEVER_S, TimeEstimator

url, workload, nodes = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
asked = [{"A100-80GB": 1}, {"A100-80GB": 8}, {"L4": 1}, {"V100": 8}, {"K80": 1}, {"L4": 0.5}, None]
task = sky.Task(num_nodes=nodes)
task.set_time_estimator(TimeEstimator(workload, steps=1000, nodes=nodes, url=url))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    found = [task.estimate_runtime(sky.Resources(accelerators=each)) for each in asked]
print(json.dumps({"seconds": found, "never": NEVER_S, "said": [str(one.message) for one in said]}))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """A Python that has SkyPilot, which brings 80 packages, and this client."""
    return client_python("skypilot", "skypilot==0.14.1")


def estimates(python: Path, server: httpx.Client, workload: dict[str, Any], nodes: int, home: Path) -> Any:
    command = [python, "-c", PROGRAM, str(server.base_url), json.dumps(workload), str(nodes)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=home, env={"HOME": str(home), "PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def step_ms(server: httpx.Client, workload: dict[str, Any], gpu: str) -> float:
    found = server.post("/predict", json={"gpu": gpu, "workload": workload}).json()
    return float(found["predictions"][0]["latency_ms"])


def test_a_training_job_is_split_over_the_devices(python: Path, server: httpx.Client, tmp_path: Path) -> None:
    found = estimates(python, server, TRAINING, 2, tmp_path)
    split = TRAINING | {"parallelism": {"data": 16, "nodes": 2}}
    assert found["seconds"][1] == pytest.approx(step_ms(server, split, "a100-sxm4-80gb"), abs=1)
    assert found["seconds"][2] > found["seconds"][0] > found["seconds"][1]
    assert found["seconds"][3:] == [found["never"]] * 4
    v100, k80, half, none = found["said"]
    assert "does not compute in bf16" in v100 and "1 x K80" in k80 and "0.5 x L4" in half and "no accelerator" in none


def test_devices_share_independent_runs(python: Path, server: httpx.Client, tmp_path: Path) -> None:
    workload = TRAINING | {"mode": "inference"}
    one, eight, *_ = estimates(python, server, workload, 1, tmp_path)["seconds"]
    expected = step_ms(server, workload, "a100-sxm4-80gb")
    assert one == pytest.approx(expected, abs=1) and eight == pytest.approx(expected / 8, abs=1)


def test_names_of_accelerators_are_those_of_the_price_catalogues() -> None:
    names = json.loads((SEED_DATA / "cloud_gpu_names.json").read_text("utf-8"))["names"]
    sys.path.insert(0, str(FOLDER))
    try:
        adapter = loaded("gpucast_skypilot")
    finally:
        sys.path.remove(str(FOLDER))
    assert {name: products[min(products, key=float)] for name, products in names.items()} == adapter.ACCELERATORS
    with pytest.raises(ValueError, match="served model"):
        adapter.TimeEstimator({"kind": "serving"})


def test_the_client_package_has_the_version_of_the_service() -> None:
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == __version__
