"""Grouped requests get the responses that they get alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.bootstrap.warm import warm
from app.engine.catalogue import load_seed_specs
from app.engine.engine import Engine, KernelIndex
from app.engine.engine import _fill as finish
from app.engine.snapshot import Snapshot
from app.errors import BadInput, GpucastError, NotFound, NotTrained
from app.predictors.auto.kernels.launch_time import fill_times
from app.predictors.roofline import _fill as limit
from app.services.kernels.predict_kernels import predict_kernel, predict_kernels
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.wire.kernel_tables import tables_with_measured
from app.wire.kernel_workload import KERNEL_EXAMPLE
from app.wire.predict_body import read_request
from app.wire.prediction_form import PredictRequest, PredictResponse

BASE = {"workload": KERNEL_EXAMPLE, "gpu": "rtx-4070"}
SKETCH = {
    "name": "Sketch",
    "compute_capability": "8.9",
    "sm_count": 92,
    "boost_clock_hz": 2.4e9,
    "memory_bytes": 24e9,
    "memory_bandwidth_bytes_per_s": 1e12,
}


def asked(**changes: Any) -> PredictRequest:
    return read_request(json.dumps(BASE | changes).encode())


def kernel(**changes: Any) -> dict[str, Any]:
    return KERNEL_EXAMPLE | changes


def stored(specs: list[Any], rows: int) -> KernelIndex:
    """That many measurements of the example kernel, on as many GPUs as there are."""
    measured = [{"gpu": "x", "latency_ms": 0.5 + k / rows, "blocks": 64 + k} for k in range(rows)]
    workload = asked(workload=kernel(name="stored", measured=measured)).workload
    _, table = tables_with_measured([workload], [k % len(specs) for k in range(rows)])
    return KernelIndex.build(Measurements(table.ops, table.gpu, table.latency_s))


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    specs = load_seed_specs()
    return Snapshot.of(Engine(Catalog(specs), GpuTable.from_specs(specs), kernels=stored(specs, 200)))


REQUESTS = (
    asked(),
    asked(workload=kernel(measured=[])),
    asked(gpu="titan-v", predictor="efficiency"),
    asked(coverage=0.5),
    asked(gpu=None, gpus=["titan-v", "rtx-4070"]),
    asked(gpu=None, gpus="all", workload=kernel(dtype="bf16", measured=[])),
    asked(gpu="no-such"),
    asked(gpu=SKETCH),
    asked(workload=kernel(threads_per_block=2048)),
    asked(workload=kernel(measured=[{"gpu": SKETCH, "latency_ms": 0.5}]), detail=True),
    asked(predictor="forest"),
    asked(workload=kernel(name="stored", measured=[])),
    asked(gpu=None, gpus="all", workload=kernel(name="stored", measured=[])),
    asked(workload=kernel(measured=[{"gpu": "titan-v", "latency_ms": 1e-3}])),
)


def alone(snapshot: Snapshot, request: PredictRequest) -> PredictResponse | tuple[type, str]:
    try:
        return predict_kernel(snapshot, request)
    except GpucastError as error:
        return type(error), error.detail


@pytest.mark.parametrize("order", [1, -1])
def test_grouped_requests_equal_single_ones(snapshot: Snapshot, order: int) -> None:
    requests = REQUESTS[::order]
    together = [
        (type(answer), answer.detail) if isinstance(answer, GpucastError) else answer
        for answer in predict_kernels(snapshot, requests)
    ]
    assert together == [alone(snapshot, request) for request in requests]


def test_an_invalid_request_does_not_affect_the_others(snapshot: Snapshot) -> None:
    kinds = [type(answer) for answer in predict_kernels(snapshot, REQUESTS)]
    wrong = {6: NotFound, 8: BadInput, 10: NotTrained}
    assert kinds == [wrong.get(k, PredictResponse) for k in range(len(REQUESTS))]


def test_no_request_after_the_warm_up_compiles_anything(snapshot: Snapshot) -> None:
    warm(snapshot)
    compiled = [len(function.signatures) for function in (fill_times, finish, limit)]
    predict_kernels(snapshot, REQUESTS)
    for request in REQUESTS:
        alone(snapshot, request)
    assert [len(function.signatures) for function in (fill_times, finish, limit)] == compiled


def test_no_requests_give_no_responses(snapshot: Snapshot) -> None:
    assert predict_kernels(snapshot, []) == []
