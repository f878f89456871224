"""Properties of every predictor."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.bands.conformal import Intervals
from app.bands.groups import GROUPS
from app.engine.engine import Engine, Served
from app.predictors import ALL, PREDICTORS
from app.predictors.roofline import hardware_limit
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.predictions import BOUNDS, SUPPORTS
from tests.unit.kernels import TURING, VOLTA, kernels

pytestmark = pytest.mark.slow

AMPERE = replace(VOLTA, id="ampere", sm_count=108, memory_bandwidth_bytes_per_s=1.5e12, peak_flops={"fp32": 19e12})
SPECS = [TURING, VOLTA, AMPERE]
GPUS = GpuTable.from_specs(SPECS)
# FLOPs, bytes and lane operations per element of three kernels.
SHAPES = {1: (2.0, 12.0, 3.0), 2: (64.0, 8.0, 66.0), 3: (0.0, 8.0, 40.0)}
ELEMENTS = (2**16, 2**18, 2**20, 2**22)


def launches() -> tuple[Any, list[int]]:
    rows, labels = [], []
    for label, (flops, moved, lanes) in SHAPES.items():
        for n in ELEMENTS:
            rows.append(
                {
                    "flops": n * flops,
                    "bytes": n * moved,
                    "working_set_bytes": n * moved,
                    "lane_operations": n * lanes,
                    "threads_per_block": 256,
                    "blocks": n // 256,
                    "registers_per_thread": 32,
                    "shared_memory_per_block": 0,
                    "access_pattern": 0,
                    "n": n,
                }
            )
            labels.append(label)
    return kernels(rows, label=labels), labels


OPS, LABELS = launches()
ROWS = np.tile(np.arange(len(OPS)), len(SPECS))
ON = np.repeat(np.arange(len(SPECS)), len(OPS))
TIMES = 4e-6 + 1.7 * hardware_limit(OPS, GPUS, ROWS, ON).latency_s * (1 + 0.05 * np.sin(np.arange(len(ROWS))))
MEASURED = Measurements(OPS.take(ROWS), ON, TIMES)
# Every launch is asked on every GPU, from itself on the next GPU.
SOURCE = (np.arange(len(ROWS)) + len(OPS)) % len(ROWS)
EVIDENCE = Evidence(MEASURED.take(SOURCE), np.arange(len(ROWS)))


def ready(predictor: Any) -> Any:
    return predictor().fit(MEASURED, GPUS) if predictor.can.trainable else predictor()


@pytest.fixture(params=PREDICTORS, ids=lambda predictor: predictor.name, scope="module")
def predictor(request: pytest.FixtureRequest) -> Any:
    return ready(request.param)


def predictions(predictor: Any, coverage: float = 0.8) -> Any:
    served = {(predictor.name, "*"): Served(predictor, Intervals.prior(), "test")}
    engine = Engine(Catalog(SPECS), GPUS, served)
    return engine.predict(OPS, GPUS, ROWS, ON, predictor=predictor.name, coverage=coverage, evidence=EVIDENCE)


def test_predictions_are_finite_ordered_and_not_below_the_limit(predictor: Any) -> None:
    answer = predictions(predictor)
    assert np.isfinite(answer.latency_s).all()
    assert (answer.latency_s > 0).all()
    assert (answer.latency_s >= answer.limit_s).all()
    assert (answer.low_s <= answer.latency_s).all()
    assert (answer.latency_s <= answer.high_s).all()
    for codes, names in ((answer.bound, BOUNDS), (answer.support, SUPPORTS), (answer.group, GROUPS)):
        assert ((codes >= 0) & (codes < len(names))).all()


def test_a_wider_coverage_is_a_wider_interval(predictor: Any) -> None:
    narrow, wide = predictions(predictor, 0.5), predictions(predictor, 0.95)
    assert (wide.low_s <= narrow.low_s).all()
    assert (wide.high_s >= narrow.high_s).all()


def test_one_row_equals_the_batch(predictor: Any) -> None:
    together = predictor.predict(OPS, GPUS, ROWS, ON, evidence=EVIDENCE)
    for q in range(0, len(ROWS), 5):
        alone = predictor.predict(
            OPS, GPUS, ROWS[[q]], ON[[q]], evidence=Evidence(MEASURED.take(SOURCE[[q]]), np.array([0]))
        )
        np.testing.assert_allclose(alone.latency_s, together.latency_s[[q]], rtol=1e-9)
        assert (alone.bound[0], alone.support[0], alone.group[0]) == (
            together.bound[q],
            together.support[q],
            together.group[q],
        )


def test_arguments_are_not_modified(predictor: Any) -> None:
    before = OPS.dims.copy(), GPUS.values.copy(), MEASURED.latency_s.copy()
    predictor.predict(OPS, GPUS, ROWS, ON, evidence=EVIDENCE)
    for was, now in zip(before, (OPS.dims, GPUS.values, MEASURED.latency_s), strict=True):
        np.testing.assert_array_equal(was, now)


def test_queries_without_evidence_are_predicted_or_left_to_the_roofline(predictor: Any) -> None:
    none = Evidence(MEASURED.take(np.empty(0, dtype=np.intp)), np.empty(0, dtype=np.intp))
    latency = predictor.predict(OPS, GPUS, ROWS, ON, evidence=none).latency_s
    assert (np.isnan(latency) | (latency > 0)).all()


TRAINABLE = [predictor for predictor in PREDICTORS if predictor.can.trainable]


@pytest.mark.parametrize("trainable", TRAINABLE, ids=lambda predictor: predictor.name)
def test_training_is_deterministic(trainable: Any) -> None:
    first, again = ready(trainable), ready(trainable)
    restored = trainable.from_state(first.state())
    answers = [one.predict(OPS, GPUS, ROWS, ON, evidence=EVIDENCE).latency_s for one in (first, again, restored)]
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])


@pytest.mark.parametrize("predictor", ALL, ids=lambda predictor: predictor.name)
def test_predictors_have_the_capabilities_they_declare(predictor: Any) -> None:
    """And nothing that it does not declare."""
    can = predictor.can
    methods = {
        "fit": can.learns_launches,
        "fit_operators": can.learns_operators,
        **dict.fromkeys(("state", "from_state"), can.trainable),
        **dict.fromkeys(("with_measured", "corrections", "with_corrections", "prepared"), can.takes_measured),
        **dict.fromkeys(("ran_on", "expected_errors"), can.takes_measured),
        "explained": can.explains,
    }
    assert {name: hasattr(predictor, name) for name in methods} == methods
    assert can.trainable or not can.needs_training
