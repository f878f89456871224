"""Conformal intervals by hand."""

import numpy as np
import pytest

from app.bands.band import width_at
from app.bands.conformal import LEAST_RESIDUALS, Intervals
from app.bands.groups import (
    CODES,
    GROUPS,
    NO_EVIDENCE,
    OPERATOR_GROUPS,
    OTHER_GPU,
    PRIOR_HALF_WIDTH,
    S_UNSEEN,
    of_other_gpus,
    of_siblings,
    operator_codes,
)
from app.ops import OPS
from app.predictors.launches import best_group
from tests.unit.kernels import index


def one_group(residual: list[float], group: int, kernel: list[int]) -> Intervals:
    codes = np.full(len(residual), group)
    return Intervals.from_residuals(np.array(residual), codes, np.array(kernel))


def test_prior_widths_equal_the_documented_ones() -> None:
    low, high = Intervals.prior().log_offsets(0.8)
    np.testing.assert_allclose(high, PRIOR_HALF_WIDTH)
    np.testing.assert_allclose(low, -PRIOR_HALF_WIDTH)


def test_a_coverage_near_one_gives_a_wide_finite_interval() -> None:
    low, high = Intervals.prior().log_offsets(np.nextafter(1.0, 0.0))
    assert np.isfinite(low).all() and (high > 5.0 * PRIOR_HALF_WIDTH).all()


def test_every_line_of_the_breakdown_has_a_group() -> None:
    assert set(OPERATOR_GROUPS) == {op.group for op in OPS[1:]} | {op.name for op in OPS if op.interval_apart}
    assert len(set(OPERATOR_GROUPS)) == len(OPERATOR_GROUPS)


def test_the_quantile_has_the_conformal_rank() -> None:
    # 19 residuals -0.9 .. 0.9: each tail of 10 % keeps the ceil(20 x 0.9) = 18th, one from the end.
    intervals = one_group([k / 10 for k in range(-9, 10)], OTHER_GPU, [1] * 19)
    low, high = intervals.log_offsets(0.8)
    assert (low[OTHER_GPU], high[OTHER_GPU]) == pytest.approx((-0.8, 0.8))


def test_coverage_beyond_the_residuals_widens_past_their_extremes() -> None:
    intervals = one_group([k / 10 for k in range(-9, 10)], OTHER_GPU, [1] * 19)
    most = [intervals.log_offsets(coverage)[1, OTHER_GPU] for coverage in (0.9, 0.95, 0.99, 0.9999)]
    assert most[0] == pytest.approx(0.9)  # 18 / 20 is what 19 residuals show
    assert most == sorted(set(most))
    assert most[-1] == pytest.approx(0.9 * width_at(0.9999) / width_at(0.9))


def test_residuals_of_an_unmeasured_kernel_count_once() -> None:
    # 20 rows of two kernels are two independent residuals: only the extremes promise 80 %.
    intervals = one_group([k / 10 for k in range(-10, 10)], NO_EVIDENCE, [1] * 10 + [2] * 10)
    low, high = intervals.log_offsets(0.8)
    assert (low[NO_EVIDENCE], high[NO_EVIDENCE]) == pytest.approx((-1.0, 0.9))


def test_biased_intervals_contain_the_prediction() -> None:
    low, high = one_group([0.5] * 30, OTHER_GPU, [1] * 30).log_offsets(0.8)
    assert (low[OTHER_GPU], high[OTHER_GPU]) == (0.0, 0.5)


def test_few_residuals_keep_the_prior() -> None:
    low, _ = one_group([0.0] * (LEAST_RESIDUALS - 1), OTHER_GPU, [1] * (LEAST_RESIDUALS - 1)).log_offsets(0.8)
    assert low[OTHER_GPU] == pytest.approx(-PRIOR_HALF_WIDTH[OTHER_GPU])


