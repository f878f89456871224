"""What tests of learned operators share: five GPUs, a law that their times follow, and who learned it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from app.bands.groups import SITUATIONS
from app.predictors.auto.operators.models.gaussian_process import Places
from app.predictors.auto.predictor import Auto
from app.predictors.physics.analytic_model import DRAM_S, TERMS
from app.tables.gpus import GpuTable
from app.tables.measurements import OperatorRuns
from app.tables.ops import OpTable
from tests.unit.kernels import TURING, VOLTA
from tests.unit.measured import measured, no_evidence, random_shapes

TWIN = replace(TURING, id="twin", memory_bandwidth_bytes_per_s=700e9)
OTHER = replace(VOLTA, id="other", architecture="other")
THIRD = replace(VOLTA, id="third", architecture="third", memory_bandwidth_bytes_per_s=600e9)
_FIVE = TURING, replace(VOLTA, architecture="volta"), TWIN, OTHER, THIRD
# Joined by links, over which siblings learn collectives from one another: in slots they do not.
GPUS = GpuTable.from_specs([replace(spec, link_bandwidth_bytes_per_s=300e9) for spec in _FIVE])
SEEN, SEEN_TOO, SIBLING, UNSEEN, SEEN_THREE = range(5)
FIRST = Places(np.array([0]), np.ones(1))


def law(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
    """Untrained physics, a third slower, and slower still for deep products."""
    physics = untrained(ops, gpu, gpus)
    depth = ops.column("k") if "k" in ops.fields else ops.column("h")
    return physics * 1.33 * np.where(depth > 600, 1.5, 1.0)


def untrained(ops: OpTable, gpu: Any, gpus: GpuTable = GPUS) -> Any:
    """Untrained physics on a GPU per row."""
    return Auto().predict(ops, gpus, np.arange(len(gpu)), gpu, evidence=no_evidence(ops)).latency_s


def runs(op: str, names: str, count: int, on: tuple[int, ...], seed: int = 0) -> OperatorRuns:
    return measured(op, random_shapes(names, count, seed=seed), GPUS, on, law)


@cache
def trained_auto() -> Auto:
    """`auto` trained once a process on products of three GPUs and softmax of one."""
    products, softmax = runs("linear", "mnk", 900, (SEEN, SEEN_TOO, SEEN_THREE)), runs("softmax", "bh", 500, (SEEN,))
    return Auto().fit_operators([products, softmax], GPUS)


def error(predictor: Auto, target: int, *, op: str = "linear", names: str = "mnk") -> float:
    """Mean absolute percentage error on shapes that were not learned from."""
    fresh = runs(op, names, 200, (target,), seed=9).rows
    answer = predictor.predict(fresh.ops, GPUS, np.arange(len(fresh)), fresh.gpu, evidence=no_evidence(fresh.ops))
    return float(np.abs(answer.latency_s / fresh.latency_s - 1.0).mean())


def situation(predictor: Auto, ops: OpTable, target: int, gpus: GpuTable = GPUS) -> list[str]:
    """What stands behind each answer, by its residual group."""
    answer = predictor.predict(ops, gpus, np.arange(len(ops)), np.full(len(ops), target), evidence=no_evidence(ops))
    names = list(SITUATIONS)
    return [names[(group - 6) % len(names)] for group in answer.group.tolist()]


def terms_of(features: Any, seconds: float = 1e-3) -> Any:
    """Rows of which physics knows one thing: that each takes so long in DRAM."""
    terms = np.full((TERMS, features.shape[1]), 1e-9)
    terms[DRAM_S] = seconds
    return terms
