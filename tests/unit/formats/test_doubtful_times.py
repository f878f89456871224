"""Rows bound by the host, unsteady kernels, and subtraction of host drift from measured times."""

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from app.config import CHECKOUT
from app.formats.doubtful_times import LAST_ROWS, host_bound, host_drift, unsteady
from app.formats.operator_tables import read
from app.wire.measurement_form import OperatorColumns
from app.wire.operator_columns import Numbers, Words
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


def test_rows_at_a_floor_far_above_other_kernels_are_bound_by_the_host() -> None:
    latency = np.array([2.0, 500.0, 150.0, 160.0, 200.0, 900.0, 12.0])
    kernel = np.array([0, 0, 1, 1, 1, 1, 2])
    gpu, apart, sizes = np.zeros(7, dtype=np.intp), np.arange(7), np.ones((1, 7))
    assert host_bound(gpu, kernel, latency, apart, sizes).tolist() == [False, False, True, True, True, False, False]
    # One kernel on each GPU: nothing to compare with.
    assert not host_bound(kernel, kernel, latency, apart, sizes).any()


def test_rows_far_above_the_floor_are_bound_by_the_host_where_larger_rows_are_quicker() -> None:
    rows = [  # batch, heads, time, whether the host bounds it
        (8, 4, 150.0, True),  # the floor
        (8, 2, 900.0, True),  # no larger than that
        (16, 2, 900.0, True),  # longer than the next
        (16, 8, 400.0, False),
        (16, 4, 550.0, False),  # longer than a larger one, but no more than another tile may cost
        (16, 16, 800.0, False),
        (1, 32, 700.0, False),  # larger than each other in one size
    ]
    batch, heads, latency, bound = (np.array(column) for column in zip(*rows, strict=True))
    quick = np.repeat([False, True], [len(rows), 1])  # a row of another kernel of the GPU, which shows what a floor is
    kernel, sizes = quick.astype(np.intp), np.array([np.append(batch, 1.0), np.append(heads, 1.0)])
    bound_by_host = host_bound(np.zeros(len(quick), dtype=np.intp), kernel, np.append(latency, 2.0), kernel, sizes)
    assert bound_by_host.tolist() == [*bound, False]


HEADS, TOKENS = (size.ravel() for size in np.meshgrid(2.0 ** np.arange(8), 2.0 ** np.arange(8)))
AT_RANDOM = np.exp(np.random.default_rng(0).normal(size=64))


def test_kernels_whose_times_fall_in_every_size_are_unsteady() -> None:
    other_from_4_heads_on = TOKENS * np.where(HEADS < 4, 50.0, HEADS)
    latency = np.concatenate([HEADS * TOKENS, other_from_4_heads_on, AT_RANDOM])
    sizes, kernel = np.array([np.tile(HEADS, 3), np.tile(TOKENS, 3)]), np.repeat(np.arange(3), 64)
    left_out = unsteady(kernel, np.zeros(192, dtype=np.intp), sizes, latency)
    assert left_out.tolist() == [False] * 128 + [True] * 64
    # Rows that nothing but other columns tell apart have no neighbours to compare with.
    assert not unsteady(kernel, np.arange(192), sizes, latency).any()
