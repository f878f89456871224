"""Operators that `gpucast measure` measured on our H100 and H200, as POST /predict answers them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from app.config import SEED_MEASUREMENTS
from app.engine.snapshot import Snapshot
from app.services.dispatch import predict_workload
from app.wire.predict_body import read_request
from benchmarks.repeats import measured_rows

GPUS = {"h200": "h200-sxm-141gb", "h100": "h100-sxm5-80gb"}
FOLDERS = ("", "host-bound")


class OwnRow(NamedTuple):
    """A measured operator on a GPU, `h200` or `h100`; `row` in the form of the file."""

    gpu: str
    row: dict[str, Any]


def own_rows(*folders: str) -> Iterator[OwnRow]:
    """Yield the measured operators of these folders of seed_data/measurements."""
    for short in GPUS:
        for folder in folders:
            rows = measured_rows(SEED_MEASUREMENTS / folder / f"{short}-operators.parquet")
            yield from (OwnRow(short, row) for row in rows.values())


def predicted_ms(snapshot: Snapshot, own: OwnRow, sizes: dict[str, Any]) -> float:
    """Return the answer of `auto` for one operator, milliseconds."""
    body = {"gpu": GPUS[own.gpu], "workload": {"kind": "operators", "operators": [sizes]}, "predictor": "auto"}
    answer: Any = predict_workload(snapshot, read_request(msgspec.json.encode(body)), max_rows=1, advise=False)
    return float(answer.predictions[0].latency_ms)
