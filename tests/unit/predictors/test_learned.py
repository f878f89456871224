"""Training of `auto` on operators: physics fit, trees, and the models that answer for each GPU."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from joblib import parallel_config

from app.bands.groups import SITUATIONS
from app.ops import OP_CODE
from app.ops.attention_module import DSA, MLA, MSA
from app.ops.collective import CUSTOM
from app.ops.experts import OTHER
from app.ops.gemm import CANDIDATES
from app.predictors.auto.operators.learning.fitting import MOST_TREES, agreed, growth_of
from app.predictors.auto.operators.learning.learn import corrected, corrections, expected_errors
from app.predictors.auto.operators.models import training_samples
from app.predictors.auto.operators.models.training_samples import samples, with_isolated_rows
from app.predictors.auto.predictor import Auto
from app.predictors.fitted_once import fitted_once
from app.predictors.physics.analytic_model import (
    ANY_TILE,
    COMPUTE_S,
    DRAM_S,
    LEAST,
    LIMIT,
    OVERHEAD,
    TERMS,
    TIME,
)
from app.predictors.physics.physics_fit import FACTORS, NEUTRAL, fill_scaled, fitted_factors
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements, OperatorRuns, stacked
from app.tables.ops import OpTable
from app.tables.predictions import EXTRAPOLATED, INTERPOLATED
from tests.unit.kernels import TURING
from tests.unit.learned import (
    GPUS,
    SEEN,
    SEEN_THREE,
    SEEN_TOO,
    SIBLING,
    THIRD,
    UNSEEN,
    error,
    law,
    runs,
    situation,
    trained_auto,
    untrained,
)
from tests.unit.measured import measured, no_evidence, random_shapes
from tests.unit.operators import mixed, operators

pytestmark = pytest.mark.slow

LAYERS = ((6144, 2048, 256, 8), (4096, 1536, 128, 8), (6144, 2560, 160, 8))
OTHER_GATE_LAYER = (6144, 3072, 128, 4)  # MiniMax-M3's


def experts(layers: Any, kernel: str) -> OperatorRuns:
    """Layers on a GPU; MiniMax-M3 takes twice as long, and runs on this kernel."""
    names = ("hidden", "intermediate", "experts", "top_k")
    shapes = [dict(zip(names, layer, strict=True)) for layer in layers]
    tokens = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)
    split = [("tensor_parallel", n) for n in (1, 2, 4, 8, 16, 32)] + [("expert_parallel", n) for n in (2, 4, 8, 16, 32)]
    rows = [shape | {"tokens": n, name: part} for shape in shapes for n in tokens for name, part in split]
    rows += [row | {"distribution": 1.2} for row in rows]
    rows = [row | {"gate": OTHER} if row["top_k"] == OTHER_GATE_LAYER[-1] else row for row in rows]

    def other(ops: OpTable) -> Any:
        return ops.column("top_k") == 4

    def slower(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        return (
            untrained(ops, gpu, gpus) * np.where(other(ops), 2.0, 1.1) * np.where(ops.column("hidden") > 5000, 1.2, 1.0)
        )

    def named(ops: OpTable, gpu: Any) -> list[str]:
        return [kernel if is_other else "fused" for is_other in other(ops)]

    return measured("moe", rows, GPUS, (SEEN,), slower, dtype="bf16", kernel=named)


def test_trees_take_larger_steps_where_rows_are_too_many_for_them() -> None:
    linear, experts = OP_CODE["linear"], OP_CODE["moe"]
    few, most, more = (growth_of(rows, linear, eager=False) for rows in (4000, 16_000, 64_000))
    assert few.trees < most.trees == more.trees == MOST_TREES[False]
    assert few.rate == most.rate == more.rate / 2.0
    many = growth_of(64_000, experts, eager=False)  # of few configurations
    assert many.trees == MOST_TREES[True] and many.rate == few.rate


@pytest.mark.parametrize("most", [7, 13, 29, 100])
def test_of_too_many_rows_as_many_as_may_teach_are_kept(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_samples, "MOST_ROWS", most)
    every = measured("softmax", random_shapes("bh", 64, seed=0), GPUS, (SEEN,), law)
    for count in range(1, len(every.rows) + 1):
        kept = training_samples.usual_rows(every.take(np.arange(count))).key
        assert len(kept) == len(set(kept.tolist())) == min(count, most)


def test_router_classes_are_trained_separately() -> None:
    usual, own = experts(LAYERS, "fused"), experts([OTHER_GATE_LAYER], "grouped")
    alone = Auto().fit_operators([usual], GPUS)
    for kernel, teaches in (("grouped", False), ("fused", True)):
        both = Auto().fit_operators([experts((*LAYERS, OTHER_GATE_LAYER), kernel)], GPUS)
        near = experts([(5120, 2048, 160, 8)], "fused").rows
        answers = [
            auto.predict(near.ops, GPUS, np.arange(len(near)), near.gpu, evidence=no_evidence(near.ops)).latency_s
            for auto in (alone, both)
        ]
        assert np.allclose(*answers, rtol=1e-6) != teaches
        rows = own.rows
        known = both.predict(rows.ops, GPUS, np.arange(len(rows)), rows.gpu, evidence=no_evidence(rows.ops)).latency_s
        assert np.abs(known / rows.latency_s - 1.0).mean() < 0.05


def test_trees_of_rows_apart_leave_no_feature_more_thresholds_than_a_byte_counts() -> None:
    at_random = np.random.default_rng(0)

    def layers(shape: tuple[int, ...], **other: float) -> list[dict[str, Any]]:
        names = ("hidden", "intermediate", "experts", "top_k")
        tokens = np.unique(np.rint(np.exp(at_random.uniform(0.0, 16.0, 3000)))).tolist()
        return [dict(zip(names, shape, strict=True)) | {"tokens": n} | other for n in tokens]

    def by_layer(ops: OpTable, gpu: Any) -> list[str]:
        return ["grouped" if top_k == OTHER_GATE_LAYER[-1] else "fused" for top_k in ops.column("top_k")]

    def scattered(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        return untrained(ops, gpu, gpus) * np.exp(at_random.normal(0.0, 0.5, len(ops)))

    rows = [*layers(LAYERS[0]), *layers(OTHER_GATE_LAYER, gate=OTHER)]
    runs = measured("moe", rows, GPUS, (SEEN,), scattered, dtype="bf16", kernel=by_layer)
    known = Auto().fit_operators([runs], GPUS)
    asked = measured("moe", rows[:1], GPUS, (SEEN,), scattered, dtype="bf16").rows
    answer = known.predict(asked.ops, GPUS, np.zeros(1, dtype=np.intp), asked.gpu, evidence=no_evidence(asked.ops))
    assert np.isfinite(answer.latency_s).all()


def test_operators_that_are_no_experts_have_no_layers_apart() -> None:
    row = {"batch": 8, "heads": 16, "head_dim": 128, "value_dim": 128, "context_length": 4096, "hidden": 7168}
    kinds = [row | {"latent_dim": 512, "rope_dim": 64, "variant": float(kind)} for kind in (MLA, DSA, MSA)]
    modules = measured("attention_module", kinds, GPUS, (SEEN,), law_of_modules, dtype="bf16")
    layers = experts((*LAYERS, OTHER_GATE_LAYER), "grouped")
    apart = [with_isolated_rows(samples(of.rows, GPUS), of).isolated.any() for of in (modules, layers)]
    assert apart == [False, True]


def law_of_modules(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
    return untrained(ops, gpu, gpus)


def test_dtypes_of_few_configurations_share_what_they_carry_to_other_gpus() -> None:
    """Three GPUs take twice the time in BF16; FP8, of which two know as much, is then predicted so on a fourth."""
    names = ("hidden", "intermediate", "experts", "top_k")
    tokens = np.rint(np.geomspace(1, 8192, 60)).tolist()
    rows = [dict(zip(names, layer, strict=True)) | {"tokens": n} for layer in LAYERS for n in tokens]

    def twice(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        return 2.0 * untrained(ops, gpu, gpus)

    bf16, fp8 = (
        measured("moe", rows, GPUS, on, twice, dtype=dtype)
        for dtype, on in (("bf16", (SEEN, SEEN_TOO, SEEN_THREE)), ("fp8", (SEEN, SEEN_TOO)))
    )
    alone, together = (Auto().fit_operators(taught, GPUS) for taught in ([fp8], [bf16, fp8]))
    asked = measured("moe", rows, GPUS, (UNSEEN,), twice, dtype="fp8").rows
    here, nothing = np.arange(len(asked)), no_evidence(asked.ops)
    off = [
        np.abs(auto.predict(asked.ops, GPUS, here, asked.gpu, evidence=nothing).latency_s / asked.latency_s - 1.0)
        for auto in (alone, together)
    ]
    assert off[0].mean() > 0.3
    assert off[1].mean() < 0.1
    cells = together.operators_.cells
    assert cells["moe", "fp8"].shared is cells["moe", "bf16"].shared


def test_fitted_constants_are_recovered_and_respect_the_hardware_limit() -> None:
    rng = np.random.default_rng(0)
    terms = np.abs(rng.lognormal(-9.0, 1.5, (TERMS, 400)))
    terms[OVERHEAD], terms[LEAST], terms[LIMIT], terms[TIME] = 1e-5, 2e-5, 1e-7, 0.0
    true, measured_s = np.array([1.5, 2.0, 1.3, 1.2, 0.8, 1.0]), np.empty(400)
    fill_scaled(terms, true, measured_s)
    found, again = fitted_factors(terms, measured_s), np.empty(400)
    assert found.shape == (FACTORS,)
    fill_scaled(terms, found, again)
    assert np.abs(np.log(again / measured_s)).mean() < 0.05
    assert (again >= terms[LIMIT]).all()


def test_no_single_bottleneck_exceeds_the_measured_time() -> None:
    rng = np.random.default_rng(0)
    terms = np.zeros((TERMS, 600))
    terms[OVERHEAD], terms[LEAST], terms[LIMIT] = 1e-6, 1e-6, 1e-9
    # Two fifths of the rows run at the DRAM's rate, the others wait for something that compute may stand in for.
    terms[DRAM_S] = rng.lognormal(-7.0, 1.0, 600)
    terms[COMPUTE_S] = terms[DRAM_S] / 3.0
    latency_s = np.where(rng.random(600) < 0.6, 3.0, 1.1) * terms[DRAM_S]
    free, capped = (fitted_factors(terms, latency_s, capped=capped) for capped in (False, True))
    longest = [(terms[[COMPUTE_S, DRAM_S]] * factors[2:4, None] / latency_s).max() for factors in (free, capped)]
    assert longest[0] > 1.5
    assert longest[1] < 1.05


def test_trained_gpus_are_predicted_well() -> None:
    assert error(trained_auto(), SEEN) < 0.06
    assert error(trained_auto(), SEEN, op="softmax", names="bh") < 0.06
    assert error(Auto(), SEEN) > 0.2


@pytest.mark.parametrize("eager", [np.nan, -1.0])
def test_slot_powered_cards_keep_half_of_the_measured_correction(eager: float) -> None:
    gpus = GpuTable.from_specs([TURING, replace(TURING, id="slot", architecture="slot", board_power_w=70.0)])
    rows = measured("linear", random_shapes("mnk", 900, seed=0), gpus, (0, 1), law)
    auto = Auto().fit_operators([rows], gpus)
    long = rows.rows.take(np.flatnonzero(rows.rows.latency_s > np.quantile(rows.rows.latency_s, 0.9)))
    long.ops.column("eager")[:] = eager
    learned, untrained = (
        one.predict(long.ops, gpus, np.arange(len(long)), long.gpu, evidence=no_evidence(long.ops))
        for one in (auto, Auto())
    )
    said = np.log(learned.latency_s / untrained.latency_s)
    steady, slot = (float(np.median(said[long.gpu == gpu])) for gpu in (0, 1))
    assert slot == pytest.approx(0.5 * steady, rel=0.1)
    assert situation(auto, long.ops, 1, gpus)[:1] == ["calibrated"]


def test_siblings_transfer_and_others_use_the_shared_model() -> None:
    assert error(trained_auto(), SIBLING) < 0.10
    assert error(trained_auto(), UNSEEN) < 0.20
    ops = operators("linear", {"m": 512, "n": 512, "k": 512}, {"m": 2.0**20, "n": 512, "k": 512})
    assert situation(trained_auto(), ops, SEEN) == ["seen", "seen_outside"]
    assert situation(trained_auto(), ops, SIBLING)[0] == "sibling"
    assert situation(trained_auto(), ops, UNSEEN) == ["unseen", "unseen_outside"]
    assert situation(trained_auto(), operators("relu", {"b": 64, "h": 64}), SEEN) == ["untrained"]


@pytest.mark.parametrize("target", [SEEN, SIBLING])
def test_queries_outside_the_training_range_are_extrapolated(target: int) -> None:
    ops = operators("linear", {"m": 512, "n": 512, "k": 512}, {"m": 2.0**20, "n": 512, "k": 512})
    answer = trained_auto().predict(ops, GPUS, np.arange(2), np.full(2, target), evidence=no_evidence(ops))
    assert answer.support.tolist() == [INTERPOLATED, EXTRAPOLATED]
    assert answer.stretch is not None
    assert answer.stretch[0] == 1.0 < answer.stretch[1]


def test_constants_of_two_architectures_are_not_applied_to_a_third() -> None:
    two = Auto().fit_operators([runs("linear", "mnk", 900, (SEEN, SEEN_TOO))], GPUS).operators_.cells["linear", "fp32"]
    three = trained_auto().operators_.cells["linear", "fp32"]
    assert (two.strength.factors == 0.0).all()
    assert (three.strength.factors > 0.0).any()
    np.testing.assert_array_equal(two.gpu_model("other", "other").factors, NEUTRAL)
    assert (three.gpu_model("third", "third").factors != three.gpu_model("other", "other").factors).any()


def test_constants_transfer_as_far_as_architectures_agree() -> None:
    told = np.zeros((3, FACTORS))
    told[:, 0], told[:, 1], told[:, 2] = 0.5, (0.4, -0.4, 0.0), (0.1, 0.2, 0.3)
    np.testing.assert_allclose(agreed(told), [1.0, 0.0, 2.0 / 3.0, 0.0, 0.0, 0.0])


def test_memory_bound_operators_transfer_constants_but_no_trees() -> None:
    for seen, carries in (((SEEN, SEEN_TOO), False), ((SEEN, SEEN_TOO, SEEN_THREE), True)):
        cell = Auto().fit_operators([runs("relu", "bh", 450, seen)], GPUS).operators_.cells["relu", "fp32"]
        assert (cell.strength.factors > 0.0).any() == carries
        assert cell.gpu_model("other", "other").members == ()
    name = next(iter(cell.own))
    sibling = cell.gpu_model("other", cell.architecture[name])
    assert sibling.members == ()
    np.testing.assert_allclose(sibling.factors, cell.own[name].factors ** cell.strength.factors)


def test_models_of_few_rows_are_used_without_the_shared_model() -> None:
    few = runs("linear", "mnk", 60, (SEEN, SEEN_TOO, SEEN_THREE))
    cell = Auto().fit_operators([few], GPUS).operators_.cells["linear", "fp32"]
    assert cell.shared is not None
    assert all(model.alone for model in cell.own.values())


def test_a_gpu_of_few_rows_is_no_donor_where_others_have_many() -> None:
    many, few = runs("linear", "mnk", 900, (SEEN_TOO, SEEN_THREE)), runs("linear", "mnk", 60, (SEEN,))
    everywhere = runs("linear", "mnk", 60, (SEEN, SEEN_TOO, SEEN_THREE))
    both = joined_runs(many, few)
    sibling = ("twin", GPUS.architectures[SIBLING])
    for taught, found in ((everywhere, "sibling"), (both, "unseen")):
        cell = Auto().fit_operators([taught], GPUS).operators_.cells["linear", "fp32"]
        assert SITUATIONS[cell.gpu_model(*sibling).situation] == found


def test_few_rows_correct_what_a_sibling_taught_in_the_same_training() -> None:
    """Fifteen rows of an H100 once corrected the physics, on top of which the H200 was then applied, too."""
    few, more = runs("linear", "mnk", 15, (SIBLING,), seed=1), runs("linear", "mnk", 200, (SEEN, SEEN_TOO))
    trained = Auto().fit_operators([joined_runs(thrice_as_slow(more), thrice_as_slow(few))], GPUS)
    fresh = thrice_as_slow(runs("linear", "mnk", 100, (SIBLING,), seed=9)).rows
    answer = trained.predict(fresh.ops, GPUS, np.arange(len(fresh)), fresh.gpu, evidence=no_evidence(fresh.ops))
    assert np.median(answer.latency_s / fresh.latency_s) == pytest.approx(1.0, abs=0.15)


def thrice_as_slow(slow: OperatorRuns) -> OperatorRuns:
    return replace(slow, rows=replace(slow.rows, latency_s=3.0 * slow.rows.latency_s))


def joined_runs(first: OperatorRuns, other: OperatorRuns) -> OperatorRuns:
    """Rows of both, of one operator and dtype."""
    rows = stacked([first.rows, other.rows])
    codes = {name: np.concatenate([getattr(first, name), getattr(other, name)]) for name in ("software", "kernel")}
    blank, key = np.full((3, len(rows)), np.nan), np.arange(len(rows), dtype=np.uint64)
    return replace(first, rows=rows, grid=blank, block=blank, key=key, **codes)


def test_unmeasured_phases_states_and_dtypes_have_weaker_situations() -> None:
    shape = {"m": 512.0, "n": 512.0, "k": 512.0}
    ops = operators("linear", shape | {"backward": 1.0}, shape | {"burst": 1.0})
    assert situation(trained_auto(), ops, SEEN) == ["untrained", "untrained"]
    shapes = random_shapes("mnk", 450, step=8)
    half = Auto().fit_operators([measured("linear", shapes, GPUS, (SEEN,), law, dtype="bf16")], GPUS)
    assert situation(half, operators("linear", shape, dtype="bf16"), SEEN) == ["seen"]
    assert situation(half, operators("linear", shape, dtype="fp16"), SEEN) == ["sibling"]


def test_int8_does_not_borrow_fp8_of_gpus_without_its_pipe() -> None:
    """What such a GPU takes for FP8, many times its physics, says nothing of INT8, for which it has a pipe."""
    rates = TURING.peak_flops | {"int8_tensor": 96e12}
    has = replace(TURING, id="has", architecture="has", peak_flops=rates | {"fp8_tensor": 96e12})
    gpus = GpuTable.from_specs([replace(TURING, peak_flops=rates), has])
    shapes = random_shapes("mnk", 450)
    for gpu, ratio in ((0, 1.0), (1, 5.0)):
        fp8 = measured(
            "linear", shapes, gpus, (gpu,), lambda ops, gpus, gpu: untrained(ops, gpu, gpus) * 5.0, dtype="fp8"
        )
        trained, ops = Auto().fit_operators([fp8], gpus), operators("linear", *shapes, dtype="int8")
        answer = trained.predict(ops, gpus, np.arange(450), np.full(450, gpu), evidence=no_evidence(ops))
        assert np.median(answer.latency_s / untrained(ops, np.full(450, gpu), gpus)) == pytest.approx(ratio, rel=0.1)
        assert set(situation(trained, ops, gpu, gpus)) == {"unseen" if ratio == 1.0 else "sibling"}
        # Nor does it once somebody measured a little of INT8 elsewhere.
        few = measured("linear", shapes[:16], gpus, (1 - gpu,), law, dtype="int8")
        told = trained.with_measured([few], gpus)
        after = told.predict(ops, gpus, np.arange(450), np.full(450, gpu), evidence=no_evidence(ops))
        np.testing.assert_array_equal(after.latency_s, answer.latency_s)


def test_backward_rows_do_not_change_forward_predictions() -> None:
    shapes = [shape | {"backward": 1.0} for shape in random_shapes("mnk", 450)]
    backward = measured("linear", shapes, GPUS, (SEEN,), lambda ops, gpus, gpu: 5.0 * law(ops, gpus, gpu))
    assert error(trained_auto().fit_operators([backward], GPUS), SEEN) == error(trained_auto(), SEEN)


def test_few_shot_rows_correct_without_training() -> None:
    def slower(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        return 1.8 * law(ops, gpus, gpu)

    few = measured("linear", random_shapes("mnk", 24, seed=3), GPUS, (UNSEEN,), slower)
    fresh = measured("linear", random_shapes("mnk", 200, seed=9), GPUS, (UNSEEN,), slower).rows
    asked = (fresh.ops, GPUS, np.arange(len(fresh)), fresh.gpu)
    errors = [
        float(np.abs(one.predict(*asked, evidence=no_evidence(fresh.ops)).latency_s / fresh.latency_s - 1.0).mean())
        for one in (trained_auto(), trained_auto().with_measured([few], GPUS))
    ]
    assert errors[1] < 0.5 * errors[0]
    assert error(trained_auto().with_measured([few], GPUS), SEEN) == error(trained_auto(), SEEN)


def test_few_rows_correct_a_borrowed_dtype() -> None:
    """FP16 twice as slow as BF16, on a GPU whose BF16 is known: its few rows are on top of that, and others keep it."""

    def slower(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        return 2.0 * law(ops, gpus, gpu)

    shapes, seen = random_shapes("mnk", 450, step=8), (SEEN, SEEN_TOO)
    half = Auto().fit_operators([measured("linear", shapes, GPUS, seen, law, dtype="bf16")], GPUS)
    few = measured("linear", random_shapes("mnk", 16, seed=3, step=8), GPUS, (SEEN,), slower, dtype="fp16")
    told = half.with_measured([few], GPUS)

    def off(one: Auto, dtype: str, gpu: int, truth: Any) -> float:
        shapes = random_shapes("mnk", 200, seed=9, step=8)
        fresh = measured("linear", shapes, GPUS, (gpu,), truth, dtype=dtype).rows
        asked = (fresh.ops, GPUS, np.arange(len(fresh)), fresh.gpu)
        answer = one.predict(*asked, evidence=no_evidence(fresh.ops)).latency_s
        return float(np.abs(answer / fresh.latency_s - 1.0).mean())

    assert off(half, "fp16", SEEN, slower) > 0.4
    assert off(told, "fp16", SEEN, slower) < 0.1
    for dtype, gpu in (("bf16", SEEN), ("fp16", SEEN_TOO), ("fp16", SIBLING)):
        assert off(told, dtype, gpu, law) == off(half, dtype, gpu, law)
    asked = few.rows.ops, np.full(len(few), SEEN), np.ones(len(few))
    assert expected_errors(half.operators_, Measurements(*asked), GPUS) is not None
    blocks = told.operators_._packed
    assert len(blocks.first) == len(half.operators_._packed.first) + 1


@pytest.mark.parametrize("count", [30, 450], ids=["few", "many"])
def test_rows_of_one_gpu_leave_others_what_a_like_format_taught(count: int) -> None:
    """Rows in FP16 of an H200 once kept all other GPUs from what was learned in BF16."""
    shapes = random_shapes("mnk", 500, step=8)
    bf16 = measured("linear", shapes, GPUS, (SEEN, SEEN_TOO), law, dtype="bf16")
    fp16 = measured("linear", shapes[:count], GPUS, (SEEN,), law, dtype="fp16")
    trained = Auto().fit_operators([bf16, fp16], GPUS)
    ops = operators("linear", *random_shapes("mnk", 50, low=64, high=2048, seed=9, step=8), dtype="fp16")
    asked = ops, GPUS, np.arange(50), np.full(50, SEEN_TOO)
    alone = Auto().fit_operators([bf16], GPUS).predict(*asked, evidence=no_evidence(ops))
    np.testing.assert_array_equal(trained.predict(*asked, evidence=no_evidence(ops)).latency_s, alone.latency_s)
    assert set(situation(trained, ops, SEEN_TOO)) == {"sibling"}
    assert set(situation(trained, ops, SEEN)) == {"seen" if count == 450 else "sibling"}


def on_one_tile(tile: int) -> Any:
    """The rule of a GPU whose kernels for batches of products all have the tile 128 x 128, of another with any."""

    def time(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        usual, only = (
            samples(Measurements(ops, gpu, np.ones(len(gpu))), gpus, np.full(len(gpu), code)).terms[TIME]
            for code in (ANY_TILE, tile)
        )
        return 1.2 * np.where(gpu == SEEN_THREE, usual, only)

    return time


@pytest.mark.parametrize("tile", [(128, 128), (64, 128)])
def test_the_only_tile_of_a_library_is_found_and_used_for_siblings(tile: tuple[int, int]) -> None:
    only = next(row for row in range(len(CANDIDATES)) if tuple(CANDIDATES[row]) == tile)
    shapes = random_shapes("bmnk", 450, low=16, high=600)
    trained = Auto().fit_operators([measured("bmm", shapes, GPUS, (SEEN, SEEN_THREE), on_one_tile(only))], GPUS)
    known = trained.operators_.cells["bmm", "fp32"]
    assert {name: model.tile for name, model in known.own.items()} == {TURING.id: only, THIRD.id: ANY_TILE}
    assert known.gpu_model("twin", GPUS.architectures[SIBLING]).tile == only
    assert known.gpu_model("twin", f"{GPUS.architectures[SIBLING]}/hbm").tile == only
    assert known.gpu_model("other", "other").tile == ANY_TILE
    few = measured("bmm", shapes[:32], GPUS, (UNSEEN,), on_one_tile(only))
    fresh = measured("bmm", random_shapes("bmnk", 200, low=16, high=600, seed=9), GPUS, (UNSEEN,), on_one_tile(only))
    told = trained.with_measured([few], GPUS)
    assert told.operators_.cells["bmm", "fp32"].own["other"].tile == only
    asked = (fresh.rows.ops, GPUS, np.arange(200), fresh.rows.gpu)
    for one in (told, Auto.from_state(told.state())):
        answer = one.predict(*asked, evidence=no_evidence(fresh.rows.ops)).latency_s
        assert np.abs(answer / fresh.rows.latency_s - 1.0).mean() < 0.03


def test_models_without_new_rows_are_kept() -> None:
    more = trained_auto().fit_operators([runs("linear", "mnk", 500, (UNSEEN,), seed=5)], GPUS)
    # The range learned from may grow, beyond which corrections fade.
    assert error(more, SEEN) == pytest.approx(error(trained_auto(), SEEN), rel=0.02)
    assert error(more, SEEN, op="softmax", names="bh") == error(trained_auto(), SEEN, op="softmax", names="bh")
    assert error(more, UNSEEN) < 0.03


def test_a_row_is_predicted_equally_alone_and_in_a_batch() -> None:
    parts = [
        operators("softmax", {"b": 700, "h": 300}, {"b": 64, "h": 1024}),
        operators("linear", {"m": 512, "n": 640, "k": 320}),
    ]
    together = mixed(parts)
    i, j = np.arange(len(together)), np.full(len(together), SEEN)
    whole = trained_auto().predict(together, GPUS, i, j, evidence=no_evidence(together)).latency_s
    alone = np.concatenate(
        [
            trained_auto().predict(one, GPUS, np.array([k]), j[:1], evidence=no_evidence(one)).latency_s
            for one in parts
            for k in range(len(one))
        ]
    )
    np.testing.assert_allclose(whole, alone, rtol=1e-6)


def test_stored_states_predict_equally() -> None:
    again = Auto.from_state(trained_auto().state())
    assert error(again, SEEN) == pytest.approx(error(trained_auto(), SEEN), abs=2e-3)  # leaves in half precision


def test_a_predictor_that_answered_is_pickled_without_what_it_derived() -> None:
    """Its caches name models by their identities in this process."""
    told = trained_auto()
    error(told, SEEN)
    again = pickle.loads(pickle.dumps(told))
    assert "_packed" in vars(told.operators_)
    assert "_packed" not in vars(again.operators_)
    assert error(again, SEEN) == error(told, SEEN)


def test_loaded_trees_are_in_memory_once() -> None:
    again = Auto.from_state(trained_auto().state()).operators_
    read = again._packed  # what compiled code reads
    trees = [model.trees for model in again._models]
    assert all(np.shares_memory(part.value, read.trees.half) for part in trees)
    told = corrected(again, [corrections(again, [runs("linear", "mnk", 40, (UNSEEN,))], GPUS)], GPUS)
    packed = told._packed
    assert np.shares_memory(packed.trees.half, read.trees.half)
    halves = np.concatenate([packed.trees.half, packed.added.half]).view(np.float16)
    assert len(packed.added.half)
    for model, first, stop in zip(told._models, packed.first, packed.stop, strict=True):
        np.testing.assert_array_equal(halves[first:stop], model.trees.value.astype(np.float16))


def test_products_in_a_cuda_graph_have_no_host_overhead() -> None:
    ops = operators("linear", {"m": 64, "n": 64, "k": 64}, {"m": 64, "n": 64, "k": 64, "eager": 0.0})
    answer = trained_auto().predict(ops, GPUS, np.arange(2), np.zeros(2, np.intp), evidence=no_evidence(ops))
    eager, graph = answer.latency_s
    assert graph < 0.5 * eager


def test_gpus_without_graphs_have_the_overhead_of_the_host() -> None:
    gpus = GpuTable.from_specs([replace(TURING, id="a"), replace(TURING, id="b", vendor="Intel")])
    rows = ({"m": 64, "n": 64, "k": 64}, {"m": 64, "n": 64, "k": 64, "eager": 0.0})
    ops = operators("linear", *rows)
    i, j = np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
    answer = Auto().predict(ops, gpus, i, j, evidence=no_evidence(ops))
    eager, graph, intel, intel_graph = answer.latency_s
    assert intel == intel_graph == eager > 2.0 * graph


def test_collectives_of_every_stack_are_learned_in_either_launch_mode() -> None:
    """SGLang's take three times vLLM's where CUDA graphs launch them, and half as long where the host does."""
    rows = [
        {"message_bytes": 2.0**size, "devices": n, "implementation": CUSTOM, "eager": eager, "stack": stack}
        for size in range(8, 31)
        for n in (2, 4, 8)
        for eager in (0.0, 1.0)
        for stack in (0.0, 1.0)
    ]

    def stacks_apart(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        factor = np.where(ops.column("eager") > 0.0, 0.5, 3.0)
        return untrained(ops, gpu, gpus) * np.where(ops.column("stack") == 1.0, factor, 1.0)

    known = measured("all_reduce", rows, GPUS, (SEEN,), stacks_apart, dtype="bf16")
    known = replace(known, software=known.rows.ops.column("stack").astype(np.intp), stacks=("vllm", "sglang"))
    auto = Auto().fit_operators([known], GPUS)
    ops, here = known.rows.ops, known.rows.gpu
    answer = auto.predict(ops, GPUS, np.arange(len(rows)), here, evidence=no_evidence(ops)).latency_s
    assert np.abs(answer / known.rows.latency_s - 1.0).mean() < 0.03


def test_gpus_fitted_at_the_same_time_are_fitted_alike() -> None:
    with parallel_config("threading", n_jobs=2), fitted_once():
        beside = trained_auto.__wrapped__()
    ops = operators("linear", *random_shapes("mnk", 50, seed=3))
    for gpu in range(len(GPUS)):
        rows, here = np.arange(len(ops)), np.full(len(ops), gpu)
        one, other = (
            auto.predict(ops, GPUS, rows, here, evidence=no_evidence(ops)).latency_s
            for auto in (trained_auto(), beside)
        )
        np.testing.assert_array_equal(one, other)


def test_serving_stacks_are_learned_apart() -> None:
    shapes = random_shapes("mnk", 900, seed=0, step=8)
    rows = [{**shape, "eager": 0.0, "stack": float(k % 2)} for k, shape in enumerate(shapes)]

    def slower(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        return law(ops, gpus, gpu) * np.where(ops.column("stack") == 1.0, 3.0, 1.0)

    known = measured("linear", rows, GPUS, (SEEN,), slower, dtype="bf16")
    known = replace(known, software=(known.rows.ops.column("stack")).astype(np.intp), stacks=("vllm", "sglang"))
    auto = Auto().fit_operators([known], GPUS)
    asked = operators("linear", *({**shapes[0], "eager": 0.0, "stack": at} for at in (0.0, 1.0, np.nan)), dtype="bf16")
    here = np.full(3, SEEN)
    vllm, sglang, absent = auto.predict(asked, GPUS, np.arange(3), here, evidence=no_evidence(asked)).latency_s
    assert sglang / vllm == pytest.approx(3.0, rel=0.1)
    assert absent == vllm
