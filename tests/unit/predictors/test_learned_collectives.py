"""Collectives: the model that answers, and the training row whose correction applies."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from app.bands.groups import SITUATIONS
from app.predictors.auto.operators.learning.learn import expected_errors
from app.predictors.auto.operators.queries import Trace
from app.predictors.auto.predictor import Auto
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements, OperatorRuns, stacked
from app.tables.ops import DTYPES, OpTable, concatenate
from app.tables.predictions import EXTRAPOLATED, INTERPOLATED
from tests.unit.kernels import TURING
from tests.unit.learned import (
    GPUS,
    SEEN,
    SEEN_THREE,
    SEEN_TOO,
    SIBLING,
    UNSEEN,
    situation,
    untrained,
)
from tests.unit.measured import measured, no_evidence
from tests.unit.operator_runs import runs_of
from tests.unit.operators import mixed, operators

pytestmark = pytest.mark.slow


def test_collectives_do_not_transfer_between_link_types() -> None:
    fast = replace(TURING, id="fast", link_bandwidth_bytes_per_s=300e9)
    cards = [fast, replace(fast, id="twin"), replace(fast, id="slotted", link_bandwidth_bytes_per_s=31.5e9)]
    gpus = GpuTable.from_specs(cards)
    shapes = [{"message_bytes": 2.0 ** (10 + k % 18), "devices": 2.0 + 2.0 * (k % 3)} for k in range(600)]
    taught = measured("all_reduce", shapes, gpus, (0,), lambda ops, gpus, gpu: untrained(ops, gpu, gpus) * 3.0)
    asked = operators("all_reduce", *[shapes[9]] * 3)
    trained = Auto().fit_operators([taught], gpus)
    answer = trained.predict(asked, gpus, np.arange(3), np.arange(3), evidence=no_evidence(asked))
    assert [list(SITUATIONS)[(group - 6) % len(SITUATIONS)] for group in answer.group] == ["seen", "sibling", "unseen"]


def test_collectives_borrow_from_the_only_measured_dtype() -> None:
    """Bytes move alike whatever they hold: on the same GPU, and on one of its make."""
    shapes = [
        {"message_bytes": 2.0**size, "devices": devices}
        for size in np.arange(12, 28, 0.07).tolist()
        for devices in (2, 4)
    ]
    slow = measured("all_reduce", shapes, GPUS, (SEEN,), lambda ops, gpus, gpu: untrained(ops, gpu) * 5.0, dtype="fp16")
    quick = measured("all_reduce", shapes, GPUS, (SEEN_TOO,), lambda ops, gpus, gpu: untrained(ops, gpu), dtype="bf16")
    trained = Auto().fit_operators([slow, quick], GPUS)
    for dtype in ("fp16", "bf16", "fp32"):
        ops = operators("all_reduce", *shapes, dtype=dtype)
        for gpu, of, ratio in ((SEEN, "seen", 5.0), (SIBLING, "sibling", 5.0), (SEEN_TOO, "seen", 1.0)):
            place = np.full(len(ops), gpu)
            answer = trained.predict(ops, GPUS, np.arange(len(ops)), place, evidence=no_evidence(ops))
            # On the largest the way of a launch, eager in FP32, is nothing.
            large = (answer.latency_s / untrained(ops, place))[-20:]
            assert np.median(large) == pytest.approx(ratio, rel=0.1)
            assert set(situation(trained, ops, gpu)) == {"sibling" if dtype == "fp32" else of}


NCCL, ONECCL, CUSTOM = 0.0, 1.0, 2.0
MESSAGES = [
    {"message_bytes": 2.0**size, "devices": devices} for size in np.arange(12, 28, 0.2).tolist() for devices in (2, 4)
]


def by_library(implementation: float, *, dtype: str, on: tuple[int, ...], times: float) -> OperatorRuns:
    """Rows of a library that takes so many times as long as physics says."""
    rows = [{**message, "implementation": implementation} for message in MESSAGES]
    return measured("all_reduce", rows, GPUS, on, lambda ops, gpus, gpu: untrained(ops, gpu) * times, dtype=dtype)


def messages(implementation: float, dtype: str) -> OpTable:
    return operators("all_reduce", *[{**one, "implementation": implementation} for one in MESSAGES[1::9]], dtype=dtype)


@cache
def two_libraries() -> Auto:
    """`auto` trained on all-reduces of two libraries."""
    return Auto().fit_operators(
        [
            by_library(NCCL, dtype="fp16", on=(SEEN, SEEN_TOO, SEEN_THREE), times=4.0),
            by_library(CUSTOM, dtype="bf16", on=(SEEN, SEEN_TOO), times=2.0),
        ],
        GPUS,
    )


@pytest.mark.parametrize("asked", ["fp16", "bf16"])
@pytest.mark.parametrize(("target", "of"), [(SEEN, "seen"), (SIBLING, "sibling"), (SEEN_THREE, "seen")])
def test_collectives_use_a_dtype_whose_training_range_contains_them(asked: str, target: int, of: str) -> None:
    """In one table, row by row; `SEEN_THREE` has NCCL only."""
    ops = mixed([messages(NCCL, asked), messages(CUSTOM, asked)]).take(np.argsort(np.arange(36) % 18, kind="stable"))
    place = np.full(len(ops), target)
    answer = two_libraries().predict(ops, GPUS, np.arange(len(ops)), place, evidence=no_evidence(ops))
    ratio, nccl = answer.latency_s / untrained(ops, place), ops.column("implementation") == NCCL
    assert ratio[nccl] == pytest.approx(4.0, rel=0.1)
    assert set(np.array(situation(two_libraries(), ops, target))[nccl]) == {of}
    assert set(answer.support[nccl]) == {INTERPOLATED}
    dtype = (answer.group - 6) // len(SITUATIONS) % len(DTYPES)  # intervals are of what was learned from
    assert {DTYPES[code] for code in dtype[nccl]} == {"fp16"} and {DTYPES[code] for code in dtype[~nccl]} == {"bf16"}
    if target != SEEN_THREE:
        assert ratio[~nccl] == pytest.approx(2.0, rel=0.1)
    assert set(np.array(situation(two_libraries(), ops, target))[~nccl]) == {"unseen" if target == SEEN_THREE else of}


def test_collectives_outside_all_training_ranges_use_the_nearest_dtype() -> None:
    """A message of any size is its own library's."""
    for (implementation, of), size in itertools.product(((NCCL, "fp16"), (CUSTOM, "bf16")), (2.0, 30.0, 38.0)):
        ops = operators("all_reduce", {"message_bytes": 2.0**size, "devices": 8, "implementation": implementation})
        answer = two_libraries().predict(ops, GPUS, np.arange(1), np.array([SEEN]), evidence=no_evidence(ops))
        assert answer.support[0] == EXTRAPOLATED
        learned = two_libraries().operators_
        traced = learned.traced(ops, GPUS, np.arange(1), np.array([SEEN]), Trace.of(1))
        assert learned.source_cells(traced) == [("all_reduce", of)]


