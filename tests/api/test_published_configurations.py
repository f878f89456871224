"""Official configurations over HTTP, as they are: answered in the formats of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.config import CHECKOUT

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data")) / "model_configs"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the configurations are not on this machine")

Body = dict[str, Any]
SERVED: Body = {
    "kind": "serving",
    "software": "vllm",
    "input_tokens": 2048,
    "output_tokens": 32,
    "load": {"concurrency": 4},
}


def names() -> list[str]:
    files = (path.name for path in DATA.glob("*_config.json") if "hf_quant" not in path.name)
    return sorted(name.removesuffix("_config.json") for name in files)


def configuration(name: str) -> Body:
    """A configuration, beside it the quantisation that its publisher keeps in a file of its own."""
    config: Body = json.loads((DATA / f"{name}_config.json").read_text("utf-8"))
    beside = DATA / f"{name}_hf_quant_config.json"
    if beside.exists():
        config.pop("quantization_config", None)
        config["quantization"] = json.loads(beside.read_text("utf-8"))["quantization"]
    return config


def ask(client: TestClient, workload: Body) -> Body:
    body = json.dumps({"gpu": "b300-sxm6-270gb", "workload": workload})
    answer = client.post("/predict", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text[:2000]
    (found,) = answer.json()["predictions"]
    return dict(found)


def is_quantised(config: Body) -> bool:
    parts = (config, config.get("text_config") or {})
    return any(part.get(field) for part in parts for field in ("quantization_config", "quantization"))


@pytest.mark.parametrize("name", names())
def test_every_configuration_is_answered_in_its_own_formats(client: TestClient, name: str) -> None:
    config = configuration(name)
    split: Body = {"config": config, "parallelism": {"tensor": 8}}
    for mode in ("prefill", "decode"):
        found = ask(client, {"kind": "model", "mode": mode, "sequence": 2048} | split)
        assert found["latency_ms"] > 0
        assert is_quantised(config) == any("formats" in warning for warning in found["warnings"])
    served = ask(client, SERVED | split)
    assert served["serving"]["tpot_ms"]["mean"] > 0
