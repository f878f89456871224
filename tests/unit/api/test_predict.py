"""Which predictions are long, so that they wait for one another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.api.predict import is_long
from app.wire.predict_body import read_request
from app.wire.serving_form import SERVING_EXAMPLE

SERVED = SERVING_EXAMPLE["workload"]
NETWORK = {"kind": "model", "name": "resnet50", "batch": 8, "dtype": "fp16"}
GPU = {"gpu": "nvidia-l4"}


def operators(count: int) -> dict[str, Any]:
    rows = [{"op": "linear", "dtype": "fp16", "m": 1 + k, "n": 8, "k": 8} for k in range(count)]
    return {"kind": "operators", "operators": rows}


@pytest.mark.parametrize(
    ("body", "long"),
    [
        ({"gpus": "all", "workload": SERVED}, True),
        (GPU | {"workload": SERVED}, False),
        ({"gpus": "all", "workload": NETWORK}, False),
        ({"gpus": ["nvidia-l4"] * 10, "detail": True, "workload": operators(1000)}, True),
        (GPU | {"workload": operators(1000)}, False),
    ],
)
def test_what_takes_over_a_tenth_of_a_second(body: dict[str, Any], long: bool) -> None:
    assert is_long(read_request(json.dumps(body).encode())) == long
