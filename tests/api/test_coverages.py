"""Widths of intervals over coverages: in proportion to the normal quantile, and of operators never narrower."""

from math import log
from typing import Any

import pytest
from fastapi.testclient import TestClient
from scipy.stats import norm

COVERAGES = (0.1, 0.3, 0.5, 0.8, 0.9, 0.95)
LLAMA = {"kind": "model", "name": "llama-3-8b", "batch": 4, "sequence": 512, "dtype": "bf16"}
# Networks with each kind of wait and width, and a served load.
WHOLE = {
    "graph": {"kind": "model", "name": "resnet50", "batch": 32, "software": "cudagraph"},
    "eager": {"kind": "model", "name": "resnet50", "batch": 2},
    "eager-of-a-version": {
        "kind": "model",
        "name": "gpt2",
        "batch": 2,
        "sequence": 128,
        "mode": "training",
        "software": "pytorch-1.0",
    },
    "engine-host": LLAMA | {"mode": "decode", "software": "vllm-0.4.0"},
    "other-version": LLAMA | {"mode": "prefill", "software": "vllm-0.99", "parallelism": {"tensor": 2}},
    "input-copy": {"kind": "model", "name": "resnet50", "batch": 32, "input_copy": "pageable"},
    "served": {
        "kind": "serving",
        "name": "llama-3-8b",
        "software": "sglang",
        "input_tokens": 200,
        "output_tokens": 20,
        "load": {"concurrency": 4},
        "method": "closed_form",
    },
}


def widths(client: TestClient, workload: dict[str, Any], predictor: str, coverage: float) -> tuple[float, float]:
    """Log half-widths of the answer, below and above its time."""
    body = {"gpu": "h100-sxm5-80gb", "workload": workload, "predictor": predictor, "coverage": coverage}
    response = client.post("/predict", json=body)
    assert response.status_code == 200, response.text
    (answer,) = response.json()["predictions"]
    middle, ends = answer["latency_ms"], answer["interval_ms"]
    return log(middle / ends["low"]), log(ends["high"] / middle)


@pytest.mark.parametrize("predictor", ["auto", "roofline"])
@pytest.mark.parametrize("name", WHOLE)
def test_widths_of_whole_answers_follow_the_normal_quantile(client: TestClient, name: str, predictor: str) -> None:
    usual = widths(client, WHOLE[name], predictor, 0.8)
    for coverage in COVERAGES:
        scale = norm.ppf(0.5 + coverage / 2.0) / norm.ppf(0.9)
        expected = [scale * width for width in usual]
        assert widths(client, WHOLE[name], predictor, coverage) == pytest.approx(expected, abs=1e-9)


def test_widths_of_operators_grow_with_the_coverage(client: TestClient) -> None:
    operators = [
        {"op": "linear", "m": 512, "n": 4096, "k": 4096, "dtype": "bf16"},
        {"op": "softmax", "b": 512, "h": 1024, "dtype": "fp16"},
    ]
    workload = {"kind": "operators", "operators": operators}
    each = [widths(client, workload, "auto", coverage) for coverage in COVERAGES]
    assert each == sorted(each, key=lambda pair: pair[0])
    assert [above for _, above in each] == sorted(above for _, above in each)
