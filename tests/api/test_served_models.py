"""Models that are served, over HTTP: every mode and a load are answered, and what cannot be read is 422."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.networks.importers.hf import read
from tests.unit.networks.test_served_models import MODELS, tokens

Body = dict[str, Any]
# One model of each type: the first by name.
ONE_EACH = {model["config"]["model_type"]: name for name, model in reversed(MODELS.items())}


def post(client: TestClient, workload: Body) -> Any:
    body = json.dumps({"gpu": "h100-sxm5-80gb", "workload": workload})
    return client.post("/predict", content=body, headers={"content-type": "application/json"})


def modes(config: Body) -> tuple[str, ...]:
    return ("prefill", "decode") if read(config).generates else ("inference", "training")


@pytest.mark.parametrize("name", ONE_EACH.values(), ids=ONE_EACH)
def test_every_model_type_is_answered(client: TestClient, name: str) -> None:
    config = MODELS[name]["config"]
    size: Body = {} if "patch_size" in config or config["model_type"] == "dinov2" else {"sequence": tokens(config)}
    for mode in modes(config):
        answer = post(client, {"kind": "model", "mode": mode, "batch": 2, "dtype": "bf16", "config": config} | size)
        assert answer.status_code == 200, answer.text[:1000]
        (found,) = answer.json()["predictions"]
        low, high = found["interval_ms"]["low"], found["interval_ms"]["high"]
        assert 0 < low <= found["latency_ms"] <= high
    if "prefill" in modes(config) and len(read(config).stacks) == 1:
        load = {"input_tokens": 512, "output_tokens": 16, "load": {"concurrency": 2}}
        answer = post(client, {"kind": "serving", "software": "vllm", "dtype": "bf16", "config": config} | load)
        assert answer.status_code == 200, answer.text[:1000]
