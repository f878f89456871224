"""What must grow grows: a step with one sequence more, with twice as many, or with one token more takes no less time.

Kernels are no smoother than a tenth: a token more may fill a tile, or choose a quicker kernel, as was measured too.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from fastapi.testclient import TestClient

GPUS = ("h100-sxm5-80gb", "h200-sxm-141gb", "b200", "gb200", "mi300x", "mi355x", "a100-sxm4-80gb", "l40s")
NETWORKS = ("llama-3.1-70b", "llama-3.1-8b", "deepseek-v3", "qwen3-30b-a3b", "gpt-oss-120b", "qwen3-32b")
RELEASES = ("vllm", "vllm-0.19", "sglang", "sglang-0.5.9", "trtllm", "trtllm-1.0")
BATCHES, LENGTHS = (1, 2, 3, 4, 7, 8, 16, 31, 32, 64, 127, 128, 256), (128, 512, 1000, 4096, 8191)
LEAST = 0.9


def drawn(number: int) -> dict[str, Any]:
    draw = random.Random(number)
    dtype = draw.choice((None, "fp8", "bf16"))
    workload = {
        "kind": "model",
        "mode": draw.choice(("decode", "prefill")),
        "name": draw.choice(NETWORKS),
        "software": draw.choice(RELEASES),
        "batch": draw.choice(BATCHES),
        "sequence": draw.choice(LENGTHS),
        "parallelism": {"tensor": 8},
    }
    return {"gpu": draw.choice(GPUS), "workload": workload | ({"dtype": dtype} if dtype else {})}


def is_measured_so(asked: dict[str, Any]) -> bool:
    """vLLM's FP8 product of one row on Blackwell: its CUTLASS kernel was measured at 2.2 times the time of two rows."""
    workload = asked["workload"]
    one = workload["batch"] == 1 and workload["mode"] == "decode" and workload["software"].startswith("vllm")
    return one and asked["gpu"] in ("b200", "gb200") and workload.get("dtype") == "fp8"


@pytest.mark.parametrize("number", range(60))
def test_a_step_with_more_to_do_takes_no_less_time(client: TestClient, number: int) -> None:
    asked = drawn(number)
    workload = asked["workload"]

    def milliseconds(**change: float) -> float | None:
        answer = client.post("/predict", json=asked | {"workload": workload | change})
        assert answer.status_code in (200, 422), answer.text  # a GPU without a format says so
        time: float | None = answer.json()["predictions"][0]["latency_ms"] if answer.status_code == 200 else None
        return time

    batch, sequence = workload["batch"], workload["sequence"]
    first = milliseconds()
    changes: list[dict[str, float]] = [{"batch": batch + 1}, {"batch": 2 * batch}, {"sequence": sequence + 1}]
    if first is None or is_measured_so(asked):
        return
    for change in changes:
        more = milliseconds(**change)
        assert more is not None and more >= LEAST * first, change
