"""Fitting, validation and gate on synthetic rows."""

import numpy as np
import pytest

from app.errors import NotTrained
from app.predictors.launches import launch_ids
from app.predictors.papers.cross_gpu_kernels import REGRESSORS
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.training.fit import folds, gate, train
from tests.conformance.test_predictors import EVIDENCE, GPUS, MEASURED, ON, OPS, ROWS

FOREST, _, RIDGE = REGRESSORS[:3]
IDS = [f"row-{k}" for k in range(len(MEASURED))]


def noisy(factor: float, seed: int = 0) -> Measurements:
    """The made-up rows with log-normal noise."""
    noise = np.random.default_rng(seed).normal(0, factor, len(MEASURED))
    return Measurements(MEASURED.ops, MEASURED.gpu, MEASURED.latency_s * np.exp(np.abs(noise)))


def test_no_fold_tests_a_training_row() -> None:
    for fold in folds(MEASURED, launch_ids(MEASURED.ops)):
        assert not set(fold.query) & set(fold.train)
        assert len(fold.source) == len(fold.position)
        assert (np.diff(fold.position) >= 0).all()
        if fold.split == "gpu_held_out":
            assert not set(MEASURED.gpu[fold.query]) & set(MEASURED.gpu[fold.train])
        if fold.split == "kernel_held_out":
            assert not set(MEASURED.ops.label[fold.query]) & set(MEASURED.ops.label[fold.train])


def test_the_accuracy_card_has_every_split_and_gpu() -> None:
    card = train("auto", MEASURED, GPUS, IDS).card
    assert card["trained_on"] == {"rows": len(MEASURED), "gpus": list(GPUS.ids)}
    splits = {row["split"] for row in card["validation"] if row["gpu"] == "all"}
    assert splits == {"gpu_held_out", "size_held_out", "kernel_held_out"}
    assert {row["gpu"] for row in card["validation"]} == {"all", *GPUS.ids}
    held = next(row for row in card["validation"] if (row["split"], row["gpu"]) == ("gpu_held_out", "all"))
    assert held["mape"] < 15.0


def test_a_version_for_one_gpu_is_validated_on_its_rows() -> None:
    card = train("auto", MEASURED, GPUS, IDS, target_gpu="volta").card
    assert {row["gpu"] for row in card["validation"]} == {"all", "volta"}


def test_a_regressor_for_one_gpu_trains_on_pairs_to_it() -> None:
    pooled, own = (train("ridge", MEASURED, GPUS, IDS, target_gpu=gpu) for gpu in (None, "volta"))
    assert {row["split"] for row in own.card["validation"]} == {"size_held_out", "kernel_held_out"}
    assert {row["gpu"] for row in own.card["validation"]} == {"all", "volta"}
    answers = [
        RIDGE.from_state(trained.payload["state"]).predict(OPS, GPUS, ROWS, ON, evidence=EVIDENCE)
        for trained in (own, pooled)
    ]
    assert not np.array_equal(answers[0].latency_s, answers[1].latency_s)
    with pytest.raises(NotTrained, match="volta and on another GPU"):
        FOREST().fit(MEASURED.take(np.flatnonzero(MEASURED.gpu == 0)), GPUS, target_gpu="volta")


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(NotTrained, match="too few"):
        train("auto", MEASURED.take(np.arange(3)), GPUS, IDS[:3])


def test_equal_rows_pass_the_gate() -> None:
    first = train("auto", MEASURED, GPUS, IDS)
    assert gate(first, None, MEASURED, GPUS, IDS, 0.0) is None
    assert gate(train("auto", MEASURED, GPUS, IDS), first.payload, MEASURED, GPUS, IDS, 0.0) is None


def test_corrupted_rows_do_not_pass_the_gate() -> None:
    first = train("auto", MEASURED, GPUS, IDS)
    poison = noisy(1.5)
    both = Measurements(
        MEASURED.ops.take(np.tile(np.arange(len(MEASURED)), 2)),
        np.tile(MEASURED.gpu, 2),
        np.concatenate([MEASURED.latency_s, poison.latency_s]),
    )
    ids = IDS + [f"poison-{k}" for k in range(len(MEASURED))]
    reason = gate(train("auto", both, GPUS, ids), first.payload, both, GPUS, ids, 0.02)
    assert reason is not None
    assert "kept back" in reason


def test_repeated_measurements_pass_the_gate() -> None:
    first = train("auto", MEASURED, GPUS, IDS)
    again = noisy(0.02)
    both = Measurements(
        MEASURED.ops.take(np.tile(np.arange(len(MEASURED)), 2)),
        np.tile(MEASURED.gpu, 2),
        np.concatenate([MEASURED.latency_s, again.latency_s]),
    )
    ids = IDS + [f"again-{k}" for k in range(len(MEASURED))]
    assert gate(train("auto", both, GPUS, ids), first.payload, both, GPUS, ids, 0.1) is None


def test_gpus_without_rows_do_not_matter() -> None:
    values = np.column_stack([GPUS.values, GPUS.values[:, 0]])
    wider = GpuTable((*GPUS.ids, "spare"), values, (*GPUS.architectures, "spare"))
    assert train("auto", MEASURED, wider, IDS).card == train("auto", MEASURED, GPUS, IDS).card
