"""What `auto` learns of operators: trees, smooth corrections, constants, and who answers for which GPU."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.ops import OP_CODE
from app.ops.tiles import CANDIDATES
from app.predictors.auto import Auto
from app.predictors.intervals import SITUATIONS
from app.predictors.operators.boosting import NO_TREES, Growth, Trees, boosted
from app.predictors.operators.calibration import Rows, calibrate
from app.predictors.operators.cells import CLEAR, MOST_RATE, RATE, agreed, rate_of
from app.predictors.operators.constants import FACTORS, NEUTRAL, fill_scaled, fitted_factors
from app.predictors.operators.features import FEATURES, own_dims
from app.predictors.operators.material import samples
from app.predictors.operators.process import LEAF, OFFSET, Kernels, Places, View, taught
from app.predictors.operators.sisters import joined
from app.predictors.operators.time import ANY_TILE, COMPUTE_S, DRAM_S, LEAST, LIMIT, OVERHEAD, TERMS, TIME
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import DTYPES, OpTable, concatenate
from app.tables.predictions import EXTRAPOLATED, INTERPOLATED
from tests.unit.kernels import TURING, VOLTA
from tests.unit.measured import measured, no_evidence, random_shapes
from tests.unit.operator_runs import runs_of
from tests.unit.operators import mixed, operators

TWIN = replace(TURING, id="twin", memory_bandwidth_bytes_per_s=700e9)
OTHER = replace(VOLTA, id="other", architecture="other")
THIRD = replace(VOLTA, id="third", architecture="third", memory_bandwidth_bytes_per_s=600e9)
GPUS = GpuTable.from_specs([TURING, replace(VOLTA, architecture="volta"), TWIN, OTHER, THIRD])
SEEN, SEEN_TOO, SIBLING, UNSEEN, SEEN_THREE = range(5)
FIRST = Places(np.array([0]), np.ones(1))


def law(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
    """Untrained physics, a third slower, and slower still for deep products."""
    physics = untrained(ops, gpu, gpus)
    depth = ops.column("k") if "k" in ops.fields else ops.column("h")
    return physics * 1.33 * np.where(depth > 600, 1.5, 1.0)


def untrained(ops: OpTable, gpu: Any, gpus: GpuTable = GPUS) -> Any:
    """Untrained physics on a GPU per row."""
    return Auto().predict(ops, gpus, np.arange(len(gpu)), gpu, evidence=no_evidence(ops)).latency_s


def runs(op: str, names: str, count: int, on: tuple[int, ...], seed: int = 0) -> OperatorRuns:
    return measured(op, random_shapes(names, count, seed=seed), GPUS, on, law)


TRAINED = Auto().fit_operators(
    [runs("linear", "mnk", 900, (SEEN, SEEN_TOO, SEEN_THREE)), runs("softmax", "bh", 500, (SEEN,))], GPUS
)


def error(predictor: Auto, target: int, *, op: str = "linear", names: str = "mnk") -> float:
    """Mean absolute percentage error on shapes that were not learned from."""
    fresh = runs(op, names, 200, (target,), seed=9).rows
    answer = predictor.predict(fresh.ops, GPUS, np.arange(len(fresh)), fresh.gpu, evidence=no_evidence(fresh.ops))
    return float(np.abs(answer.latency_s / fresh.latency_s - 1.0).mean())


def situation(predictor: Auto, ops: OpTable, target: int, gpus: GpuTable = GPUS) -> list[str]:
    """What stands behind each answer, by its residual group."""
    answer = predictor.predict(ops, gpus, np.arange(len(ops)), np.full(len(ops), target), evidence=no_evidence(ops))
    names = list(SITUATIONS)
    return [names[(group - 6) % len(names)] for group in answer.group.tolist()]


def test_trees_follow_a_function_and_grow_alike_again() -> None:
    features = np.random.default_rng(0).normal(size=(4, 4000)).astype(np.float32)
    target = np.where(features[0] > 0.3, 1.0, -1.0) + 0.5 * (features[1] > 0) - features[2]
    trees = boosted(features, target, np.ones(4000), Growth(150))
    assert np.abs(trees.sum(features) - target).mean() < 0.1
    again = boosted(features, target, np.ones(4000), Growth(150))
    np.testing.assert_array_equal(trees.value, again.value)
    stored = Trees.from_state(trees.state())
    np.testing.assert_allclose(stored.sum(features), trees.sum(features), atol=0.02)  # half precision


def test_trees_step_further_where_rows_outnumber_them() -> None:
    assert rate_of(400) == rate_of(8000) == RATE
    assert RATE < rate_of(30_000) < rate_of(50_000) < MOST_RATE == rate_of(200_000)


def test_of_rows_that_run_in_two_ways_the_last_trees_follow_the_most() -> None:
    features = np.random.default_rng(0).normal(size=(1, 4000)).astype(np.float32)
    target = np.where(np.arange(4000) % 10 < 7, 0.0, 0.08)

    def middle(settles: float) -> float:
        growth = Growth(400, features=1.0, clear=CLEAR, settles=settles)
        return float(np.median(boosted(features, target, np.ones(4000), growth).sum(features)))

    assert middle(1.0) > 0.02
    assert middle(0.1) < 0.01


def test_what_pulls_in_proportion_falls_from_half_way_on() -> None:
    clears = Growth(100, clear=CLEAR, settles=0.1).clears
    assert (clears[:51] == CLEAR).all() and (np.diff(clears[50:]) < 0.0).all() and clears[-1] < 0.11 * CLEAR
    assert (Growth(100, settles=0.1).clears == np.inf).all()


def test_of_relative_errors_the_shorter_of_two_times_is_best_also_where_it_is_rarer() -> None:
    features = np.random.default_rng(0).normal(size=(1, 4000)).astype(np.float32)
    target = np.where(np.arange(4000) % 20 < 9, 0.0, 0.5)

    def middle(*, relative: bool) -> float:
        growth = Growth(400, features=1.0, clear=CLEAR, settles=0.1, relative=relative)
        return float(np.median(boosted(features, target, np.ones(4000), growth).sum(features)))

    assert middle(relative=False) > 0.45
    assert middle(relative=True) < 0.05


def test_weights_count_rows() -> None:
    features = np.zeros((1, 400), dtype=np.float32)
    features[0, :200] = 1.0
    target, weight = np.tile([1.0, -1.0], 200), np.tile([3.0, 1.0], 200)

    def grown(size: float, clear: float) -> Any:
        growth = Growth(200, rows=1.0, features=1.0, clear=clear)
        return boosted(features, size * target, weight, growth).sum(features) / size

    for size, clear in ((1.0, np.inf), (CLEAR / 2.0, CLEAR)):
        np.testing.assert_allclose(grown(size, clear), 0.5, atol=0.02)
    # Of far rows each pulls alike, so that three hold one at a third of what is clear.
    np.testing.assert_allclose(grown(1.0, CLEAR), 1.0 - CLEAR / 3.0, atol=0.02)


def test_trees_that_ask_a_feature_first_leave_rows_to_its_left_alone() -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(3, 2000)).astype(np.float32)
    features[2] = draw.random(2000) < 0.1
    target = np.where(features[2] > 0, np.sign(features[0]), 0.0).astype(np.float64)
    found = boosted(features, target, np.ones(2000), Growth(100, first=2)).sum(features)
    assert not found[features[2] == 0].any()
    assert np.abs(found - target)[features[2] > 0].mean() < 0.05


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

    def other(ops: OpTable) -> Any:
        return ops.column("top_k") == 4

    def slower(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        return (
            untrained(ops, gpu, gpus) * np.where(other(ops), 2.0, 1.1) * np.where(ops.column("hidden") > 5000, 1.2, 1.0)
        )

    def named(ops: OpTable, gpu: Any) -> list[str]:
        return [kernel if is_other else "fused" for is_other in other(ops)]

    return measured("moe", rows, GPUS, (SEEN,), slower, dtype="bf16", kernel=named)


def test_layers_on_kernels_of_their_own_teach_themselves_only() -> None:
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


def terms_of(features: Any, seconds: float = 1e-3) -> Any:
    """Rows of which physics knows one thing: that each takes so long in DRAM."""
    terms = np.full((TERMS, features.shape[1]), 1e-9)
    terms[DRAM_S] = seconds
    return terms


def test_few_rows_give_a_correction_that_passes_through_and_fades_away() -> None:
    features = np.zeros((FEATURES, 40), dtype=np.float32)
    features[0] = np.linspace(0.0, 10.0, 40)
    curve = 0.3 * np.sin(features[0].astype(np.float64))
    terms = terms_of(features)
    rows = Rows(terms, np.log(1e-3) + curve, features, FIRST)
    found = calibrate(rows, NEUTRAL, Kernels.of(NO_TREES))
    asked = np.zeros((FEATURES, 3), dtype=np.float32)
    asked[0] = [2.1, 7.7, 500.0]
    physics = np.empty(3)
    fill_scaled(terms[:, :3].copy(), found.factors, physics)
    said = np.log(physics / 1e-3) + found.mean + found.smooth.sum(asked)
    np.testing.assert_allclose(said[:2], 0.3 * np.sin([2.1, 7.7]), atol=0.05)
    assert found.smooth.sum(asked)[2] == pytest.approx(0.0, abs=1e-6)


def test_few_rows_move_the_constant_that_explains_them() -> None:
    """Half of the rows wait for DRAM, which is twice as slow as thought; the others wait for compute, as thought."""
    features = np.zeros((FEATURES, 20), dtype=np.float32)
    features[0] = np.tile(np.arange(10.0), 2)
    terms = np.full((TERMS, 20), 1e-9)
    terms[COMPUTE_S, :10], terms[DRAM_S, 10:] = 1e-3, 1e-3
    target = np.log(1e-3) + np.repeat([0.0, np.log(2.0)], 10)
    found = calibrate(Rows(terms, target, features, FIRST), NEUTRAL, Kernels.of(NO_TREES))
    answer = np.empty(20)
    fill_scaled(terms, found.factors, answer)
    assert answer[10] / answer[0] == pytest.approx(2.0, rel=0.15)


def test_a_row_that_the_others_contradict_does_not_draw_them_after_it() -> None:
    features = np.zeros((FEATURES, 41), dtype=np.float32)
    features[0] = np.linspace(0.0, 4.0, 41)
    target = np.full(41, np.log(1e-3))
    target[20] += 3.0
    found = calibrate(Rows(terms_of(features), target, features, FIRST), NEUTRAL, Kernels.of(NO_TREES))
    physics = np.empty(41)
    fill_scaled(terms_of(features), found.factors, physics)
    said = np.log(physics / 1e-3) + found.mean + found.smooth.sum(features)
    assert np.abs(np.delete(said, 20)).max() < 0.1


def test_collectives_of_other_numbers_of_devices_say_little() -> None:
    """Bytes are near one another where they differ by e; devices are far where they differ by two."""
    places = Places.of(OP_CODE["all_reduce"], product=False)
    stretch = dict(zip(own_dims(OP_CODE["all_reduce"]), places.stretch, strict=False))
    assert stretch["message_bytes"] < 2.0 < np.log(2.0) * stretch["devices"]


def test_few_collectives_tell_of_all_that_wait_for_the_same_link() -> None:
    """Two rows per number of devices, where eight share what they have: 16 MB of these are known by 1 GB."""
    slots = GpuTable.from_specs([replace(TURING, link_bandwidth_bytes_per_s=31.5e9)])
    ends = [{"message_bytes": 2.0**size, "devices": n} for size in (9, 30) for n in (2, 4, 8)]

    def shared(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        sending = 2.0 * (ops.column("devices") == 8) * ops.column("message_bytes") / 20e9
        return untrained(ops, gpu, gpus) + sending

    told = Auto().with_measured([measured("all_reduce", ends, slots, (0,), shared)], slots)
    asked = operators("all_reduce", *({"message_bytes": 2.0**24, "devices": n} for n in (2, 8)))
    answer = told.predict(asked, slots, np.arange(2), np.zeros(2, dtype=int), evidence=no_evidence(asked))
    assert answer.latency_s == pytest.approx(shared(asked, slots, np.zeros(2, dtype=int)), rel=0.12)


def test_a_kv_cache_in_another_format_is_read_by_other_kernels() -> None:
    """Formats are codes one apart; a context is as far where it is some 20 times as long."""
    places = Places.of(OP_CODE["attention_prefill"], product=True)
    stretch = dict(zip(own_dims(OP_CODE["attention_prefill"]), places.stretch, strict=False))
    assert np.log(19.0) * stretch["context_length"] < stretch["kv_dtype"] < np.log(21.0)


def test_a_batch_tells_of_others_of_the_same_products() -> None:
    """Every third size is twice as slow in any batch: told of batches of 64, batches of 1,024."""
    sizes = [{"m": m, "n": n, "k": k} for m in (64, 256, 1024) for n in (64, 256, 1024) for k in (64, 256, 1024)]

    def table(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        slow = np.log2(ops.column("m") * ops.column("n") ** 3 * ops.column("k") ** 2) % 3 == 1.0
        return untrained(ops, gpu, gpus) * np.where(slow, 2.0, 1.0)

    told = Auto().with_measured([measured("bmm", [{"b": 64, **size} for size in sizes], GPUS, (UNSEEN,), table)], GPUS)
    asked = operators("bmm", *({"b": 1024, **size} for size in sizes))
    gpu = np.full(len(asked), UNSEEN)
    answer = told.predict(asked, GPUS, np.arange(len(asked)), gpu, evidence=no_evidence(asked)).latency_s
    assert np.abs(answer / table(asked, GPUS, gpu) - 1.0).mean() < 0.15  # 0.27 where a batch is as far as other sizes


def test_what_collectives_take_over_one_sort_of_link_says_nothing_of_another() -> None:
    fast = replace(TURING, id="fast", link_bandwidth_bytes_per_s=300e9)
    cards = [fast, replace(fast, id="twin"), replace(fast, id="slotted", link_bandwidth_bytes_per_s=31.5e9)]
    gpus = GpuTable.from_specs(cards)
    shapes = [{"message_bytes": 2.0 ** (10 + k % 18), "devices": 2.0 + 2.0 * (k % 3)} for k in range(600)]
    taught = measured("all_reduce", shapes, gpus, (0,), lambda ops, gpus, gpu: untrained(ops, gpu, gpus) * 3.0)
    asked = operators("all_reduce", *[shapes[9]] * 3)
    trained = Auto().fit_operators([taught], gpus)
    answer = trained.predict(asked, gpus, np.arange(3), np.arange(3), evidence=no_evidence(asked))
    assert [list(SITUATIONS)[(group - 6) % len(SITUATIONS)] for group in answer.group] == ["seen", "sibling", "unseen"]


def test_a_collective_measured_in_another_dtype_only_is_known_by_that_one() -> None:
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


TWO_LIBRARIES = Auto().fit_operators(
    [
        by_library(NCCL, dtype="fp16", on=(SEEN, SEEN_TOO, SEEN_THREE), times=4.0),
        by_library(CUSTOM, dtype="bf16", on=(SEEN, SEEN_TOO), times=2.0),
    ],
    GPUS,
)


@pytest.mark.parametrize("asked", ["fp16", "bf16"])
@pytest.mark.parametrize(("target", "of"), [(SEEN, "seen"), (SIBLING, "sibling"), (SEEN_THREE, "seen")])
def test_a_collective_takes_the_cell_of_any_dtype_that_holds_it(asked: str, target: int, of: str) -> None:
    """In one table, row by row; `SEEN_THREE` has NCCL only."""
    ops = mixed([messages(NCCL, asked), messages(CUSTOM, asked)]).take(np.argsort(np.arange(36) % 18, kind="stable"))
    place = np.full(len(ops), target)
    answer = TWO_LIBRARIES.predict(ops, GPUS, np.arange(len(ops)), place, evidence=no_evidence(ops))
    ratio, nccl = answer.latency_s / untrained(ops, place), ops.column("implementation") == NCCL
    assert ratio[nccl] == pytest.approx(4.0, rel=0.1)
    assert set(np.array(situation(TWO_LIBRARIES, ops, target))[nccl]) == {of}
    assert set(answer.support[nccl]) == {INTERPOLATED}
    dtype = (answer.group - 6) // len(SITUATIONS) % len(DTYPES)  # intervals are of what was learned from
    assert {DTYPES[code] for code in dtype[nccl]} == {"fp16"} and {DTYPES[code] for code in dtype[~nccl]} == {"bf16"}
    if target != SEEN_THREE:
        assert ratio[~nccl] == pytest.approx(2.0, rel=0.1)
    assert set(np.array(situation(TWO_LIBRARIES, ops, target))[~nccl]) == {"unseen" if target == SEEN_THREE else of}


def test_a_collective_that_no_dtype_holds_takes_the_nearest() -> None:
    """A message of any size is its own library's."""
    for (implementation, of), size in itertools.product(((NCCL, "fp16"), (CUSTOM, "bf16")), (2.0, 30.0, 38.0)):
        ops = operators("all_reduce", {"message_bytes": 2.0**size, "devices": 8, "implementation": implementation})
        answer = TWO_LIBRARIES.predict(ops, GPUS, np.arange(1), np.array([SEEN]), evidence=no_evidence(ops))
        assert answer.support[0] == EXTRAPOLATED
        assert TWO_LIBRARIES.operators_.as_corrected(ops, GPUS, SEEN).keys == [("all_reduce", of)]


