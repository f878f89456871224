"""The shipped predictors on single rows of every operator: trained, borrowed, extrapolated, calibrated.

Few rows, so that it takes seconds even where the compiler is off and every line is seen (tests/compiled_lines.py).
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import pytest

from app.bands.conformal import Intervals
from app.config import Settings
from app.engine.catalogue import load_seed_specs
from app.engine.engine import finished
from app.engine.versions import Stores, shipped_or_untrained
from app.predictors import OPERATOR_PREDICTORS
from app.predictors.auto.operators.explain import explained
from app.predictors.auto.predictor import Auto
from app.predictors.roofline import hardware_limit
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from tests.conformance.test_ops import FAMILIES, rows_of
from tests.unit.measured import measured, no_evidence
from tests.unit.operators import mixed, operators
from tests.unit.predictors.test_operator_explain import combine

GPUS = GpuTable.from_specs(load_seed_specs())
# Measured; a sibling of a measured one; of another maker, which nothing was learned from.
TARGETS = ("h100-sxm5-80gb", "h20", "amd-instinct-mi300x")
FAR = {"linear": {"m": 2.0**18, "n": 8192, "k": 8192}, "softmax": {"b": 2.0**20, "h": 2.0**15}}
# Its algorithms go through memory or not.
WINOGRAD = {"b": 32, "in_channels": 64, "out_channels": 64, "kernel_size": 3, "input_size": 56, "padding": 1}


@cache
def shipped(name: str) -> Any:
    served, _, refused = shipped_or_untrained(Stores.of(Settings()), GPUS, None, only={name})
    assert not refused
    return served[name, "*"].predictor


@cache
def every_operator(dtype: str) -> OpTable:
    middle = [operators(name, rows_of(name)[1], dtype=dtype) for name in FAMILIES if name != "network"]
    return mixed([*middle, *(operators(name, row, dtype=dtype) for name, row in (*FAR.items(), ("conv2d", WINOGRAD)))])


def ask(predictor: Any, ops: OpTable, i: Any, gpu: str) -> Any:
    return predictor.predict(ops, GPUS, i, np.full(len(i), GPUS.ids.index(gpu)), evidence=no_evidence(ops))


@pytest.mark.parametrize("name", [predictor.name for predictor in OPERATOR_PREDICTORS if predictor is not Auto])
def test_other_predictors_predict_a_row_equally_alone_and_in_a_batch(name: str) -> None:
    rows_alone(shipped(name), every_operator("fp32"), "tesla-v100-pcie-32gb")


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("gpu", TARGETS)
def test_auto_predicts_a_row_equally_alone_and_in_a_batch(gpu: str, dtype: str) -> None:
    rows_alone(shipped(Auto.name), every_operator(dtype), gpu)


def rows_alone(predictor: Any, ops: OpTable, gpu: str) -> None:
    together = ask(predictor, ops, np.arange(len(ops)), gpu)
    for row in range(0, len(ops), 5):
        alone = ask(predictor, ops, np.array([row]), gpu)
        for field in fields(together):
            whole = getattr(together, field.name)
            if isinstance(whole, np.ndarray) and whole.shape == (len(ops),):
                np.testing.assert_allclose(getattr(alone, field.name)[0], whole[row], rtol=1e-12, err_msg=field.name)


@pytest.mark.parametrize("gpu", TARGETS[1:])
def test_measured_rows_correct_their_operator_only(gpu: str) -> None:
    def slow(ops: OpTable, gpus: GpuTable, j: Any) -> Any:
        return 2e-5 + 4.0 * hardware_limit(ops, gpus, np.arange(len(j)), j).latency_s

    shapes = [{"m": 2.0**k, "n": 1024, "k": 768} for k in range(6, 13)]
    runs = measured("linear", shapes, GPUS, (GPUS.ids.index(gpu),), slow, dtype="bf16")
    told = shipped(Auto.name).with_measured([runs], GPUS)
    ops = mixed(
        [operators("linear", shapes[3], dtype="bf16"), operators("softmax", {"b": 4096, "h": 1024}, dtype="bf16")]
    )
    before, after = (ask(predictor, ops, np.arange(2), gpu).latency_s for predictor in (shipped(Auto.name), told))
    true = runs.rows.latency_s[3]
    assert abs(np.log(after[0] / true)) < abs(np.log(before[0] / true))
    assert after[1] == pytest.approx(before[1], rel=1e-12)


@pytest.mark.parametrize("gpu", TARGETS)
def test_members_combine_to_the_prediction(gpu: str) -> None:
    ops, target = every_operator("bf16"), GPUS.ids.index(gpu)
    i = np.arange(len(ops))
    estimate = ask(shipped(Auto.name), ops, i, gpu)
    limit = hardware_limit(ops, GPUS, i, np.full(len(i), target))
    answer = finished(estimate, limit, Intervals.prior().log_offsets(0.8), 0.8)
    combine(answer, explained(shipped(Auto.name).operators_, ops, GPUS, np.full(len(ops), target), answer))
