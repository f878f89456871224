"""Kernels of which several configurations were measured on several GPUs, asked over HTTP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from scipy.stats import spearmanr

_DRAWN = 6
SOURCE, TARGET = "rtx-2080-ti", "rtx-3090"
KERNEL = {
    "kind": "kernel",
    "name": "drawn",
    "flops": 5e10,
    "bytes": 1e8,
    "working_set_bytes": 1e8,
    "shared_memory_per_block": 0,
    "access_pattern": "coalesced",
    "dtype": "fp32",
}
COPY = KERNEL | {"flops": 0, "bytes": 2e9, "working_set_bytes": 2e9, "threads_per_block": 256, "blocks": 10**6}
SHAPES = [
    {"threads_per_block": threads, "blocks": 2**22 // threads // tile, "registers_per_thread": 24 + 4 * tile}
    for threads in (64, 128, 256, 512)
    for tile in (1, 2, 4, 8)
]


def ask(client: TestClient, workload: dict[str, Any], gpu: str = TARGET) -> dict[str, Any]:
    answer = client.post("/predict", json={"gpu": gpu, "workload": workload})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["predictions"][0]
    return found


def drawn(seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Milliseconds of every shape on SOURCE and TARGET: what a shape costs differs by 0.5, its ratio by 0.1."""
    draw = np.random.default_rng(seed)
    source = 10.0 * np.exp(draw.normal(0.0, 0.5, len(SHAPES)))
    return source, source * np.exp(draw.normal(-0.3, 0.3) + draw.normal(0.0, 0.1, len(SHAPES)))


@pytest.mark.parametrize("both", [True, False])
def test_rows_measured_on_the_target_do_no_harm(client: TestClient, both: bool) -> None:
    """On average over drawn kernels; rows of the target alone draw answers to one level, but not out of order."""
    known = range(0, len(SHAPES), 3)
    asked = [k for k in range(len(SHAPES)) if k not in known]
    errors, orders = np.zeros(2), np.zeros(2)
    for seed in range(_DRAWN):
        times = dict(zip((SOURCE, TARGET), drawn(seed), strict=True))
        others = [
            SHAPES[k] | {"gpu": gpu, "latency_ms": float(of[k])}
            for k in known
            for gpu, of in times.items()
            if both or gpu == TARGET
        ]
        for way, more in enumerate(([], others)):
            found = [
                ask(client, KERNEL | SHAPES[k] | {"measured": [{"gpu": SOURCE, "latency_ms": times[SOURCE][k]}, *more]})
                for k in asked
            ]
            predicted = np.array([one["latency_ms"] for one in found])
            errors[way] += np.abs(np.log(predicted / times[TARGET][asked])).mean() / _DRAWN
            orders[way] += spearmanr(predicted, times[TARGET][asked])[0] / _DRAWN
    assert errors[1] < (0.7 if both else 1.0) * errors[0]
    assert orders[1] > orders[0] - (0.05 if both else 0.15)


@pytest.mark.parametrize(("source", "target"), [(SOURCE, "titan-rtx"), ("rtx-a6000", TARGET)])
def test_the_order_of_configurations_is_that_of_the_source(client: TestClient, source: str, target: str) -> None:
    times, _ = drawn(9)
    found = [
        ask(client, KERNEL | shape | {"measured": [{"gpu": source, "latency_ms": float(time)}]}, target)["latency_ms"]
        for shape, time in zip(SHAPES, times, strict=True)
    ]
    assert spearmanr(found, times)[0] > 0.99


@pytest.mark.parametrize(("source", "target"), [(SOURCE, TARGET), (TARGET, SOURCE)])
def test_intervals_lie_around_the_answer_in_both_directions(client: TestClient, source: str, target: str) -> None:
    found = ask(client, KERNEL | SHAPES[0] | {"measured": [{"gpu": source, "latency_ms": 20.0}]}, target)
    low, high = (found["interval_ms"][end] / found["latency_ms"] for end in ("low", "high"))
    assert low * high == pytest.approx(1.0, rel=0.01)
    assert 1.2 < high < 1.6


def test_compilers_of_two_vendors_make_a_wide_interval(client: TestClient) -> None:
    measured = {"measured": [{"gpu": "rtx-a6000", "latency_ms": 20.0}]}
    found = ask(client, KERNEL | SHAPES[0] | measured, "amd-instinct-mi210")
    assert found["interval_ms"]["high"] > 5.0 * found["latency_ms"]


@pytest.mark.parametrize("change", [{}, {"access_pattern": "strided"}, {"lane_operations": 1e9}, {"bytes": 4096}])
@pytest.mark.parametrize("measured", [[], [{"gpu": SOURCE, "latency_ms": 50.0}]])
def test_what_computes_nothing_is_bound_by_memory(
    client: TestClient, change: dict[str, Any], measured: list[dict[str, Any]]
) -> None:
    workload = COPY | {"registers_per_thread": 16, "measured": measured} | change
    assert {ask(client, workload, gpu)["bound"] for gpu in (SOURCE, TARGET, "h100-sxm5-80gb")} == {"memory"}


@pytest.mark.parametrize("gpu", [SOURCE, "a100-sxm4-80gb", "mi300x"])
def test_copies_that_nobody_measured_are_known_within_a_factor_of_two(client: TestClient, gpu: str) -> None:
    found = ask(client, COPY | {"registers_per_thread": 16}, gpu)
    assert found["interval_ms"]["high"] < 2.0 * found["interval_ms"]["low"]


def test_of_many_rows_those_of_the_same_launch_count_most(client: TestClient) -> None:
    many = [
        {"gpu": TARGET, "latency_ms": 5.0 + 0.01 * k, "blocks": 1000 + k, "threads_per_block": 256} for k in range(200)
    ]
    fast, slow = (
        ask(client, KERNEL | SHAPES[0] | {"measured": [*many, {"gpu": SOURCE, "latency_ms": milliseconds}]})
        for milliseconds in (5.0, 20.0)
    )
    assert slow["latency_ms"] > 1.5 * fast["latency_ms"]


@pytest.mark.parametrize("shared", [0, 8192])
def test_threads_of_more_outputs_load_less_for_each(client: TestClient, shared: int) -> None:
    shape = {"threads_per_block": 256, "blocks": 4096, "shared_memory_per_block": shared}
    few, many = (ask(client, KERNEL | shape | {"registers_per_thread": r})["latency_ms"] for r in (32, 120))
    assert 1.5 * many < few