@pytest.mark.parametrize("target", [SEEN, SIBLING])
def test_larger_messages_miss_the_physics_as_the_largest_does(target: int) -> None:
    """Three doublings on: neither is what was learned lost, nor does it go on growing."""
    ops = operators("all_reduce", *[{"message_bytes": 2.0**size, "devices": 4} for size in (27.7, 31.0)], dtype="fp16")
    place = np.full(2, target)
    answer = TWO_LIBRARIES.predict(ops, GPUS, np.arange(2), place, evidence=no_evidence(ops))
    within, beyond = answer.latency_s / untrained(ops, place)
    assert beyond == pytest.approx(within, rel=0.02)
    assert answer.support.tolist() == [INTERPOLATED, EXTRAPOLATED]
    assert answer.stretch is not None and answer.stretch[0] == 1.0 < answer.stretch[1]


def test_more_devices_than_a_gpu_was_measured_with_are_as_little_known_as_on_another() -> None:
    """Others were, so that they are in range: but how one machine wires eight says little of the next."""
    eight = [{**one, "devices": 8} for one in MESSAGES[::2]]
    both = [
        measured("all_reduce", rows, GPUS, (gpu,), lambda ops, gpus, gpu: untrained(ops, gpu) * 2.0, dtype="fp16")
        for gpu, rows in ((SEEN, MESSAGES), (SEEN_TOO, [*MESSAGES, *eight]))
    ]
    rows = joined([run.rows for run in both])
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