@pytest.mark.parametrize("target", [SEEN, SIBLING])
def test_larger_messages_get_the_correction_of_the_largest(target: int) -> None:
    """Three doublings on: neither is what was learned lost, nor does it go on growing."""
    ops = operators("all_reduce", *[{"message_bytes": 2.0**size, "devices": 4} for size in (27.7, 31.0)], dtype="fp16")
    place = np.full(2, target)
    answer = two_libraries().predict(ops, GPUS, np.arange(2), place, evidence=no_evidence(ops))
    within, beyond = answer.latency_s / untrained(ops, place)
    assert beyond == pytest.approx(within, rel=0.02)
    assert answer.support.tolist() == [INTERPOLATED, EXTRAPOLATED]
    assert answer.stretch is not None and answer.stretch[0] == 1.0 < answer.stretch[1]


def test_unmeasured_device_counts_have_the_interval_of_unseen_gpus() -> None:
    """Others were, so that they are in range: but how one machine wires eight says little of the next."""
    eight = [{**one, "devices": 8} for one in MESSAGES[::2]]
    both = [
        measured("all_reduce", rows, GPUS, (gpu,), lambda ops, gpus, gpu: untrained(ops, gpu) * 2.0, dtype="fp16")
        for gpu, rows in ((SEEN, MESSAGES), (SEEN_TOO, [*MESSAGES, *eight]))
    ]
    rows = stacked([run.rows for run in both])
    trained = Auto().fit_operators(
        [runs_of("all_reduce", "fp16", rows.ops, gpu=rows.gpu.tolist(), latency_s=rows.latency_s.tolist())], GPUS
    )
    ops = operators("all_reduce", *[{"message_bytes": 2.0**20, "devices": n} for n in (4, 8, 16)], dtype="fp16")
    of = {gpu: situation(trained, ops, gpu) for gpu in (SEEN, SIBLING, SEEN_TOO)}
    assert of[SEEN] == ["seen", "unseen", "unseen_outside"]
    assert of[SIBLING] == ["sibling", "unseen", "unseen_outside"]
    assert of[SEEN_TOO] == ["seen", "seen", "unseen_outside"]
    few = measured(
        "all_reduce", MESSAGES[::19], GPUS, (UNSEEN,), lambda ops, gpus, gpu: untrained(ops, gpu), dtype="fp16"
    )
    assert situation(trained.with_measured([few], GPUS), ops, UNSEEN) == ["calibrated", "unseen", "unseen_outside"]


