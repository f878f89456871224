"""The child process that fits corrections."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from app.bands.conformal import Intervals
from app.engine.correction_process import CorrectionProcess
from app.engine.corrections import Failure, FitHere, Trial
from app.engine.engine import Served
from app.engine.unlearned import Group
from app.predictors.auto.predictor import Auto
from app.store.artifacts import ArtifactRefused
from app.store.operator_blocks import NO_TIME, Context, OperatorBlock, identities
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence
from app.wire.kernel_tables import NO_MEASUREMENTS
from tests.busy_machine import until
from tests.unit.training.test_candidate import GPUS, made

SESSION = Path("/proc/self/autogroup")
V100 = "tesla-v100-pcie-32gb"
NO_EVIDENCE = Evidence(NO_MEASUREMENTS, np.empty(0, dtype=np.intp))
VERSION = Served(Auto(), Intervals.prior(), "1")


@pytest.fixture
def process() -> Iterator[CorrectionProcess]:
    running = CorrectionProcess(when_idle=False)  # tests may keep all processors busy
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


def child() -> psutil.Process:
    """The process that fits, once it runs that program."""
    until(lambda: any("app.engine.correction_process" in each.cmdline() for each in psutil.Process().children()))
    return next(one for one in psutil.Process().children() if "app.engine.correction_process" in one.cmdline())


def factors(models: object) -> list[float]:
    """Constants of the only model of a correction."""
    assert isinstance(models, dict)
    ((model, _),) = models["linear", "fp32"].values()
    return [float(value) for value in model.factors]


def test_it_fits_what_this_process_fits(process: CorrectionProcess) -> None:
    (here,), (there,) = (fitter.fit(VERSION, [group()], GPUS) for fitter in (FitHere(), process))
    assert factors(there) == factors(here)


def test_a_group_that_cannot_be_fitted_spoils_no_other(process: CorrectionProcess) -> None:
    failed, fitted = process.fit(VERSION, [group(dims=2), group()], GPUS)
    assert isinstance(failed, Failure)
    assert factors(fitted)


def test_what_it_prepares_answers_as_if_prepared_here(process: CorrectionProcess) -> None:
    """And nothing is derived from the models here, which would hold this interpreter's lock."""
    found, plain = [*process.fit(VERSION, [group()], GPUS)], Auto()
    (trial,) = [Trial([("linear", "fp32")], [GPUS.ids.index(V100)])]
    here, there = (
        plain.with_corrections(found, GPUS, prepared)
        for prepared in (None, process.prepared(VERSION, found, GPUS, [trial]))
    )
    assert there.operators_ in GPUS.memo_of
    assert here.operators_ not in GPUS.memo_of
    rows = made(V100).rows
    i, on = np.arange(len(rows)), rows.gpu
    slots = GpuTable((*GPUS.ids, "x"), np.column_stack([GPUS.values, GPUS.values[:, 0]]), (*GPUS.architectures, ""))
    for gpus in (GPUS, slots):  # a GPU of the request alone makes another table
        answers = [one.predict(rows.ops, gpus, i, on, evidence=NO_EVIDENCE).latency_s for one in (here, there, plain)]
        np.testing.assert_array_equal(answers[0], answers[1])
        assert (answers[0] != answers[2]).any()


def test_corrections_that_cannot_answer_are_refused_and_spoil_no_others(process: CorrectionProcess) -> None:
    (models,) = process.fit(VERSION, [group()], GPUS)
    ((key, ((gpu, (model, architecture)),)),) = ((key, [*of.items()]) for key, of in models.items())
    broken = {key: {gpu: (model._replace(factors=model.factors[:2]), architecture)}}
    trial = Trial([key], [GPUS.ids.index(V100)])
    for fitter in (process, FitHere()):
        with pytest.raises(ArtifactRefused, match="cannot answer"):
            fitter.prepared(VERSION, [broken], GPUS, [trial])
        assert fitter.prepared(VERSION, [models], GPUS, [trial]) is not None


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


def test_one_that_finds_no_idle_processor_is_replaced_by_one_that_needs_none() -> None:
    starved = CorrectionProcess(look_s=0.5)
    try:
        with ThreadPoolExecutor() as pool:
            fitting = pool.submit(lambda: list(starved.fit(VERSION, [group(), group()], GPUS)))
            first = child()
            assert "--when-idle" in first.cmdline()
            first.suspend()  # as if others took all processors
            one, other = fitting.result()
        assert factors(one) == factors(other)
        assert "--when-idle" not in child().cmdline()
    finally:
        starved.stop()


def test_it_gives_way_in_a_session_of_its_own(process: CorrectionProcess) -> None:
    """The kernel may share processors among sessions first: that of this process has its whole share."""
    assert list(process.fit(VERSION, [group()], GPUS))
    pid = child().pid
    assert os.getsid(pid) == pid
    if SESSION.exists() and os.geteuid() == 0:  # other accounts may set one at a time
        assert Path(f"/proc/{pid}/autogroup").read_text().split()[-2:] == ["nice", "5"]


def test_none_is_started_after_the_stop(process: CorrectionProcess) -> None:
    process.stop()
    with pytest.raises(EOFError):
        list(process.fit(VERSION, [group()], GPUS))
