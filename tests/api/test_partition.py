"""POST /partition and `gpucast partition`: PM2Lat's example, memory, links, invalid requests."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.config import Settings
from app.wire.network_form import PARTITION_EXAMPLE
from tests.forked import run_command

pytestmark = pytest.mark.slow

# Section IV-D 1: Qwen3-4B in BF16, batch 8, over an RTX 3060 Mobile and an RTX 5070. The text does not say how long the
# sequences were, nor the link: 512 tokens over the cards' own links give about the 622 ms a request that the paper
# measured, cut after block 12. The products of attention ran apart, as it times them.
QWEN = {
    "kind": "model", "name": "qwen3-4b", "mode": "inference", "batch": 8, "sequence": 512, "dtype": "bf16",
    "attention": "eager",
}  # fmt: skip
PM2LAT = {"gpus": ["rtx-3060-mobile", "rtx-5070"], "workload": QWEN}
SLOW_LINK = {"link_bandwidth_bytes_per_s": 1.25e8}
MEASURED_MS, MEASURED_CUT = 622.0, 12


def ask(client: TestClient, **changes: Any) -> dict[str, Any]:
    answer = client.post("/partition", json=PM2LAT | changes)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["partition"])


def test_the_example_of_the_paper(client: TestClient) -> None:
    found = ask(client)
    first, second = found["stages"]
    layers = int(first["last"].removeprefix("layer "))
    assert abs(layers - MEASURED_CUT) <= 2
    assert found["bottleneck_ms"] == pytest.approx(MEASURED_MS, rel=0.18)
    interval = found["bottleneck_interval_ms"]
    assert interval["low"] < MEASURED_MS < interval["high"]
    assert second["last_unit"] == found["units"] - 1 and second["first"] == f"layer {layers + 1}"
    # 8 x 512 activations of 2,560 numbers of 2 bytes.
    assert first["sent_bytes"] == 8 * 512 * 2560 * 2
    assert found["fits"] and found["latency_ms"] == pytest.approx(first["latency_ms"] + second["latency_ms"])
    assert found["throughput_per_s"] == pytest.approx(8e3 / found["bottleneck_ms"])


def test_the_network_fits_on_neither_gpu_alone(client: TestClient) -> None:
    answer = client.post("/partition", json=PM2LAT).json()
    assert answer["alone_ms"][0] is None


def test_the_faster_gpu_first_takes_more(client: TestClient) -> None:
    there, back = ask(client), ask(client, gpus=["rtx-5070", "rtx-3060-mobile"])
    assert back["stages"][0]["last_unit"] > there["stages"][0]["last_unit"]


def test_three_gpus_are_faster_than_two(client: TestClient) -> None:
    three = ask(client, gpus=["rtx-3060-mobile", "rtx-5070", "rtx-5070"])
    assert len(three["stages"]) == 3 and three["bottleneck_ms"] < ask(client)["bottleneck_ms"]


def test_a_slow_link_adds_its_transfer_time(client: TestClient) -> None:
    second = ask(client, **SLOW_LINK)["stages"][1]
    assert second["transfer_ms"] == pytest.approx(8 * 512 * 2560 * 2 / 1.25e8 * 1e3 + 0.02)
    assert ask(client, link_bandwidth_bytes_per_s=1e7)["bottleneck_ms"] > 1.5 * ask(client)["bottleneck_ms"]


def test_a_convnet_is_cut_between_operators(client: TestClient) -> None:
    workload = {"kind": "model", "name": "resnet50", "mode": "inference", "batch": 32, "dtype": "fp32"}
    found = ask(client, workload=workload, gpus=["nvidia-l4", "tesla-t4"])
    assert found["stages"][0]["last_unit"] + 1 == found["stages"][1]["first_unit"]


@pytest.mark.parametrize(
    ("change", "loc"),
    [
        ({"gpus": ["nvidia-l4"]}, ["gpus"]),
        ({"gpus": ["nvidia-l4"] * 17}, ["gpus"]),
        ({"gpus": ["nvidia-l4", "no such"]}, ["gpus", 1]),
        ({"link_bandwidth_bytes_per_s": 0}, ["link_bandwidth_bytes_per_s"]),
        ({"link_latency_ms": -1}, ["link_latency_ms"]),
        ({"speed": 1}, ["speed"]),
        ({"workload": {"kind": "operators", "operators": [{"op": "memory", "bytes": 8}]}}, ["workload", "kind"]),
        ({"workload": QWEN | {"mode": "training"}}, ["workload"]),
        ({"workload": QWEN | {"batch": 0}}, ["workload", "batch"]),
        ({"workload": QWEN | {"parallelism": {"tensor": 2}}}, ["workload"]),
        ({"workload": QWEN | {"name": "no such"}}, ["workload", "name"]),
        ({"workload": QWEN | {"dtype": "nvfp4"}}, ["workload", "dtype"]),
    ],
)
def test_bad_input_names_the_field(client: TestClient, change: dict[str, Any], loc: list[str | int]) -> None:
    answer = client.post("/partition", json=PM2LAT | change)
    assert answer.status_code in (404, 422)
    assert loc in [error["loc"] for error in answer.json()["errors"]]


@pytest.mark.parametrize("coverage", [5e-324, 0.8, 1.0 - 2.0**-53])
def test_the_example_of_the_schema_is_answered(client: TestClient, coverage: float) -> None:
    assert client.post("/partition", json=PARTITION_EXAMPLE | {"coverage": coverage}).status_code == 200


def test_the_command_equals_the_route(client: TestClient, settings: Settings) -> None:
    options = ("--batch=8", "--sequence=512", "--link-gb-per-s=0.125", "--json")
    gpus = [f"--gpu={gpu}" for gpu in PM2LAT["gpus"]]  # type: ignore[union-attr]
    done = run_command("partition", "qwen3-4b", *gpus, *options, env=os.environ | settings.environment())
    assert done.returncode == 0, done.stderr
    body = PM2LAT | SLOW_LINK | {"workload": QWEN | {"attention": None, "dtype": None}}
    assert json.loads(done.stdout) == client.post("/partition", json=body).json()
