"""Formats of experts that a stack runs on a GPU where nobody asked for theirs, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.networks.builtin import find_config

NARROW = "w4a8_mxfp4_mxfp8"


def step(client: TestClient, gpu: str, software: str, **fields: Any) -> dict[str, Any]:
    """The answer to a prefill of a gpt-oss as it is published."""
    config = find_config("gpt-oss-120b") or {}
    workload = {"kind": "model", "mode": "prefill", "config": config, "batch": 8, "sequence": 2048}
    body = {"gpu": gpu, "workload": workload | {"software": software} | fields, "detail": True}
    answer = client.post("/predict", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["predictions"][0]
    return found


def experts(found: dict[str, Any]) -> set[str]:
    return {row["dtype"] for row in found["operators"] if row["op"] == "moe"}


@pytest.mark.parametrize(
    ("software", "gpu", "dtype"),
    [
        ("trtllm-1.2.0", "b200", NARROW),
        ("trtllm-1.2.0", "gb300", NARROW),
        ("sglang-0.5.6", "b200", NARROW),
        ("vllm-0.15.0", "b200", "w4a16_mxfp4"),
        ("trtllm-1.2.0", "h200-sxm-141gb", "w4a16_mxfp4"),
        ("sglang-0.5.6", "rtx-pro-6000-server", "w4a16_mxfp4"),
    ],
)
def test_activations_of_experts_in_mxfp4_are_those_of_the_stack_on_the_gpu(
    client: TestClient, software: str, gpu: str, dtype: str
) -> None:
    found = step(client, gpu, software)
    assert experts(found) == {dtype}
    assert any(NARROW in text for text in found["warnings"]) is not software.startswith("vllm")


def test_a_format_that_is_asked_for_stays(client: TestClient) -> None:
    found = step(client, "b200", "trtllm-1.2.0", dtype="w4a16_mxfp4")
    assert experts(found) == {"w4a16_mxfp4"}
    assert not any(NARROW in text for text in found["warnings"])
