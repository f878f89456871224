"""`gpucast import serving` as a process: from files of a benchmark to another prediction of the running service."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.config import CHECKOUT, Settings
from tests.forked import run_command

DATA = CHECKOUT / "tests" / "unit" / "formats" / "data" / "serving"
GPU = "h100-sxm5-80gb"
DEPLOYMENT = ("--gpu", GPU, "--image", "vllm/vllm-openai:v0.19.0", "--tensor", "1", "--dtype", "bf16")


def _import(settings: Settings, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command("import", *words, env=os.environ | settings.environment())


def _predicted(client: TestClient, concurrency: int, spread: float = 0.0) -> dict[str, Any]:
    workload = {
        "kind": "serving",
        "name": "llama-3-8b",
        "dtype": "bf16",
        "software": "vllm-0.19.0",
        "input_tokens": 1024,
        "output_tokens": 256,
        "length_spread": spread,
        "load": {"concurrency": concurrency},
    }
    body = {"gpu": GPU, "workload": workload}
    answer = client.post("/predict", json=body, headers={"cache-control": "no-cache"})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["predictions"][0])


@pytest.mark.slow
def test_imported_results_answer_their_load_and_shift_others(client: TestClient, settings: Settings) -> None:
    before = _predicted(client, 32)["serving"]["tpot_ms"]["mean"]
    files = [str(DATA / name) for name in ("vllm.json", "benchmarks.json")]
    done = _import(settings, "serving", *files, *DEPLOYMENT)
    assert done.returncode == 0, done.stderr
    assert "skipped benchmarks.json:3: 10 of 100 requests failed" in done.stdout
    assert "4 rows: 2 new, 0 already stored, 2 skipped" in done.stdout
    assert "2 already stored" in _import(settings, "serving", *files, *DEPLOYMENT).stdout
    until = time.monotonic() + 30.0
    while _predicted(client, 16)["support"] != "measured" and time.monotonic() < until:
        time.sleep(0.1)
    measured = _predicted(client, 16)
    assert measured["support"] == "measured"
    assert measured["serving"]["ttft_ms"]["mean"] == pytest.approx(121.0)
    assert measured["serving"]["tpot_ms"]["mean"] == pytest.approx(15.0)
    assert _predicted(client, 32)["serving"]["tpot_ms"]["mean"] != pytest.approx(before, rel=1e-3)
    listed = client.get("/measurements", params={"kind": "serving"}).json()["items"]
    assert {row["source"] for row in listed} == {
        f"{tool}, vllm/vllm-openai:v0.19.0" for tool in ("guidellm", "vllm bench serve")
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("serving", "vllm.json", "--tensor", "1"), "--gpu"),
        (("serving", "vllm.json", "--gpu", GPU, "--software", "vllm-0.19.0"), "--tensor"),
        (("serving", "vllm.json", *DEPLOYMENT, "--work", "vllm.json"), "--work"),
        (("timm", "vllm.json", "--tensor", "1"), "apply to serving"),
        (("measurements", "vllm.json", "benchmarks.json"), "by itself"),
    ],
)
def test_bad_calls_name_the_option_and_store_nothing(settings: Settings, words: tuple[str, ...], message: str) -> None:
    called = [str(DATA / word) if word.endswith(".json") else word for word in words]
    refused = _import(settings, *called)
    assert refused.returncode == 1
    assert message in refused.stderr
