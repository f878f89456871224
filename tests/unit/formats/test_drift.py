"""Subtraction of host drift from measured times."""

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from app.config import CHECKOUT
from app.formats.doubtful_times import LAST_ROWS, host_drift
from app.formats.operator_tables import read
from app.wire.measurements.upload import OperatorColumns
from app.wire.operators.operator_columns import Numbers, Words
from evaluation.data import NEUSIGHT, NEUSIGHT_FILE

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))


def test_a_rising_floor_is_subtracted_per_process() -> None:
    rng = np.random.default_rng(0)
    work, process = rng.exponential(1.0, 4000), np.repeat([0, 1], 2000)
    rise = np.tile(np.linspace(0.0, 3.0, 2000), 2)
    times = work + 0.1 + np.where(process == 0, rise, 0.0)
    corrected = times - host_drift(times, process)
    assert np.abs(corrected - work - 0.1).max() < 0.4  # within what the shortest of the later rows worked
    assert np.abs(corrected - work - 0.1)[process == 1].max() < 0.1
    assert corrected.min() > 0.0


def test_few_rows_and_invalid_times_are_unchanged() -> None:
    few = np.array([1.0, 2.0, 3.0])
    assert (host_drift(few, np.zeros(3, dtype=np.intp)) == 0.0).all()
    odd = np.concatenate([[np.nan, -1.0, 0.0, np.inf], np.linspace(1.0, 2.0, 3 * LAST_ROWS)])
    drift = host_drift(odd, np.zeros(len(odd), dtype=np.intp))
    assert (drift[:5] == 0.0).all()
    assert drift[-1] > 0.0
    assert host_drift(odd[:0], np.empty(0, dtype=np.intp)).tolist() == []


def test_only_neusights_convolutions_lose_their_drift() -> None:
    if not (DATA / NEUSIGHT_FILE).is_file():
        pytest.skip(f"no data in {DATA}")
    raw = pq.read_table(DATA / NEUSIGHT_FILE, columns=["latency_ms"])["latency_ms"].to_numpy()
    for part in read("neusight", DATA / NEUSIGHT):
        assert isinstance(part.sent, OperatorColumns)
        op, latency = part.sent.columns["op"], part.sent.columns["latency_ms"]
        assert isinstance(latency, Numbers)
        taken = raw[part.sent.position] - latency.values
        drifts = isinstance(op, Words) and op.words == ("conv2d",)
        assert np.median(taken) == (pytest.approx(0.17, abs=0.03) if drifts else 0.0)
        assert taken.max() == (pytest.approx(0.74, abs=0.05) if drifts else 0.0)
        assert (part.host_drift_s is not None) == drifts
        assert part.host_drift_s is None or part.host_drift_s * 1e3 == pytest.approx(taken, abs=1e-9)
