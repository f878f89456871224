"""Training of some operators is what a training of all gives."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.errors import BadInput
from app.tables.measurements import Measurements, OperatorRuns
from app.training.candidate import candidate, changed_rows, joined, row_hashes, trained_together
from app.training.fit import Trained
from app.training.operator_start import Start
from tests.conformance.test_predictors import MEASURED
from tests.unit.training.test_candidate import made, training_data

GPUS = ("tesla-t4", "nvidia-l4", "a100-pcie-40gb")


def trained(*runs: OperatorRuns, kernels: Measurements | None = None) -> Trained:
    data = training_data(*runs)
    if kernels is not None:
        data = replace(data, kernels=kernels, kernel_ids=[str(row) for row in range(len(kernels))])
    return candidate(Start.on("auto"), data, [], target_gpu=None, report=lambda _: None).trained


def same(one: Any, other: Any) -> bool:
    """Whether two payloads are equal, the order of the keys of containers included."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return bool(one == other)


def test_operators_trained_later_are_as_trained_with_the_others() -> None:
    linear, narrow, batched = made(*GPUS), made(*GPUS, dtype="bf16"), made(*GPUS, op="bmm")
    whole = trained(linear, narrow, batched)
    before, later = trained(linear, narrow), trained(batched)
    found = joined(before.payload, before.card, later, [linear, narrow, batched], ["bmm"])
    for part in ("state", "intervals", "schema", "out_of_fold", "predictor"):
        assert same(found.payload[part], whole.payload[part]), part
    assert found.card["validation"] == whole.card["validation"]
    assert found.card["trained_on"]["rows"] == whole.card["trained_on"]["rows"]
    mine, theirs = (one.payload["operators"] for one in (found, whole))
    assert mine["gpus"] == theirs["gpus"]
    assert same(mine["rows"], theirs["rows"])
    held = [sorted(zip(*one["held_out"].values(), strict=True)) for one in (mine, theirs)]
    assert held[0] == held[1]


def test_kernels_are_kept() -> None:
    linear, batched = made(*GPUS), made(*GPUS, op="bmm")
    whole, before = (trained(*runs, kernels=MEASURED) for runs in ((linear, batched), (linear,)))
    found = joined(before.payload, before.card, trained(batched), [linear, batched], ["bmm"])
    for part in ("state", "intervals", "out_of_fold"):
        assert same(found.payload[part], whole.payload[part]), part
    assert found.card["validation"] == whole.card["validation"]
    assert found.card["trained_on"] == whole.card["trained_on"]


def test_operators_trained_again_replace_what_was_known_of_them() -> None:
    linear, first, second = made(*GPUS), made(*GPUS, op="bmm"), made(*GPUS, op="bmm", seed=1)
    before, again = trained(linear, first), trained(second)
    found = joined(before.payload, before.card, again, [linear, second], ["bmm"])
    whole = trained(linear, second)
    assert same(found.payload["state"], whole.payload["state"])
    assert same(found.payload["intervals"], whole.payload["intervals"])
    assert found.card["validation"] == whole.card["validation"]


def test_operators_of_an_interval_group_are_trained_together() -> None:
    assert trained_together(["quantize"]) == ("quantize",)
    assert trained_together(["expert_combine"]) == ("expert_dispatch", "expert_combine")
    assert "all_gather" in trained_together(["all_reduce"])  # their sizes are interpolated together
    with pytest.raises(BadInput, match="Unknown operator 'quantise'"):
        trained_together(["quantise"])


def test_changed_rows_are_found() -> None:
    linear, batched = made(*GPUS), made(*GPUS, op="bmm")
    known = row_hashes([linear, batched])
    assert changed_rows(known, [linear, batched]) == []
    fewer = batched.take(np.arange(len(batched) - 1))
    assert changed_rows(known, [linear, fewer]) == ["bmm"]
    assert changed_rows({}, [linear]) == ["linear"]