def test_device_counts_between_measured_ones_interpolate_the_correction() -> None:
    """More as the most, however many more; between two numbers between both."""
    slower = {2.0: 2.0, 4.0: 6.0}

    def times(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        return untrained(ops, gpu) * np.array([slower[n] for n in ops.column("devices").tolist()])

    taught = measured("all_reduce", MESSAGES, GPUS, (SEEN, SEEN_TOO), times, dtype="fp16")
    trained = Auto().fit_operators([taught], GPUS)
    asked = [{"message_bytes": 2.0**27, "devices": n} for n in (2, 3, 4, 6, 16, 64)]
    ops = operators("all_reduce", *asked, dtype="fp16")
    for target in (SEEN, SIBLING):
        place = np.full(len(ops), target)
        latency_s = trained.predict(ops, GPUS, np.arange(len(ops)), place, evidence=no_evidence(ops)).latency_s
        ratio = latency_s / untrained(ops, place)
        between = 2.0 * 3.0 ** np.log2(1.5)
        assert ratio == pytest.approx([2.0, between, 6.0, 6.0, 6.0, 6.0], rel=0.05)
        assert (np.diff(latency_s) > 0.0).all()


def test_an_unmeasured_library_uses_the_measured_one() -> None:
    """Models ask for NCCL, whoever made the GPU."""
    rows = stacked(
        [
            by_library(NCCL, dtype="fp16", on=(SEEN,), times=1.0).rows,
            by_library(ONECCL, dtype="fp16", on=(SEEN_TOO,), times=5.0).rows,
        ]
    )
    runs = runs_of("all_reduce", "fp16", rows.ops, gpu=rows.gpu.tolist(), latency_s=rows.latency_s.tolist())
    trained, ops = Auto().fit_operators([runs], GPUS), messages(NCCL, "fp16")
    for target, ratio in ((SEEN, 1.0), (SEEN_TOO, 5.0)):
        place = np.full(len(ops), target)
        answer = trained.predict(ops, GPUS, np.arange(len(ops)), place, evidence=no_evidence(ops))
        assert answer.latency_s / untrained(ops, place) == pytest.approx(ratio, rel=0.05)
        assert set(answer.support) == {INTERPOLATED}


def test_smaller_messages_get_the_correction_of_the_smallest() -> None:
    ops = operators("all_reduce", *[{"message_bytes": 2.0**size, "devices": 4} for size in (12.1, 8.0)], dtype="fp16")
    place = np.full(2, SEEN)
    answer = two_libraries().predict(ops, GPUS, np.arange(2), place, evidence=no_evidence(ops))
    within, beyond = answer.latency_s / untrained(ops, place)
    assert beyond == pytest.approx(within, rel=0.02)


def test_given_rows_correct_the_cell_that_predicts_the_collective() -> None:
    """Few rows of NCCL in BF16 teach what is known of NCCL, and nothing of kernels by hand."""
    some = by_library(NCCL, dtype="bf16", on=(UNSEEN,), times=9.0)
    few = some.take(np.arange(0, len(some), 5))
    ops = mixed([messages(NCCL, "bf16"), messages(NCCL, "fp16"), messages(CUSTOM, "bf16")])
    place = np.full(len(ops), UNSEEN)
    before, after = (
        predictor.predict(ops, GPUS, np.arange(len(ops)), place, evidence=no_evidence(ops)).latency_s
        for predictor in (two_libraries(), two_libraries().with_measured([few], GPUS))
    )
    nccl = ops.column("implementation") == NCCL
    assert after[nccl] / untrained(ops, place)[nccl] == pytest.approx(9.0, rel=0.1)
    assert after[~nccl] == pytest.approx(before[~nccl])
    told = two_libraries().with_measured([few, by_library(NCCL, dtype="fp16", on=(UNSEEN,), times=9.0)], GPUS)
    assert set(situation(told, ops, UNSEEN)[: nccl.sum()]) == {"calibrated"}


def test_given_rows_of_one_library_do_not_narrow_another() -> None:
    ops = concatenate([messages(NCCL, "bf16"), messages(CUSTOM, "bf16")])
    learned, nothing = two_libraries().operators_, np.ones(len(ops))
    covariance = expected_errors(learned, Measurements(ops, np.full(len(ops), UNSEEN), nothing), GPUS)
    assert covariance is not None
    nccl = ops.column("implementation") == NCCL
    assert (np.diag(covariance) > 0.0).all() and not covariance[np.ix_(nccl, ~nccl)].any()
    known = expected_errors(learned, Measurements(ops, np.full(len(ops), SEEN_THREE), nothing), GPUS)
    assert known is not None and not known[np.ix_(nccl, nccl)].any() and known[np.ix_(~nccl, ~nccl)].all()
    assert expected_errors(learned, Measurements(ops, np.full(len(ops), SEEN), nothing), GPUS) is None