def test_devices_that_were_not_measured_are_corrected_as_those_around_them() -> None:
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


def test_a_library_that_a_gpu_lacks_is_answered_as_the_one_that_it_has() -> None:
    """Models ask for NCCL, whoever made the GPU."""
    rows = joined(
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


def test_smaller_messages_miss_the_physics_as_the_smallest_does() -> None:
    ops = operators("all_reduce", *[{"message_bytes": 2.0**size, "devices": 4} for size in (12.1, 8.0)], dtype="fp16")
    place = np.full(2, SEEN)
    answer = TWO_LIBRARIES.predict(ops, GPUS, np.arange(2), place, evidence=no_evidence(ops))
    within, beyond = answer.latency_s / untrained(ops, place)
    assert beyond == pytest.approx(within, rel=0.02)


def test_what_is_told_of_a_collective_teaches_the_cell_that_answers_for_it() -> None:
    """Few rows of NCCL in BF16 teach what is known of NCCL, and nothing of kernels by hand."""
    some = by_library(NCCL, dtype="bf16", on=(UNSEEN,), times=9.0)
    few = some.take(np.arange(0, len(some), 5))
    ops = mixed([messages(NCCL, "bf16"), messages(NCCL, "fp16"), messages(CUSTOM, "bf16")])
    place = np.full(len(ops), UNSEEN)
    before, after = (
        predictor.predict(ops, GPUS, np.arange(len(ops)), place, evidence=no_evidence(ops)).latency_s
        for predictor in (TWO_LIBRARIES, TWO_LIBRARIES.with_measured([few], GPUS))
    )
    nccl = ops.column("implementation") == NCCL
    assert after[nccl] / untrained(ops, place)[nccl] == pytest.approx(9.0, rel=0.1)
    assert after[~nccl] == pytest.approx(before[~nccl])
    told = TWO_LIBRARIES.with_measured([few, by_library(NCCL, dtype="fp16", on=(UNSEEN,), times=9.0)], GPUS)
    assert set(situation(told, ops, UNSEEN)[: nccl.sum()]) == {"calibrated"}


def test_what_is_told_of_one_library_leaves_as_much_unknown_of_another() -> None:
    ops = concatenate([messages(NCCL, "bf16"), messages(CUSTOM, "bf16")])
    learned, nothing = TWO_LIBRARIES.operators_, np.ones(len(ops))
    covariance = learned.expected(Measurements(ops, np.full(len(ops), UNSEEN), nothing), GPUS)
    assert covariance is not None
    nccl = ops.column("implementation") == NCCL
    assert (np.diag(covariance) > 0.0).all() and not covariance[np.ix_(nccl, ~nccl)].any()
    known = learned.expected(Measurements(ops, np.full(len(ops), SEEN_THREE), nothing), GPUS)
    assert known is not None and not known[np.ix_(nccl, nccl)].any() and known[np.ix_(~nccl, ~nccl)].all()
    assert learned.expected(Measurements(ops, np.full(len(ops), SEEN), nothing), GPUS) is None


def test_rows_of_one_leaf_run_alike() -> None:
    """What others' trees tell apart stays apart: a measured leaf says nothing of the one opposite."""
    features = np.zeros((FEATURES, 400), dtype=np.float32)
    features[0] = np.linspace(-1.0, 1.0, 400)
    trees = boosted(features, np.sign(features[0]).astype(np.float64), np.ones(400), Growth(20, features=1.0))
    kernels, view = Kernels.of(trees), View.of(features, FIRST, Kernels.of(trees))
    alike = (taught(view, view, kernels) - OFFSET**2) / LEAF**2
    assert alike[150, 100] > 3.0 * alike[150, 250]


def test_constants_are_found_and_never_beat_the_hardware() -> None:
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


def test_no_bottleneck_alone_takes_longer_than_was_measured() -> None:
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


def test_a_gpu_that_was_learned_from_is_answered_well() -> None:
    assert error(TRAINED, SEEN) < 0.06
    assert error(TRAINED, SEEN, op="softmax", names="bh") < 0.06
    assert error(Auto(), SEEN) > 0.2


@pytest.mark.parametrize("eager", [np.nan, -1.0])
def test_half_is_kept_of_what_products_on_a_card_fed_by_its_slot_ran_like(eager: float) -> None:
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


def test_a_sibling_borrows_and_others_share() -> None:
    assert error(TRAINED, SIBLING) < 0.10
    assert error(TRAINED, UNSEEN) < 0.20
    ops = operators("linear", {"m": 512, "n": 512, "k": 512}, {"m": 2.0**20, "n": 512, "k": 512})
    assert situation(TRAINED, ops, SEEN) == ["seen", "seen_outside"]
    assert situation(TRAINED, ops, SIBLING)[0] == "sibling"
    assert situation(TRAINED, ops, UNSEEN) == ["unseen", "unseen_outside"]
    assert situation(TRAINED, operators("relu", {"b": 64, "h": 64}), SEEN) == ["untrained"]


@pytest.mark.parametrize("target", [SEEN, SIBLING])
def test_out_of_the_range_learned_from_nothing_is_interpolated(target: int) -> None:
    ops = operators("linear", {"m": 512, "n": 512, "k": 512}, {"m": 2.0**20, "n": 512, "k": 512})
    answer = TRAINED.predict(ops, GPUS, np.arange(2), np.full(2, target), evidence=no_evidence(ops))
    assert answer.support.tolist() == [INTERPOLATED, EXTRAPOLATED]
    assert answer.stretch is not None
    assert answer.stretch[0] == 1.0 < answer.stretch[1]


def test_constants_of_two_makes_are_not_carried_to_a_third() -> None:
    two = Auto().fit_operators([runs("linear", "mnk", 900, (SEEN, SEEN_TOO))], GPUS).operators_.cells["linear", "fp32"]
    three = TRAINED.operators_.cells["linear", "fp32"]
    assert (two.strength.factors == 0.0).all()
    assert (three.strength.factors > 0.0).any()
    np.testing.assert_array_equal(two.recipe("other", "other").factors, NEUTRAL)
    assert (three.recipe("third", "third").factors != three.recipe("other", "other").factors).any()


def test_a_constant_is_carried_as_far_as_makes_agree_on_it() -> None:
    told = np.zeros((3, FACTORS))
    told[:, 0], told[:, 1], told[:, 2] = 0.5, (0.4, -0.4, 0.0), (0.1, 0.2, 0.3)
    np.testing.assert_allclose(agreed(told), [1.0, 0.0, 2.0 / 3.0, 0.0, 0.0, 0.0])


def test_operators_that_move_bytes_carry_no_trees_and_what_makes_agree_on_to_their_own_make_too() -> None:
    for seen, carries in (((SEEN, SEEN_TOO), False), ((SEEN, SEEN_TOO, SEEN_THREE), True)):
        cell = Auto().fit_operators([runs("relu", "bh", 450, seen)], GPUS).operators_.cells["relu", "fp32"]
        assert (cell.strength.factors > 0.0).any() == carries
        assert cell.recipe("other", "other").members == ()
    name = next(iter(cell.own))
    sibling = cell.recipe("other", cell.make[name])
    assert sibling.members == ()
    np.testing.assert_allclose(sibling.factors, cell.own[name].factors ** cell.strength.factors)


def test_few_rows_of_a_gpu_do_not_lean_on_a_model_that_saw_them() -> None:
    few = runs("linear", "mnk", 60, (SEEN, SEEN_TOO, SEEN_THREE))
    cell = Auto().fit_operators([few], GPUS).operators_.cells["linear", "fp32"]
    assert cell.shared is not None
    assert all(model.alone for model in cell.own.values())


def test_what_no_model_has_seen_is_no_better_known_for_it() -> None:
    shape = {"m": 512.0, "n": 512.0, "k": 512.0}
    ops = operators("linear", shape | {"backward": 1.0}, shape | {"burst": 1.0})
    assert situation(TRAINED, ops, SEEN) == ["untrained", "untrained"]
    half = Auto().fit_operators([measured("linear", random_shapes("mnk", 450), GPUS, (SEEN,), law, dtype="bf16")], GPUS)
    assert situation(half, operators("linear", shape, dtype="bf16"), SEEN) == ["seen"]
    assert situation(half, operators("linear", shape, dtype="fp16"), SEEN) == ["sibling"]


def test_int8_does_not_borrow_from_a_gpu_that_ran_fp8_on_no_pipe() -> None:
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


def test_backward_rows_do_not_blur_forward_ones() -> None:
    shapes = [shape | {"backward": 1.0} for shape in random_shapes("mnk", 450)]
    backward = measured("linear", shapes, GPUS, (SEEN,), lambda ops, gpus, gpu: 5.0 * law(ops, gpus, gpu))
    assert error(TRAINED.fit_operators([backward], GPUS), SEEN) == error(TRAINED, SEEN)


def test_a_few_measured_rows_correct_at_once() -> None:
    def slower(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        return 1.8 * law(ops, gpus, gpu)

    few = measured("linear", random_shapes("mnk", 24, seed=3), GPUS, (UNSEEN,), slower)
    fresh = measured("linear", random_shapes("mnk", 200, seed=9), GPUS, (UNSEEN,), slower).rows
    asked = (fresh.ops, GPUS, np.arange(len(fresh)), fresh.gpu)
    errors = [
        float(np.abs(one.predict(*asked, evidence=no_evidence(fresh.ops)).latency_s / fresh.latency_s - 1.0).mean())
        for one in (TRAINED, TRAINED.with_measured([few], GPUS))
    ]
    assert errors[1] < 0.5 * errors[0]
    assert error(TRAINED.with_measured([few], GPUS), SEEN) == error(TRAINED, SEEN)


def test_few_rows_correct_a_dtype_that_borrows_though_the_gpu_has_a_model_of_what_it_borrows() -> None:
    """FP16 twice as slow as BF16, on a GPU whose BF16 is known: its few rows are on top of that, and others keep it."""

    def slower(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        return 2.0 * law(ops, gpus, gpu)

    shapes, seen = random_shapes("mnk", 450), (SEEN, SEEN_TOO)
    half = Auto().fit_operators([measured("linear", shapes, GPUS, seen, law, dtype="bf16")], GPUS)
    few = measured("linear", random_shapes("mnk", 16, seed=3), GPUS, (SEEN,), slower, dtype="fp16")
    told = half.with_measured([few], GPUS)

    def off(one: Auto, dtype: str, gpu: int, truth: Any) -> float:
        fresh = measured("linear", random_shapes("mnk", 200, seed=9), GPUS, (gpu,), truth, dtype=dtype).rows
        asked = (fresh.ops, GPUS, np.arange(len(fresh)), fresh.gpu)
        answer = one.predict(*asked, evidence=no_evidence(fresh.ops)).latency_s
        return float(np.abs(answer / fresh.latency_s - 1.0).mean())

    assert off(half, "fp16", SEEN, slower) > 0.4
    assert off(told, "fp16", SEEN, slower) < 0.1
    for dtype, gpu in (("bf16", SEEN), ("fp16", SEEN_TOO), ("fp16", SIBLING)):
        assert off(told, dtype, gpu, law) == off(half, dtype, gpu, law)
    asked = few.rows.ops, np.full(len(few), SEEN), np.ones(len(few))
    assert half.operators_.expected(Measurements(*asked), GPUS) is not None
    blocks = told.operators_._packed
    assert len(blocks.first) == len(half.operators_._packed.first) + 1


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
def test_the_only_tile_of_a_library_is_found_and_lent_to_siblings(tile: tuple[int, int]) -> None:
    only = next(row for row in range(len(CANDIDATES)) if tuple(CANDIDATES[row]) == tile)
    shapes = random_shapes("bmnk", 450, low=16, high=600)
    trained = Auto().fit_operators([measured("bmm", shapes, GPUS, (SEEN, SEEN_THREE), on_one_tile(only))], GPUS)
    known = trained.operators_.cells["bmm", "fp32"]
    assert {name: model.tile for name, model in known.own.items()} == {TURING.id: only, THIRD.id: ANY_TILE}
    assert known.recipe("twin", GPUS.architectures[SIBLING]).tile == only
    assert known.recipe("twin", f"{GPUS.architectures[SIBLING]}/hbm").tile == only
    assert known.recipe("other", "other").tile == ANY_TILE
    few = measured("bmm", shapes[:32], GPUS, (UNSEEN,), on_one_tile(only))
    fresh = measured("bmm", random_shapes("bmnk", 200, low=16, high=600, seed=9), GPUS, (UNSEEN,), on_one_tile(only))
    told = trained.with_measured([few], GPUS)
    assert told.operators_.cells["bmm", "fp32"].own["other"].tile == only
    asked = (fresh.rows.ops, GPUS, np.arange(200), fresh.rows.gpu)
    for one in (told, Auto.from_state(told.state())):
        answer = one.predict(*asked, evidence=no_evidence(fresh.rows.ops)).latency_s
        assert np.abs(answer / fresh.rows.latency_s - 1.0).mean() < 0.03


def test_what_the_new_rows_lack_stays_known() -> None:
    more = TRAINED.fit_operators([runs("linear", "mnk", 500, (UNSEEN,), seed=5)], GPUS)
    # The range learned from may grow, beyond which corrections fade.
    assert error(more, SEEN) == pytest.approx(error(TRAINED, SEEN), rel=0.02)
    assert error(more, SEEN, op="softmax", names="bh") == error(TRAINED, SEEN, op="softmax", names="bh")
    assert error(more, UNSEEN) < 0.03


def test_a_row_is_answered_alike_alone_and_among_others() -> None:
    parts = [
        operators("softmax", {"b": 700, "h": 300}, {"b": 64, "h": 1024}),
        operators("linear", {"m": 512, "n": 640, "k": 320}),
    ]
    together = mixed(parts)
    i, j = np.arange(len(together)), np.full(len(together), SEEN)
    whole = TRAINED.predict(together, GPUS, i, j, evidence=no_evidence(together)).latency_s
    alone = np.concatenate(
        [
            TRAINED.predict(one, GPUS, np.array([k]), j[:1], evidence=no_evidence(one)).latency_s
            for one in parts
            for k in range(len(one))
        ]
    )
    np.testing.assert_allclose(whole, alone, rtol=1e-6)


def test_stored_and_read_again_it_answers_alike() -> None:
    again = Auto.from_state(TRAINED.state())
    assert error(again, SEEN) == pytest.approx(error(TRAINED, SEEN), abs=2e-3)  # leaves in half precision


def test_trees_that_were_loaded_are_in_memory_once() -> None:
    again = Auto.from_state(TRAINED.state()).operators_
    read = again._packed  # what compiled code reads
    trees = [model.trees for model in again._models]
    assert all(np.shares_memory(part.value, read.value) for part in trees)
    told = again.with_measured([runs("linear", "mnk", 40, (UNSEEN,))], GPUS)
    for model, first, stop in zip(told._models, told._packed.first, told._packed.stop, strict=True):
        halves = told._packed.value[first:stop].view(np.float16)
        np.testing.assert_array_equal(halves, model.trees.value.astype(np.float16))


def test_a_product_in_a_graph_does_without_the_host() -> None:
    ops = operators("linear", {"m": 64, "n": 64, "k": 64}, {"m": 64, "n": 64, "k": 64, "eager": 0.0})
    eager, graph = TRAINED.predict(ops, GPUS, np.arange(2), np.zeros(2, np.intp), evidence=no_evidence(ops)).latency_s
    assert graph < 0.5 * eager


def test_a_row_is_believed_less_where_algorithms_are_chosen_among() -> None:
    features = np.zeros((FEATURES, 9), dtype=np.float32)
    features[0] = np.linspace(0.0, 2.0, 9)
    target = np.full(9, np.log(1e-3))
    target[4] += 0.5
    rows = Rows(terms_of(features), target, features, FIRST)
    least, most = (calibrate(rows._replace(chosen=chosen), NEUTRAL, Kernels.of(NO_TREES)) for chosen in (True, False))
    assert abs(least.mean) < 0.8 * abs(most.mean)
