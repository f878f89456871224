"""Properties of every trainable operator predictor."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.bands.conformal import Intervals
from app.bands.groups import OPERATOR_GROUPS, SUPPORT_OF_SITUATION, operator_codes
from app.engine.engine import Engine, Served
from app.errors import NotTrained
from app.predictors import OPERATOR_PREDICTORS
from app.predictors.roofline import hardware_limit
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from tests.unit.kernels import TURING, VOLTA
from tests.unit.measured import measured, no_evidence, random_shapes
from tests.unit.operators import mixed, operators

pytestmark = pytest.mark.slow

AMPERE = replace(VOLTA, id="ampere", sm_count=108, memory_bandwidth_bytes_per_s=1.5e12, peak_flops={"fp32": 19e12})
NEW = replace(
    AMPERE, id="new", architecture="new", fp32_lanes_per_sm=256, sm_count=200, memory_bandwidth_bytes_per_s=3e12
)
SPECS = [TURING, VOLTA, AMPERE, NEW]
GPUS = GpuTable.from_specs(SPECS)
LEARNED = (0, 1, 2)
LEARNERS = [predictor for predictor in OPERATOR_PREDICTORS if predictor.can.needs_training]


def time(ops: Any, gpus: Any, gpu: Any) -> Any:
    slower = 1.6 + 0.1 * np.sin(np.arange(len(gpu)))
    return 2e-5 + slower * hardware_limit(ops, gpus, np.arange(len(gpu)), gpu).latency_s


def kernel(ops: Any, gpu: Any) -> list[str]:
    wide = ops.column("n") >= 512
    return [f"turing_sgemm_{'128x128' if of else '64x64'}_tn" for of in wide]


def networks() -> list[dict[str, float]]:
    """Networks of all sizes; each three times larger than the last asks three times as much."""
    shapes = random_shapes(("batch", "flops", "outputs", "weights"), 60, low=2, high=64)
    scale = {"batch": 1.0, "flops": 1e8, "outputs": 1e5, "weights": 1e6}
    return [{name: size * scale[name] for name, size in row.items()} for row in shapes]


RUNS = [
    measured("linear", random_shapes("mnk", 80), GPUS, LEARNED, time, kernel=kernel),
    measured("bmm", random_shapes("bmnk", 80, high=512), GPUS, LEARNED, time, kernel=kernel),
    measured("softmax", random_shapes("bh", 60), GPUS, LEARNED, time),
    measured("relu", random_shapes("bh", 60), GPUS, LEARNED, time),
]
NETWORKS = [measured("network", networks(), GPUS, LEARNED, time)]
# Of operators, dtypes and shapes that nobody learned from.
STRANGE = mixed(
    [
        operators("layer_norm", {"b": 8, "h": 64}),
        operators("linear", {"m": 64, "n": 64, "k": 64}, dtype="bf16"),
        operators("all_reduce", {"message_bytes": 1e6, "devices": 2}),
        operators("linear", {"m": 1, "n": 1, "k": 1}, {"m": 2**20, "n": 2**20, "k": 2**20}),
        operators("linear", {"m": 64, "n": 640, "k": 320, "backward": 1}),
    ]
)


def taught(predictor: Any) -> Any:
    """What this predictor learns from."""
    return NETWORKS if predictor.can.only_networks else RUNS


def queries(predictor: Any) -> Any:
    return mixed([run.rows.ops.take(np.arange(0, 60, 7)) for run in taught(predictor)])


def everywhere(ops: Any) -> Any:
    """Every row on every GPU."""
    return np.tile(np.arange(len(ops)), len(SPECS)), np.repeat(np.arange(len(SPECS)), len(ops))


@pytest.fixture(params=LEARNERS, ids=lambda learner: learner.name, scope="module")
def learned(request: pytest.FixtureRequest) -> Any:
    return request.param().fit_operators(taught(request.param), GPUS)


def ask(predictor: Any, ops: Any = None, rows: Any = None, on: Any = None) -> Any:
    ops = queries(predictor) if ops is None else ops
    rows, on = everywhere(ops) if rows is None else (rows, on)
    return predictor.predict(ops, GPUS, rows, on, evidence=no_evidence(ops))


def test_predictions_are_in_order_and_not_below_the_limit(learned: Any) -> None:
    served = {(learned.name, "*"): Served(learned, Intervals.prior(), "test")}
    engine = Engine(Catalog(SPECS), GPUS, served)
    for ops in (queries(learned), STRANGE):
        rows, on = everywhere(ops)
        evidence = no_evidence(ops)
        answer = engine.predict(ops, GPUS, rows, on, predictor=learned.name, coverage=0.8, evidence=evidence)
        assert np.isfinite(answer.latency_s).all()
        assert (answer.limit_s <= answer.latency_s).all()
        assert (answer.low_s <= answer.latency_s).all()
        assert (answer.latency_s <= answer.high_s).all()


def test_trained_gpus_are_seen_and_predicted_within_a_factor_of_two(learned: Any) -> None:
    answer, ops = ask(learned), queries(learned)
    rows, on = everywhere(ops)
    seen = len(LEARNED) != on
    limit = hardware_limit(ops, GPUS, rows, on).latency_s
    error = np.abs(np.log(answer.latency_s / (2e-5 + 1.6 * limit)))[seen]
    assert np.median(error) < np.log(2)
    seen_codes = operator_codes(ops.kind[rows], ops.dtype[rows], 1)
    assert (answer.group[seen] == seen_codes[seen]).all()
    assert (answer.group[~seen] != seen_codes[~seen]).all()


def test_untrained_operators_are_nan_and_no_time_is_negative(learned: Any) -> None:
    latency = ask(learned, STRANGE, np.arange(len(STRANGE)), np.zeros(len(STRANGE), dtype=np.intp)).latency_s
    assert np.isnan(latency[:3]).all()
    assert (np.isnan(latency) | (latency > 0)).all()


def test_support_follows_the_situation(learned: Any) -> None:
    answer = ask(learned)
    situation = (answer.group - operator_codes(np.array([0]), np.array([0]), 0)) % len(SUPPORT_OF_SITUATION)
    np.testing.assert_array_equal(answer.support, SUPPORT_OF_SITUATION[situation])
    assert len(OPERATOR_GROUPS) > 0


def test_rows_are_predicted_independently_of_their_batch(learned: Any) -> None:
    together, ops = ask(learned), queries(learned)
    rows, on = everywhere(ops)
    for q in range(0, len(rows), 11):
        alone = ask(learned, ops, rows[[q]], on[[q]])
        np.testing.assert_allclose(alone.latency_s, together.latency_s[[q]], rtol=1e-9)
        assert alone.group[0] == together.group[q]
    family = taught(learned)[0].rows.ops.take(np.arange(0, 60, 7))
    np.testing.assert_allclose(
        ask(learned, family, np.arange(len(family)), np.zeros(len(family), dtype=np.intp)).latency_s,
        together.latency_s[: len(family)],
        rtol=1e-9,
    )


def test_arguments_are_not_modified(learned: Any) -> None:
    ops = queries(learned)
    before = ops.dims.copy(), GPUS.values.copy()
    ask(learned, ops)
    np.testing.assert_array_equal(before[0], ops.dims)
    np.testing.assert_array_equal(before[1], GPUS.values)


def test_training_and_stored_states_are_deterministic(learned: Any) -> None:
    again = type(learned)().fit_operators(taught(learned), GPUS)
    restored = type(learned).from_state(learned.state())
    first = ask(learned)
    for other in (again, restored):
        np.testing.assert_array_equal(first.latency_s, ask(other).latency_s)
        np.testing.assert_array_equal(first.group, ask(other).group)


def test_training_on_more_rows_keeps_earlier_operators(learned: Any) -> None:
    other = measured("layer_norm", random_shapes("bh", 40), GPUS, LEARNED, time)
    if learned.can.only_networks:
        other = measured("network", networks(), GPUS, LEARNED, time, dtype="fp16")
    more = learned.fit_operators([other], GPUS)
    np.testing.assert_array_equal(ask(learned).latency_s, ask(more).latency_s)
    asked = other.rows.ops.take(np.arange(5))
    on = np.zeros(5, dtype=np.intp)
    assert np.isnan(ask(learned, asked, np.arange(5), on).latency_s).all()
    assert np.isfinite(ask(more, asked, np.arange(5), on).latency_s).all()


def test_too_few_rows_raise_not_trained(learned: Any) -> None:
    with pytest.raises(NotTrained):
        type(learned)().fit_operators([taught(learned)[0].take(np.arange(3))], GPUS)
