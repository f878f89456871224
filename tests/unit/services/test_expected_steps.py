"""Steps that simulations take at least, known before they begin: a load that is answered is never refused by them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert

from app.bootstrap.warm import shipped_snapshot
from app.engine.snapshot import GpuRows
from app.services.serving.deployment import resolve_deployment
from app.services.serving.engines import engines_on, expected_steps
from app.services.serving.load_figures import load_figures
from app.steps.timing import StepQuery
from app.wire.serving_form import SERVING_EXAMPLE, ServingRequest


@pytest.mark.parametrize("load", [{"concurrency": 3000}, {"burst": 20_000}, {"concurrency": 1}])
@pytest.mark.parametrize(
    "changes",
    [
        {"input_tokens": 900},
        {"input_tokens": 100_000},
        {"input_tokens": 16, "output_tokens": 10, "length_spread": 0.9, "max_sequences": 16},
        {"input_tokens": 8192, "output_tokens": 1, "max_batched_tokens": 16},
        {"input_tokens": 8192, "software": "trtllm", "max_batched_tokens": 512},
        {"output_tokens": 10, "speculative": {"tokens": 4, "acceptance": 0.9}, "max_sequences": 16},
    ],
)
def test_simulations_take_as_many_steps_as_expected_or_more(load: dict[str, Any], changes: dict[str, Any]) -> None:
    snapshot, workload = shipped_snapshot(), SERVING_EXAMPLE["workload"] | {"load": load} | changes
    request = convert({"gpu": "b200-sxm-180gb", "workload": workload}, ServingRequest)
    rows = GpuRows(snapshot)
    targets = rows.targets(request)
    deployment, spec = resolve_deployment(request.workload), rows.spec(targets[0])
    query = StepQuery(snapshot.engine, rows.table(), targets, request.predictor)
    (engine,) = engines_on(query, deployment, [spec])
    expected = expected_steps(deployment, [spec])
    assert 0 < expected + (load == {"concurrency": 1}) <= max(load_figures(deployment, engine).steps, 1)
