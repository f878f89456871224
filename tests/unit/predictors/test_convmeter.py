"""ConvMeter fitted to synthetic networks with known coefficients."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.bands.groups import S_SEEN, S_SEEN_OUTSIDE, S_UNSEEN, operator_codes
from app.ops.network import BACKWARD, BACKWARD_UPDATE, FORWARD, PASSES, STEP, UPDATE
from app.predictors.papers.convmeter import (
    PAPER,
    ConvMeter,
    PlainConvMeter,
    least_squares,
    relative_non_negative,
    terms,
)
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from tests.unit.kernels import TURING
from tests.unit.measured import measured, no_evidence
from tests.unit.operators import operators

FAST = replace(TURING, id="fast", fp32_lanes_per_sm=128, memory_bandwidth_bytes_per_s=9e11, peak_flops={"fp32": 4e13})
GPUS = GpuTable.from_specs([TURING, FAST])
# Seconds per FLOP, input, output, once, per layer, weight and device, per depthwise FLOP and operator: of forward,
# backward and update.
FORWARD_COST = np.array([2e-13, 1e-11, 3e-11, 2e-4, 0.0, 0.0, 0.0, 0.0, 0.0])
BACKWARD_COST = np.array([5e-13, 2e-11, 5e-11, 4e-4, 0.0, 0.0, 0.0, 0.0, 0.0])
UPDATE_COST = np.array([0.0, 0.0, 0.0, 0.0, 2e-5, 0.0, 0.0, 0.0, 0.0])
EXCHANGE_COST = np.array([0.0, 0.0, 0.0, 0.0, 3e-5, 4e-11, 5e-4, 0.0, 0.0])
COST = {
    FORWARD: FORWARD_COST,
    BACKWARD: BACKWARD_COST,
    UPDATE: UPDATE_COST,
    BACKWARD_UPDATE: BACKWARD_COST + UPDATE_COST,
    STEP: FORWARD_COST + BACKWARD_COST + UPDATE_COST,
}


def networks(what: int, count: int = 60, devices: bool = False, seed: int = 1) -> list[dict[str, float]]:
    draw = np.random.default_rng(seed)
    spread = {"flops": (1e8, 2e10), "inputs": (1e6, 3e7), "outputs": (1e6, 3e7), "weights": (1e6, 1e8)}
    rows = []
    for _ in range(count):
        row = {name: float(np.exp(draw.uniform(*np.log(ends)))) for name, ends in spread.items()}
        row |= {"batch": float(2 ** draw.integers(0, 9)), "layers": float(draw.integers(8, 160)), "pass": what}
        rows.append(row | ({"devices": float(4 * draw.integers(1, 9))} if devices else {}))
    return rows


def time(cost: Any) -> Any:
    return lambda ops, gpus, gpu: terms(ops) @ cost


def taught(predictor: Any, what: int, cost: Any, **how: Any) -> Any:
    return predictor.fit_operators([measured("network", networks(what, **how), GPUS, (0,), time(cost))], GPUS)


def seconds(predictor: Any, ops: OpTable, gpu: int = 0) -> Any:
    i = np.arange(len(ops))
    return predictor.predict(ops, GPUS, i, i * 0 + gpu, evidence=no_evidence(ops)).latency_s


@pytest.mark.parametrize("predictor", [ConvMeter, PlainConvMeter])
@pytest.mark.parametrize("what", range(len(PASSES)))
def test_known_coefficients_are_recovered_on_one_device(predictor: Any, what: int) -> None:
    fitted = taught(predictor(), what, COST[what])
    fresh = operators("network", *networks(what, seed=2))
    np.testing.assert_allclose(seconds(fitted, fresh), terms(fresh) @ COST[what], rtol=1e-6)


@pytest.mark.parametrize("predictor", [ConvMeter, PlainConvMeter])
def test_seven_coefficients_of_backward_and_update_on_many_devices(predictor: Any) -> None:
    cost = BACKWARD_COST + EXCHANGE_COST
    fitted = taught(predictor(), BACKWARD_UPDATE, cost, devices=True)
    fresh = operators("network", *networks(BACKWARD_UPDATE, devices=True, seed=2))
    np.testing.assert_allclose(seconds(fitted, fresh), terms(fresh) @ cost, rtol=1e-6)
    assert len(PAPER[BACKWARD_UPDATE][1]) == 7
    alone = operators("network", *networks(BACKWARD_UPDATE))
    assert np.isnan(seconds(fitted, alone)).all()  # one device does not exchange anything


def test_unmeasured_steps_are_the_sum_of_their_phases() -> None:
    fitted = ConvMeter()
    for what in (FORWARD, BACKWARD, UPDATE):
        fitted = taught(fitted, what, COST[what])
    fresh = operators("network", *networks(STEP, seed=2))
    np.testing.assert_allclose(seconds(fitted, fresh), terms(fresh) @ COST[STEP], rtol=1e-6)
    without = ConvMeter.from_state({key: of for key, of in fitted.state().items() if "update" not in key})
    assert np.isnan(seconds(without, fresh)).all()
    # The forward pass of many devices waits for nobody.
    many = operators("network", *networks(FORWARD, devices=True, seed=2))
    np.testing.assert_allclose(seconds(fitted, many), terms(many) @ FORWARD_COST, rtol=1e-6)


def test_negative_times_of_plain_least_squares_are_nan() -> None:
    # Small networks are quicker than the line of the large ones crosses zero.
    rows = networks(FORWARD)
    run = measured("network", rows, GPUS, (0,), lambda ops, gpus, gpu: 1e-27 * terms(ops)[:, 0] ** 2)
    small = operators("network", *[row | {"batch": 1.0, "flops": 1e6} for row in rows])
    assert (seconds(ConvMeter().fit_operators([run], GPUS), small) > 0).all()
    assert np.isnan(seconds(PlainConvMeter().fit_operators([run], GPUS), small)).any()


def test_the_loss_is_relative() -> None:
    draw = np.random.default_rng(0)
    figures = np.stack([np.geomspace(1, 1e4, 80), np.ones(80)], axis=1)
    measured_s = figures @ [3.0, 5.0] * np.exp(draw.normal(0, 0.1, 80))
    errors = [
        np.abs(figures @ fit(figures, measured_s) / measured_s - 1).mean()
        for fit in (relative_non_negative, least_squares)
    ]
    assert errors[0] < min(0.1, errors[1])


def test_other_gpus_scale_by_their_rooflines() -> None:
    fitted = taught(ConvMeter(), FORWARD, np.array([2e-13, 0, 3e-11, 0, 0, 0, 0, 0, 0]))
    ops = operators("network", *networks(FORWARD, count=1))
    figures = terms(ops)[0]
    compute = figures[0] * 2e-13 * TURING.peak_flops["fp32"] / 4e13
    memory = figures[2] * 3e-11 * TURING.memory_bandwidth_bytes_per_s / 9e11
    np.testing.assert_allclose(seconds(fitted, ops, gpu=1), compute + memory, rtol=1e-6)
    answers = fitted.predict(
        operators("network", networks(FORWARD)[0], networks(FORWARD)[0] | {"flops": 1e14}),
        GPUS, np.array([0, 1, 0]), np.array([0, 0, 1]), evidence=no_evidence(ops),
    )  # fmt: skip
    kind, dtype = np.repeat(ops.kind, 3), np.repeat(ops.dtype, 3)
    expected = operator_codes(kind, dtype, np.array([S_SEEN, S_SEEN_OUTSIDE, S_UNSEEN]))
    np.testing.assert_array_equal(answers.group, expected)


def test_layouts_and_compilers_have_separate_fits() -> None:
    fitted = taught(ConvMeter(), FORWARD, FORWARD_COST)
    for other in ("channels_last", "compiled"):
        asked = operators("network", *[row | {other: 1} for row in networks(FORWARD)])
        assert np.isnan(seconds(fitted, asked)).all()


def test_fitting_is_deterministic() -> None:
    one, other = (taught(ConvMeter(), STEP, COST[STEP]).state()["fp32 step"] for _ in range(2))
    np.testing.assert_array_equal(one["coefficients"], other["coefficients"])


def test_depthwise_flops_and_operators_have_their_own_coefficients() -> None:
    cost = FORWARD_COST + np.array([0.0] * 7 + [3e-12, 1e-5])
    draw = np.random.default_rng(5)
    rows = [
        row | {"depthwise": row["flops"] * draw.uniform(0, 0.2), "operators": 3.0 * row["layers"]}
        for row in networks(FORWARD)
    ]
    taught_, fresh = rows[:40], operators("network", *rows[40:])
    fitted = ConvMeter().fit_operators([measured("network", taught_, GPUS, (0,), time(cost))], GPUS)
    np.testing.assert_allclose(seconds(fitted, fresh), terms(fresh) @ cost, rtol=1e-6)


def test_states_without_the_latest_terms_predict_as_before() -> None:
    fitted = taught(ConvMeter(), FORWARD, FORWARD_COST)
    fresh = operators("network", *networks(FORWARD, seed=2))
    state = {
        key: of | {"coefficients": of["coefficients"][:, :7], "range": of["range"][:, :7]}
        for key, of in fitted.state().items()
    }
    np.testing.assert_array_equal(seconds(ConvMeter.from_state(state), fresh), seconds(fitted, fresh))
