"""The child process that fits corrections."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from app.engine.correction_process import CorrectionProcess
from app.engine.corrections import Failure, fit_here
from app.engine.engine import Served
from app.engine.unlearned import Group
from app.predictors.auto.predictor import Auto
from app.predictors.intervals.conformal import Intervals
from app.store.operator_blocks import NO_TIME, Context, OperatorBlock, identities
from app.tables.gpus import GpuTable
from tests.unit.training.test_candidate import GPUS, made

V100 = "tesla-v100-pcie-32gb"
VERSION = Served(Auto(), Intervals.prior(), "1")


@pytest.fixture
def process() -> Iterator[CorrectionProcess]:
    running = CorrectionProcess()
    yield running
    running.stop()


def group(dims: int = 3) -> Group:
    """Rows of `linear`; with fewer than its three dimensions they cannot be read."""
    rows = made(V100).rows
    n, nan, none = len(rows), np.full(len(rows), np.nan), np.full((3, len(rows)), np.nan)
    context = Context("linear", "fp32", ("m", "n", "k"), V100, "pytorch-2.1", "made up", None)
    sizes = np.stack([rows.ops.column(name) for name in context.fields[:dims]])
    times = (rows.latency_s, nan, nan, nan, nan, np.full(n, NO_TIME), none, none)
    block = OperatorBlock((context,), np.zeros(n, dtype=np.intp), sizes, *times)
    return Group(((block, identities(block)),))


def factors(models: object) -> list[float]:
    """Constants of the only model of a correction."""
    assert isinstance(models, dict)
    ((model, _),) = models["linear", "fp32"].values()
    return [float(value) for value in model.factors]


def test_it_fits_what_this_process_fits(process: CorrectionProcess) -> None:
    (here,), (there,) = (fit(VERSION, [group()], GPUS) for fit in (fit_here, process.fit))
    assert factors(there) == factors(here)


def test_a_group_that_cannot_be_fitted_spoils_no_other(process: CorrectionProcess) -> None:
    failed, fitted = process.fit(VERSION, [group(dims=2), group()], GPUS)
    assert isinstance(failed, Failure)
    assert factors(fitted)


def test_it_learns_of_another_version_and_of_other_gpus(process: CorrectionProcess) -> None:
    (first,) = process.fit(VERSION, [group()], GPUS)
    slower = GpuTable(GPUS.ids, GPUS.values * np.where(np.isfinite(GPUS.values), 0.9, 1.0), GPUS.architectures)
    (second,) = process.fit(replace(VERSION, predictor=Auto(), version="2"), [group()], slower)
    assert factors(first) != factors(second)


def test_another_is_started_after_one_is_killed(process: CorrectionProcess) -> None:
    (first,) = process.fit(VERSION, [group()], GPUS)
    process.end()
    (again,) = process.fit(VERSION, [group()], GPUS)
    assert factors(again) == factors(first)


def test_none_is_started_after_the_stop(process: CorrectionProcess) -> None:
    process.stop()
    with pytest.raises(EOFError):
        list(process.fit(VERSION, [group()], GPUS))
