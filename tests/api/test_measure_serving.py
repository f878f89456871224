"""`gpucast measure --serving --server`: from an endpoint's times to predictions of a running service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.errors import BadInput, GpucastError
from measure.commands import command
from tests.measure.serving_engine import Behaviour, running
from tests.service import Service

pytestmark = pytest.mark.slow
GPU = "h100-sxm5-80gb"
LOAD: dict[str, Any] = {"concurrency": [2], "input_tokens": 512, "output_tokens": 8, "minutes": 0.2}
ENGINE: dict[str, Any] = {"first_s": 0.05, "each_s": 0.01}


def _predicted(service: Service, concurrency: int) -> dict[str, Any]:
    workload = {
        "kind": "serving",
        "name": "llama-3-8b",
        "software": "vllm-0.19.0",
        "input_tokens": 512,
        "output_tokens": 8,
        "length_spread": 0.0,
        "load": {"concurrency": concurrency},
    }
    headers = {"cache-control": "no-cache"}
    answer = service.client.post("/predict", json={"gpu": GPU, "workload": workload}, headers=headers)
    return dict(answer.raise_for_status().json()["predictions"][0])


def test_measured_loads_are_checked_first_and_then_uploaded(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, out = f"http://127.0.0.1:{service.port}", tmp_path / "served.json"
    engine = Behaviour(**ENGINE)
    with running(engine) as url:
        with pytest.raises(BadInput, match="--gpu"):
            command(out=out, serving=url, server=server, tensor=1, **LOAD)
        with pytest.raises(GpucastError, match=r"parallelism\.tensor"):
            command(out=out, serving=url, server=server, gpu=GPU, tensor=3, **LOAD)
        assert engine.bodies == []
        before = _predicted(service, 4)["serving"]["tpot_ms"]["mean"]
        command(out=out, serving=url, server=server, gpu=GPU, tensor=1, **LOAD)
        assert "sent: 1 new, 0 known before" in capsys.readouterr().out
        command(out=out, serving=url, server=server, gpu=GPU, tensor=1, **LOAD)
        assert "sent: 0 new, 1 known before" in capsys.readouterr().out
    answered = _predicted(service, 2)
    assert answered["support"] == "measured"
    assert answered["serving"]["tpot_ms"]["mean"] == pytest.approx(10.0, rel=0.5)
    assert _predicted(service, 4)["serving"]["tpot_ms"]["mean"] != pytest.approx(before, rel=1e-3)
