"""Uploaded steps of networks move and narrow others on their GPU, in every way of asking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from app.bootstrap.assemble import installed_snapshot
from app.config import Settings
from app.services.sweep.chunks import SweepTarget, predict_models

Body = dict[str, Any]
GPU, OTHER = "a100-sxm4-80gb", "h100-sxm5-80gb"
STEP: Body = {
    "kind": "model",
    "name": "resnet50",
    "mode": "inference",
    "batch": 32,
    "image_size": 224,
    "dtype": "fp32",
    "software": "pytorch-2.1",
}
SLOWER = 1.4


def predicted(client: TestClient, gpu: str = GPU, **change: Any) -> Body:
    body = {"gpu": gpu, "workload": STEP | change, "detail": True}
    answer = client.post("/predict", json=body, headers={"cache-control": "no-cache"})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["predictions"][0])


def row(latency_ms: float, **change: Any) -> Body:
    return {
        "gpu": GPU,
        "software": "pytorch-2.1",
        "workload": STEP | change,
        "latency_ms": latency_ms,
        "source": "our benchmark",
    }


def upload(client: TestClient, *rows: Body) -> None:
    report = client.post("/measurements", json=list(rows))
    assert report.status_code == 200, report.text
    assert report.json()["inserted"] == len(rows), report.text


@pytest.fixture(autouse=True)
def _nothing_left(client: TestClient) -> Iterator[None]:
    yield
    assert client.delete("/measurements", params={"kind": "model", "source": "our benchmark"}).status_code == 200


def half_width(answer: Body) -> float:
    ends = answer["interval_ms"]
    return float(np.log(ends["high"] / answer["latency_ms"]))


def test_a_measured_step_moves_and_narrows_its_neighbours(client: TestClient) -> None:
    others: tuple[Body, ...] = ({"batch": 64}, {"name": "vgg16"}, {"batch": 64, "mode": "training"})
    before, elsewhere = [predicted(client, **other) for other in others], predicted(client, OTHER, batch=64)
    step_ms = predicted(client)["latency_ms"]
    upload(client, row(SLOWER * step_ms))
    assert predicted(client)["latency_ms"] == pytest.approx(SLOWER * step_ms)
    after = [predicted(client, **other) for other in others]
    same, model, mode = (now["latency_ms"] / then["latency_ms"] for now, then in zip(after, before, strict=True))
    assert 1.0 < model < same < SLOWER
    assert 1.0 < mode < SLOWER
    assert half_width(after[0]) < half_width(after[1]) < half_width(before[1])
    assert predicted(client, OTHER, batch=64) == elsewhere


def test_what_is_said_to_narrow_narrows(client: TestClient) -> None:
    before = predicted(client, batch=64)
    kinds = {kind["measure"]: kind["half_width"] for kind in before["narrowed_by"]}
    said = kinds["this model on this GPU, at another size or load"]
    assert said == min(kinds.values())
    upload(client, row(1.05 * predicted(client)["latency_ms"]))
    assert half_width(predicted(client, batch=64)) == pytest.approx(said, rel=0.02)


def test_sweeps_learn_as_predictions_do(client: TestClient, settings: Settings) -> None:
    upload(client, row(SLOWER * predicted(client)["latency_ms"]))
    rows = [STEP | {"batch": batch} for batch in (16, 64)]
    table = pa.Table.from_pylist([{name: value for name, value in row.items() if name != "kind"} for row in rows])
    target = SweepTarget(installed_snapshot(settings)[0], GPU, "auto", 0.8)
    swept = [answer["latency_ms"] for answer in predict_models(table, target).to_pylist()]
    assert swept == pytest.approx([predicted(client, batch=row["batch"])["latency_ms"] for row in rows])


def test_a_wild_upload_needs_a_second_one(client: TestClient) -> None:
    before, step_ms = predicted(client, batch=64), predicted(client)["latency_ms"]
    upload(client, row(5.0 * step_ms))
    assert predicted(client, batch=64) == before
    upload(client, row(5.2 * predicted(client, batch=16)["latency_ms"], batch=16))
    assert predicted(client, batch=64)["latency_ms"] > 1.5 * before["latency_ms"]


def test_a_plan_says_what_a_whole_step_would_narrow(client: TestClient) -> None:
    plan = client.post(f"/gpus/{GPU}/plan", json={"workload": STEP, "count": 4})
    assert plan.status_code == 200, plan.text
    assert [kind["measure"] for kind in plan.json()["narrowed_by"]] == [
        kind["measure"] for kind in predicted(client)["narrowed_by"]
    ]
