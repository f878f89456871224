"""Time of answers of kind `serving`: `python -m benchmarks.serving`.

A prediction as POST /predict makes it, by the closed form and simulated at 64 requests in flight; deployments a second
by the closed form alone, in a sweep over splits, lengths and loads; plans over 30 GPU types, whose limit is 2 s of
CPU time on one core; and the requests that take longest, whose limit is 2 s too. `--worst` times these
alone. CPU times are those of this process, the least of a few runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from app.bootstrap.warm import shipped_snapshot
from app.engine.snapshot import Snapshot
from app.services.compare.job_plan import answer_plan
from app.services.compare.request import read_plan
from app.services.serving.deployment import resolve_deployment
from app.services.serving.engines import engines_on
from app.services.serving.load_figures import load_figures
from app.services.serving.predict_serving import predict_serving
from app.steps.timing import StepQuery
from app.wire.job_plan_form import ServingPlanResponse
from app.wire.serving_form import MOST_TRACED, ServingLoad, ServingParallelism, ServingRequest, ServingWorkload

GPU, MODEL = "h100-sxm5-80gb", "llama-3.1-70b"
GPU_TYPES = 30
_RUNS, _WARM_UP, _FEW = 60, 6, 3
_BASE: dict[str, Any] = {"kind": "serving", "name": "llama-3-8b", "software": "vllm"}
_POOL = {"prefill_pool": {"replicas": 1}}
# Requests as extreme as their limits allow: most requests, most steps, most chunks, most rows.
WORST: dict[str, dict[str, Any]] = {
    "65,536 in flight, outputs of 2,000": {"input_tokens": 4, "output_tokens": 2000, "load": {"concurrency": 65_536}},
    "20,000 in flight, prompts of 20,000 in chunks of 16": {
        "software": "sglang",
        "input_tokens": 20_000,
        "output_tokens": 7000,
        "max_batched_tokens": 16,
        "load": {"concurrency": 20_000},
    },
    "5,000 at once in chunks of 16, speculative": {
        "input_tokens": 6000,
        "output_tokens": 24,
        "max_batched_tokens": 16,
        "speculative": {"tokens": 1, "acceptance": 0.7},
        "load": {"burst": 5000},
    },
    "outputs of 1 to 50,000 at 0.1 a second": {
        "input_tokens": 100,
        "output_tokens": 50_000,
        "length_spread": 0.99,
        "load": {"rate_per_s": 0.1},
    },
    "a trace of 20,000 long ones": {
        "load": {
            "trace": {
                "arrival_s": [0.01 * k for k in range(MOST_TRACED)],
                "input_tokens": [20_000 + k for k in range(MOST_TRACED)],
                "output_tokens": [500 + k % 997 for k in range(MOST_TRACED)],
            }
        },
        "max_batched_tokens": 64,
    },
    "speculative, 65,536 in flight": {
        "input_tokens": 512,
        "output_tokens": 4000,
        "speculative": {"tokens": 32, "acceptance": 0.01},
        "load": {"concurrency": 65_536},
    },
    "4,096 replicas": {
        "input_tokens": 512,
        "output_tokens": 512,
        "parallelism": {"replicas": 4096},
        "load": {"concurrency": 65_536},
    },
    "pools, 65,536 in flight": _POOL | {"input_tokens": 512, "output_tokens": 4000, "load": {"concurrency": 65_536}},
    "pools at a rate, chunks of 16": _POOL
    | {"input_tokens": 6000, "output_tokens": 6000, "max_batched_tokens": 16, "load": {"rate_per_s": 0.02}},
    "61 layers of experts, 64 replicas of attention": {
        "name": "deepseek-v3",
        "software": "trtllm",
        "parallelism": {"tensor": 64, "expert": 64, "attention_data": 64, "nodes": 8},
        "input_tokens": 8192,
        "output_tokens": 8192,
        "load": {"concurrency": 65_536},
    },
}


def workload(k: int, method: str) -> ServingWorkload:
    """Return the k-th deployment and load."""
    return ServingWorkload(
        kind="serving",
        name=MODEL,
        dtype="fp8",
        parallelism=ServingParallelism(tensor=(2, 4, 8)[k % 3]),
        input_tokens=1000 + k,
        output_tokens=1000,
        load=ServingLoad(concurrency=64),
        method=method,  # type: ignore[arg-type]
    )


def each_ms(work: Callable[[int], object]) -> float:
    """Return the mean milliseconds of a call, after some that are not counted."""
    for k in range(_WARM_UP):
        work(k)
    start = time.perf_counter()
    for k in range(_WARM_UP, _WARM_UP + _RUNS):
        work(k)
    return (time.perf_counter() - start) / _RUNS * 1e3


def least_cpu_s(work: Callable[[int], object]) -> float:
    """Return the least CPU seconds of a few calls."""
    found = []
    for k in range(_FEW):
        start = time.process_time()
        work(k)
        found.append(time.process_time() - start)
    return min(found)


def main() -> None:
    """Print the times."""
    snapshot = shipped_snapshot()
    if "--worst" not in sys.argv:
        _usual(snapshot)
    _plans(snapshot)
    _worst(snapshot)


def _usual(snapshot: Snapshot) -> None:
    for method in ("closed_form", "simulation"):

        def predicted(k: int, method: str = method) -> object:
            request = ServingRequest(gpu=GPU, workload=workload(k, method))
            return predict_serving(snapshot, request, max_rows=10**6)

        print(f"a prediction, {method}: {each_ms(predicted):.1f} ms")
    print(f"a sweep by the closed form: {1e3 / each_ms(lambda k: _swept(snapshot, k)):.0f} deployments a second")


def _plans(snapshot: Snapshot) -> None:
    plain: dict[str, Any] = {"dtype": "fp8", "kv_dtype": "fp8"}
    asked: dict[str, dict[str, Any]] = {
        f"{MODEL} FP8": plain | {"name": MODEL},
        "llama-3-8b FP8": plain | {"name": "llama-3-8b"},
        "qwen3-30b-a3b BF16, experts": {"name": "qwen3-30b-a3b", "dtype": "bf16"},
    }
    for name, change in asked.items():

        def planned(k: int, gpus: object, change: dict[str, Any] = change) -> ServingPlanResponse:
            lengths = {"input_tokens": 1024 + k, "output_tokens": 512, "load": {"rate_per_s": 12}}
            body = {"workload": _BASE | lengths | change, "gpus": gpus, "ttft_ms": 1000, "tpot_ms": 50}
            answer = answer_plan(snapshot, read_plan(msgspec.json.encode(body)), max_rows=10**6, graphs=None)
            assert isinstance(answer, ServingPlanResponse)
            return answer

        gpus = [choice.gpu for choice in planned(0, "all").choices][:GPU_TYPES]
        seconds = least_cpu_s(partial(planned, gpus=gpus))
        print(f"a plan of {name}, {len(gpus)} GPU types: {seconds:.2f} s of CPU")


def _worst(snapshot: Snapshot) -> None:
    for name, change in WORST.items():
        asked = msgspec.convert(_BASE | change, ServingWorkload)

        def predicted(k: int, asked: ServingWorkload = asked) -> object:
            varied = msgspec.structs.replace(asked, seed=k)
            return predict_serving(snapshot, ServingRequest(gpu=GPU, workload=varied), max_rows=10**6)

        print(f"{name}: {least_cpu_s(predicted):.2f} s of CPU")


def _swept(snapshot: Snapshot, k: int) -> object:
    engine, target = snapshot.engine, snapshot.row_of[GPU]
    deployment = resolve_deployment(workload(k, "closed_form"))
    query = StepQuery(engine, engine.gpus, [target], "auto")
    return load_figures(deployment, engines_on(query, deployment, [engine.catalog.specs[target]])[0])


if __name__ == "__main__":
    main()