def test_intervals_on_unseen_gpus_widen_with_fewer_gpus() -> None:
    residual = np.linspace(-1.0, 1.0, 2001)
    unseen = int(operator_codes(index(1), index(0), S_UNSEEN)[0])
    high = [
        Intervals({unseen: residual}, {unseen: len(residual)}, gpus).log_offsets(0.8)[1, unseen]
        for gpus in ({}, {unseen: 5}, {unseen: 2}, {unseen: 1})
    ]
    # A tail of 10 %; of 8.3 %; of 6.7 %; of 5 %.
    np.testing.assert_allclose(high, [0.8, 0.833, 0.867, 0.9], atol=0.002)
    assert of_other_gpus(unseen)
    assert not any(of_other_gpus(group) for group in range(len(GROUPS)))


def test_siblings_widen_by_a_quarter_of_that() -> None:
    residual = np.linspace(-1.0, 1.0, 2001)
    alike = CODES["linear/bf16/sibling"]
    high = [
        Intervals({alike: residual}, {alike: len(residual)}, gpus).log_offsets(0.8)[1, alike]
        for gpus in ({}, {alike: 2})
    ]
    np.testing.assert_allclose(high, [0.8, 0.817], atol=0.002)  # a tail of 10 %; of 9.2 %, not of 6.7
    assert of_siblings(alike)
    assert not of_siblings(CODES["linear/bf16/unseen"])
    assert not any(of_siblings(group) for group in range(len(GROUPS)))


def test_intervals_from_few_gpus_are_symmetric() -> None:
    too_fast = np.linspace(0.0, 1.0, 1001)
    unseen = int(operator_codes(index(1), index(0), S_UNSEEN)[0])
    for gpus, ends in (({unseen: 1000}, (0.0, 0.9)), ({unseen: 3}, (-0.85, 0.85))):
        offsets = Intervals({unseen: too_fast}, {unseen: len(too_fast)}, gpus).log_offsets(0.8)[:, unseen]
        np.testing.assert_allclose(offsets, ends, atol=0.005)


def test_a_dtype_measured_on_one_gpu_has_the_siblings_of_other_dtypes() -> None:
    residual, n = np.linspace(-0.1, 0.1, 100), 100
    seen, alike = CODES["linear/nvfp4/seen"], CODES["linear/nvfp4/sibling"]
    groups = np.repeat([CODES["linear/fp8/sibling"], CODES["linear/bf16/sibling"], seen], n)
    residuals = np.concatenate([residual, 3.0 * residual, residual])
    low, high = Intervals.from_residuals(residuals, groups, np.zeros(3 * n, dtype=np.intp)).last_log_offsets(0.8)
    assert high[CODES["linear/fp8/sibling"]] < high[alike] <= high[CODES["linear/bf16/sibling"]]
    assert 0.18 < high[alike] == pytest.approx(-low[alike])
    untrained = CODES["linear/int8/sibling"]
    assert high[untrained] == PRIOR_HALF_WIDTH[untrained]  # no row shows that its own model is right


def test_state_round_trip() -> None:
    intervals = one_group([0.1 * k for k in range(12)], OTHER_GPU, list(range(12)))
    again = Intervals.from_state(intervals.state())
    np.testing.assert_array_equal(again.log_offsets(0.9), intervals.log_offsets(0.9))


def test_the_closest_relation_sets_the_group() -> None:
    np.testing.assert_array_equal(best_group(index(3, 1, 2), index(0, 0, 2), 4), [1, len(GROUPS) - 1, 2, 5])


def test_pooled_residuals_count_as_many_as_stand_behind_them() -> None:
    seen, unseen, other = (CODES[f"linear/{name}"] for name in ("bf16/seen", "bf16/unseen", "fp8/unseen"))
    many, few = np.linspace(-0.1, 0.1, 101), np.linspace(0.9, 1.1, 101)
    mine = Intervals({seen: many}, {seen: 9000})
    added = Intervals(dict.fromkeys((seen, unseen, other), few), dict.fromkeys((seen, unseen, other), 1000))
    found = mine.pooled(added)
    assert found.units[seen] == 10_000
    assert np.mean(found.residuals[seen] > 0.5) == pytest.approx(0.1, abs=0.02)
    assert unseen not in found.residuals  # of an operator and dtype that are known
    assert found.residuals[other] is few
