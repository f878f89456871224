"""Evaluation of operators: the rows that predictors are trained on and given, and predictors without enough rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest

from app.bands.groups import S_SEEN, operator_codes
from app.engine.catalogue import load_seed_specs
from app.errors import NotTrained
from app.predictors.base import Capabilities
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, OperatorRuns
from app.tables.ops import OpTable
from app.tables.predictions import EXTRAPOLATED, MEMORY, Estimate
from evaluation.data import NO_SPLIT, Cell
from evaluation.operators import evaluate as service
from evaluation.operators.evaluate import contenders, evaluate_operators
from evaluation.operators.folds import PROTOCOLS
from tests.unit.operator_runs import runs_of
from tests.unit.operators import operators

SECONDS = 2e-3


class Mean:
    """Predicts the mean of its training rows on every GPU; without few-shot calibration, so it is fitted again."""

    name: ClassVar[str] = "mean"
    can: ClassVar[Capabilities] = Capabilities(("operators",), ("operators",), needs_training=True)
    training_rows: ClassVar[list[int]] = []

    def __init__(self, mean_s: float = np.nan) -> None:
        self.mean_s = mean_s

    def fit_operators(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Self:
        self.training_rows.append(sum(map(len, runs)))
        if self.training_rows[-1] < 70:
            raise NotTrained("too few")
        return type(self)(float(np.mean(np.concatenate([part.rows.latency_s for part in runs]))))

    def predict(self, ops: OpTable, gpus: GpuTable, i: Any, j: Any, *, evidence: Evidence) -> Estimate:
        assert not len(evidence)
        codes = operator_codes(ops.kind[i], ops.dtype[i], S_SEEN)
        n = len(i)
        return Estimate(np.full(n, self.mean_s), np.full(n, MEMORY), np.full(n, EXTRAPOLATED), codes)


class Corrected(Mean):
    """The same with few-shot calibration."""

    name: ClassVar[str] = "corrected"
    can: ClassVar[Capabilities] = Mean.can._replace(takes_measured=True)
    measured: ClassVar[list[int]] = []

    def with_measured(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Self:
        self.measured.append(sum(map(len, runs)))
        return type(self)(2.0 * SECONDS)


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured rows with the same time: 256 on one GPU and 32 on another."""
    rows = [{"m": 1.0 + k, "n": 64.0, "k": 64.0} for k in range(288)]
    table = operators("linear", *rows, dtype="bf16")
    runs = runs_of("linear", "bf16", table, gpu=[3] * 256 + [4] * 32, latency_s=[SECONDS] * 288)

    def cells(folder: Path, ops: Collection[str]) -> list[Cell]:
        assert "linear" in ops
        return [Cell(runs, np.full(288, NO_SPLIT), np.zeros(288))]

    monkeypatch.setattr(service, "read_cells", cells)
    monkeypatch.setattr(service, "OPERATOR_PREDICTORS", (Mean, Corrected))
    for counted in (Mean.training_rows, Corrected.measured):
        counted.clear()


def test_predictors_without_few_shot_calibration_are_fitted_again_with_the_given_rows(
    data: None, tmp_path: Path
) -> None:
    results = evaluate_operators(tmp_path, predictors=("mean",), protocols=("few_shot", "leave_one_gpu_out"))
    # Without the first GPU 32 rows remain, too few, and 160 with 128 given rows; without the second 256 remain.
    assert {32, 160, 256} <= set(Mean.training_rows)  # beside those of its validation
    tested = {(c["part"], c["gpu"]): c["n"] for c in results if c["gpu"] != "all"}
    first, second = (load_seed_specs()[k].id for k in (3, 4))
    assert tested == {("128_rows", first): 128, ("unseen", second): 32}


def test_predictors_with_few_shot_calibration_get_the_given_rows(
    data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Corrected, "fit_operators", lambda self, runs, gpus: Corrected(SECONDS))
    results = evaluate_operators(tmp_path, predictors=("corrected",), protocols=("few_shot", "leave_one_gpu_out"))
    mape = {(c["part"], c["gpu"]): c["mape"] for c in results}
    assert {error for (part, _), error in mape.items() if part == "unseen"} == {0.0}
    assert {error for (part, _), error in mape.items() if part != "unseen"} == {100.0}
    assert Corrected.measured == [8, 32, 128, 8] and len(mape) == 3 + 3 + 2 + 2


def test_contenders_have_unique_names_and_include_untrained_predictors() -> None:
    names = [contender.name for contender in contenders()]
    assert len(set(names)) == len(names)
    assert "roofline" in names and set(PROTOCOLS) >= {"few_shot"}
