"""Slices of a GPU by their profiles, as any `gpu` of a request."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

DECODE = {"kind": "model", "name": "llama-3.2-3b", "mode": "decode", "batch": 4, "sequence": 1024, "dtype": "bf16"}


def predicted(client: TestClient, gpu: str, **fields: Any) -> dict[str, Any]:
    answer = client.post("/predict", json={"gpu": gpu, "workload": DECODE | fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["predictions"][0])


@pytest.mark.parametrize("gpu", ["h100-sxm5-80gb:3g.40gb", "H100:3g.40GB", "a100-sxm4-80gb:3g.40gb"])
def test_a_slice_of_half_the_memory_decodes_at_half_the_bandwidth(client: TestClient, gpu: str) -> None:
    whole, part = predicted(client, gpu.partition(":")[0]), predicted(client, gpu)
    assert part["gpu"].endswith(":3g.40gb")
    assert part["memory"]["capacity_bytes"] == 40 * 2**30
    assert 1.4 < part["latency_ms"] / whole["latency_ms"] < 2.6
    width = [row["interval_ms"]["high"] / row["interval_ms"]["low"] for row in (whole, part)]
    assert width[1] > width[0]


def test_smaller_slices_take_longer(client: TestClient) -> None:
    names = [f"h200-sxm-141gb:{name}" for name in ("1g.18gb", "2g.35gb", "3g.71gb", "7g.141gb")]
    times = [predicted(client, name)["latency_ms"] for name in names]
    assert times == sorted(times, reverse=True)


def test_a_slice_of_a_family_is_one_of_the_most_rented_product(client: TestClient) -> None:
    codes = [one["code"] for one in predicted(client, "H100:3g.40gb")["warning_codes"]]
    assert "gpu_assumed" in codes
    assert "gpu_assumed" not in [one["code"] for one in predicted(client, "h100-sxm5-80gb:3g.40gb")["warning_codes"]]
    body = {"gpu": "H100:3g.40gb", "workload": DECODE, "strict_names": True}
    answer = client.post("/predict", json=body)
    assert answer.status_code == 404 and "h100-sxm5-80gb:3g.40gb" in answer.text


def test_another_profile_is_refused_with_those_that_there_are(client: TestClient) -> None:
    answer = client.post("/predict", json={"gpu": "h100:3g.90gb", "workload": DECODE})
    assert answer.status_code == 404
    assert "h100-sxm5-80gb:3g.40gb" in answer.text


def test_slices_exchange_through_the_host(client: TestClient) -> None:
    def exchanges_ms(gpu: str) -> float:
        parts = predicted(client, gpu, parallelism={"tensor": 2})["breakdown"]
        return sum(float(part["latency_ms"]) for part in parts if part["group"] == "collective")

    assert exchanges_ms("h100-sxm5-80gb:3g.40gb") > 1.2 * exchanges_ms("h100-sxm5-80gb") > 0.0
