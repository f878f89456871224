"""Training on top of the shipped version, validation on held-out rows, and the gate."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.engine.catalogue import load_seed_specs
from app.errors import NotTrained
from app.predictors.papers.li import Li
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements, OperatorRuns
from app.tables.ops import concatenate
from app.training.candidate import Candidate, TrainingData, candidate, kept_back
from app.training.operator_start import Start, any_holds, learned_from
from app.training.operator_validation import CONFIGURATION_HELD_OUT
from tests.conformance.test_predictors import MEASURED
from tests.unit.kernels import kernels
from tests.unit.operator_runs import runs_of
from tests.unit.operators import operators

GPUS = GpuTable.from_specs(load_seed_specs())
SHAPES = [{"m": m, "n": n, "k": k} for m in (256, 1024, 4096) for n in (512, 2048, 8192) for k in (256, 1024, 4096)]
RATE = {"tesla-t4": 4e12, "nvidia-l4": 1.2e13, "a100-pcie-40gb": 1.4e13, "tesla-v100-pcie-32gb": 6e12}
NO_KERNELS = Measurements(kernels([]), np.empty(0, dtype=np.intp), np.empty(0))


def made(*gpus: str, op: str = "linear", dtype: str = "fp32", noise: float = 0.05, seed: int = 0) -> OperatorRuns:
    """Products whose time is a floor and FLOPs at a rate."""
    draw = np.random.default_rng(seed)
    shapes = [{"b": 8, **shape} if op == "bmm" else shape for shape in SHAPES] * len(gpus)
    table = operators(op, *shapes, dtype=dtype)
    on = np.repeat([GPUS.ids.index(name) for name in gpus], len(SHAPES))
    flops = 2 * table.column("m") * table.column("n") * table.column("k") * (8 if op == "bmm" else 1)
    seconds = 4e-5 + flops / np.repeat([RATE[name] for name in gpus], len(SHAPES))
    return runs_of(op, dtype, table, gpu=on.tolist(), latency_s=(seconds * np.exp(abs(draw.normal(0, noise, len(on))))))


def learned(
    *runs: OperatorRuns, start: Start | None = None, card: list[Any] | None = None, gpu: str | None = None
) -> Candidate:
    training_data = TrainingData(GPUS, NO_KERNELS, [], runs)
    return candidate(start or Start.on("li"), training_data, card or [], target_gpu=gpu, report=lambda _: None)


def training_data(*runs: OperatorRuns) -> TrainingData:
    return TrainingData(GPUS, NO_KERNELS, [], runs)


def seconds(found: Candidate, run: OperatorRuns) -> np.ndarray:
    i = np.arange(len(run))
    nothing = Evidence(run.rows.take(i[:0]), i[:0])
    ready = Li.from_state(found.trained.payload["state"])
    return ready.predict(run.rows.ops, GPUS, i, run.rows.gpu, evidence=nothing).latency_s


def test_the_accuracy_card_has_every_split_cell_and_gpu() -> None:
    card = learned(made(*RATE), made("tesla-t4", "nvidia-l4", op="bmm")).trained.card
    assert card["trained_on"]["rows"] == 27 * 6
    assert set(card["trained_on"]["gpus"]) == set(RATE)
    cells = {(row["split"], row["family"], row["gpu"]) for row in card["validation"]}
    assert ("configuration_held_out", "linear/fp32", "all") in cells
    assert ("gpu_held_out", "linear/fp32", "tesla-t4") in cells
    assert ("configuration_held_out", "bmm/fp32", "nvidia-l4") in cells
    held = next(row for row in card["validation"] if row["split"] == "configuration_held_out")
    assert held["mape"] < 10.0
    assert held["n"] > 0


def test_with_few_rows_each_is_held_out_and_the_card_says_so() -> None:
    every = made("tesla-t4", "nvidia-l4")
    few = every.take(np.flatnonzero(every.rows.gpu == every.rows.gpu[0])[:20])
    found = learned(few)
    assert found.held_out is not None
    held = found.held_out.take(found.held_out.split == CONFIGURATION_HELD_OUT)
    assert sorted(held.row) == list(range(20))
    cells = {row["family"]: row for row in found.trained.card["validation"] if row["gpu"] == "all"}
    assert cells["linear/fp32"]["n"] == 20
    notes = {row["n"]: row.get("note") for row in learned(made(*RATE), few).trained.card["validation"]}
    assert {n: note == "too few rows" for n, note in notes.items()} == {n: n < 10 for n in notes}
    assert min(notes) < 10 <= max(notes)


def test_shipped_models_are_kept_beside_trained_ones() -> None:
    ships = learned(made("tesla-t4", "nvidia-l4", "a100-pcie-40gb"), made("tesla-t4", "nvidia-l4", op="bmm"))
    start = Start.on("li", ships.trained.payload)
    new = made("tesla-v100-pcie-32gb")
    found = learned(new, start=start, card=ships.trained.card["validation"])
    old = made("tesla-t4", "nvidia-l4", op="bmm")
    np.testing.assert_array_equal(seconds(found, old), seconds(ships, old))
    assert np.abs(np.log(seconds(found, new) / new.rows.latency_s)).mean() < 0.1
    assert np.abs(np.log(seconds(ships, new) / new.rows.latency_s)).mean() > 0.1
    before = {(r["split"], r["family"], r["gpu"]) for r in ships.trained.card["validation"]}
    after = {(r["split"], r["family"], r["gpu"]) for r in found.trained.card["validation"]}
    assert before < after
    assert ("gpu_held_out", "linear/fp32", "tesla-v100-pcie-32gb") in after
    known = set(ships.trained.payload["intervals"]["residuals"])
    assert known <= set(found.trained.payload["intervals"]["residuals"])
    assert found.trained.payload["operators"]["gpus"] == sorted(RATE)


def test_held_out_validation_uses_a_predictor_without_the_shipped_rows() -> None:
    """The rows are those that ship: only a predictor made without them may be asked."""
    run = made("tesla-t4", "nvidia-l4", "a100-pcie-40gb")
    ships = learned(run)
    again = learned(run, start=Start.on("li", ships.trained.payload))
    assert ships.held_out is not None
    assert again.held_out is not None
    np.testing.assert_allclose(np.sort(again.held_out.log_ratio), np.sort(ships.held_out.log_ratio))


def test_equal_rows_pass_the_gate_and_worse_predictions_do_not() -> None:
    run = made(*RATE)
    first, again = learned(run), learned(run)
    assert kept_back(first, None, training_data(run), 0.0, 300.0) is None
    assert kept_back(again, first.trained.payload, training_data(run), 0.0, 300.0) is None
    held = first.trained.payload["operators"]["held_out"]
    better = {**held, "error": held["error"] / 2}
    served = {**first.trained.payload, "operators": {**first.trained.payload["operators"], "held_out": better}}
    reason = kept_back(again, served, training_data(run), 0.02, 300.0)
    assert reason is not None
    assert "rows held out of both" in reason


def test_a_candidate_worse_on_new_rows_is_held_back() -> None:
    first = learned(made(*RATE))
    one = made("tesla-t4", seed=1).rows
    # Every third row half as long as it should be: a line through all is worse than the first one.
    wrong = runs_of("linear", "fp32", one.ops, gpu=one.gpu.tolist(), latency_s=(0.5 * one.latency_s).tolist())
    mixed = joined(joined(made("tesla-t4", seed=2), made("tesla-t4", seed=3)), wrong)
    reason = kept_back(learned(mixed), first.trained.payload, training_data(mixed), 0.02, 300.0)
    assert reason is not None
    assert "new rows" in reason


def joined(one: OperatorRuns, other: OperatorRuns) -> OperatorRuns:
    rows = [one.rows, other.rows]
    table = concatenate([part.ops for part in rows])
    gpu = np.concatenate([part.gpu for part in rows]).tolist()
    return runs_of(one.op, one.dtype, table, gpu=gpu, latency_s=np.concatenate([part.latency_s for part in rows]))


def test_a_new_gpu_passes_the_gate() -> None:
    first = learned(made("tesla-t4", "nvidia-l4"))
    new = made("tesla-v100-pcie-32gb")
    found = learned(new, start=Start.on("li", first.trained.payload))
    assert kept_back(found, first.trained.payload, training_data(new), 0.02, 300.0) is None


def test_a_version_beyond_any_use_is_held_back_also_where_none_is_served() -> None:
    run = made(*RATE, noise=4.0)
    reason = kept_back(learned(run), None, training_data(run), 0.02, 50.0)
    assert reason is not None
    assert "operators held out" in reason and "over 50 %" in reason


def test_a_gpu_without_measured_kernels_learns_its_operators() -> None:
    launches = MEASURED.take(np.flatnonzero(MEASURED.gpu == 0))
    elsewhere = replace(launches, gpu=np.full(len(launches), GPUS.ids.index("tesla-t4")))
    ids = [f"kernel-{k}" for k in range(len(launches))]
    rows = TrainingData(GPUS, elsewhere, ids, [made("nvidia-l4")])
    found = candidate(Start.on("auto"), rows, [], target_gpu="nvidia-l4", report=lambda _: None)
    assert {row["gpu"] for row in found.trained.card["validation"]} == {"all", "nvidia-l4"}
    assert found.trained.payload["out_of_fold"] == {}


def test_a_version_for_one_gpu_is_validated_on_its_rows() -> None:
    found = learned(made(*RATE), gpu="nvidia-l4")
    assert {row["gpu"] for row in found.trained.card["validation"]} == {"all", "nvidia-l4"}


def test_too_few_rows_are_refused() -> None:
    run = made("tesla-t4")
    with pytest.raises(NotTrained, match="too few"):
        learned(run.take(np.arange(3)))


def test_rows_that_no_cell_learned_may_still_correct() -> None:
    """Few rows in FP16 borrow what BF16 taught: they stay among those that a service corrects their GPU with."""
    taught = made("nvidia-l4", "a100-pcie-40gb", dtype="bf16")
    few = made("nvidia-l4", dtype="fp16")
    few = replace(few, key=few.key + np.uint64(1 << 40))
    payload = learned(taught, few, start=Start.on("auto")).trained.payload
    _, rows = learned_from(payload)
    assert any_holds(rows, taught.key).all()
    assert any_holds(rows, few.key).mean() < 0.3  # a set of keys holds some others by chance
