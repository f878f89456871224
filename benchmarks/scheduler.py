"""How long the kube-scheduler waits for gpucast: a pod and a hundred nodes of four types of GPU.

    python -m benchmarks.scheduler

Processor time from bytes to answer, the least of many repeats, on the predictors that ship and an embedded database.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from app.bootstrap.assemble import assemble_for
from app.bootstrap.runtime import open_runtime
from app.config import Settings
from app.engine.snapshot import Snapshot
from app.services.compare.compare import compare
from app.services.scheduling.extender import WORKLOAD, filter_pod_nodes, read_extender_args, score_nodes
from app.wire.compare_form import CompareRequest, CompareResponse

GOAL_MS, REPEATS, NODES = 5.0, 50, 100
PRODUCTS = ("NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "NVIDIA-L4", "Tesla-V100-SXM2-32GB")
WORKLOADS = {
    "a model in training": {"kind": "model", "name": "gpt2", "mode": "training", "batch": 8, "sequence": 1024},
    "an operator": {"kind": "operators", "operators": [{"op": "linear", "m": 4096, "n": 4096, "k": 4096}]},
}


def main() -> None:
    """Print each answer's time beside the goal; exit 1 if one is missed."""
    with tempfile.TemporaryDirectory() as folder, open_runtime(Settings(data_dir=Path(folder))) as runtime:
        engine, _ = assemble_for(runtime)
    snapshot, missed = Snapshot.of(engine), []
    for what, workload in WORKLOADS.items():
        body = _question(workload)
        for verb, answer in (("filter", filter_pod_nodes), ("prioritize", score_nodes)):
            took = _least_ms(lambda: msgspec.json.encode(answer(read_extender_args(body), snapshot, _compared)))  # noqa: B023
            print(f"{what + ',':<22}{verb:<12}{took:>8.2f} ms   goal {GOAL_MS:.0f}", flush=True)
            missed.append(took > GOAL_MS)
    sys.exit(any(missed))


def _question(workload: object) -> bytes:
    nodes = [
        {"metadata": {"name": f"node-{k}", "labels": {"nvidia.com/gpu.product": PRODUCTS[k % len(PRODUCTS)]}}}
        for k in range(NODES)
    ]
    pod = {"metadata": {"annotations": {WORKLOAD: json.dumps(workload)}}}
    return msgspec.json.encode({"Pod": pod, "Nodes": {"items": nodes}})


def _compared(snapshot: Snapshot, request: CompareRequest) -> CompareResponse:
    return compare(snapshot, request, max_rows=1_000_000)


def _least_ms(run: Callable[[], object]) -> float:
    fastest = float("inf")
    for _ in range(REPEATS):
        began = time.process_time()
        run()
        fastest = min(fastest, time.process_time() - began)
    return fastest * 1e3


if __name__ == "__main__":
    main()
