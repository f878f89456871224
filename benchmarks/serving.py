"""Time of answers of kind `serving`: `python -m benchmarks.serving`.

A prediction as POST /predict makes it, by the closed form and simulated at 64 requests in flight; and deployments a
second by the closed form alone, in a sweep over splits, lengths and loads.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from app.bootstrap.warm import shipped_snapshot
from app.engine.gpu_rows import Snapshot
from app.services.serving.deployment import resolve_deployment
from app.services.serving.engines import engines_on
from app.services.serving.load_figures import load_figures
from app.services.serving.predict_serving import predict_serving
from app.services.serving.step_tables import TableQuery
from app.wire.serving_form import ServingLoad, ServingParallelism, ServingRequest, ServingWorkload

GPU, MODEL = "h100-sxm5-80gb", "llama-3.1-70b"
_RUNS = 60


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
    for k in range(6):
        work(k)
    start = time.perf_counter()
    for k in range(6, 6 + _RUNS):
        work(k)
    return (time.perf_counter() - start) / _RUNS * 1e3


def main() -> None:
    """Print the times."""
    snapshot = shipped_snapshot()
    for method in ("closed_form", "simulation"):

        def predicted(k: int, method: str = method) -> object:
            request = ServingRequest(gpu=GPU, workload=workload(k, method))
            return predict_serving(snapshot, request, max_rows=10**6)

        print(f"a prediction, {method}: {each_ms(predicted):.1f} ms")
    print(f"a sweep by the closed form: {1e3 / each_ms(lambda k: _swept(snapshot, k)):.0f} deployments a second")


def _swept(snapshot: Snapshot, k: int) -> object:
    engine, target = snapshot.engine, snapshot.row_of[GPU]
    deployment = resolve_deployment(workload(k, "closed_form"))
    query = TableQuery(engine, engine.gpus, [target], "auto")
    return load_figures(deployment, engines_on(query, deployment, [engine.catalog.specs[target]])[0])


if __name__ == "__main__":
    main()
