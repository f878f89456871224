"""Closed loops of `serving_points`: InferenceX, and others."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from app.errors import NotFound
from app.wire.serving_form import ServingLoad, ServingParallelism, ServingWorkload
from evaluation.serving.cases import Case, Measured
from evaluation.serving.inferencex_settings import inferencex_settings
from evaluation.serving_steps import (
    CONFIG_OF,
    POINTS,
    Point,
    dtype_of,
    kv_dtype_of,
    read_config,
    read_points,
)

INFERENCEX, OTHERS = "inferencex", "others"


def read_closed_loops(folder: Path) -> list[Case]:
    """Return the points of the folder. Raises NotFound without the file."""
    points = read_points(folder)
    told = pq.read_table(folder / POINTS, columns=["ttft_ms", "backend_version"]).to_pylist()
    if len(told) != len(points):
        raise NotFound(f"{POINTS} changed while it was read.")
    configs = {model: read_config(folder, name) for model, name in CONFIG_OF.items()}
    pairs = [(point, more) for point, more in zip(points, told, strict=True) if point.model in configs]
    return [_case(point, more["ttft_ms"], more["backend_version"], configs[point.model]) for point, more in pairs]


def _case(point: Point, ttft_ms: float, version: str | None, config: dict[str, object]) -> Case:
    later = point.output_tokens * (0.9 if point.inferencex else 1.0) - 1.0
    workload = ServingWorkload(
        kind="serving",
        config=config,
        dtype=dtype_of(point),  # type: ignore[arg-type]
        kv_dtype=kv_dtype_of(point),  # type: ignore[arg-type]
        software=f"{point.stack}-{version}" if version else point.stack,
        parallelism=ServingParallelism(
            tensor=point.devices, attention_data=point.attention_data, expert=point.expert_parallel
        ),
        input_tokens=point.input_tokens,
        output_tokens=point.output_tokens,
        length_spread=0.2 if point.inferencex else 0.0,
        load=ServingLoad(concurrency=point.concurrency),
        **(inferencex_settings(point) if point.inferencex else {}),  # type: ignore[arg-type]
    )
    measured = Measured(ttft_ms, point.tpot_ms, ttft_ms + later * point.tpot_ms)
    source = INFERENCEX if point.inferencex else OTHERS
    return Case(
        source, point.model, point.gpu, f"{point.model} {point.precision}", point.stack, point.deployment, workload,
        measured,
    )  # fmt: skip
