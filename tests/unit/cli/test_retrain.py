"""Output of `gpucast retrain` for a version."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from app.cli.predictors import _report_job as _report
from app.store.jobs import Job


def test_figures_are_labelled_by_their_split(capsys: pytest.CaptureFixture[str]) -> None:
    cell = {"split": "configuration_held_out", "gpu": "all", "n": 2, "mape": 4.0, "median_ape": 3.0}
    kernels = {**cell, "split": "size_held_out"}
    operators = [{**cell, "family": family} for family in ("linear/fp32", "softmax/bf16")]
    now = datetime.now(UTC)
    job = Job(
        id=1,
        predictor="auto",
        gpu_id="",
        state="succeeded",
        version="2",
        result={"validation": [kernels, *operators]},
        reason=None,
        created_at=now,
        started_at=now,
        finished_at=now,
    )
    _report(job)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["all", "linear/fp32", "softmax/bf16"]
