"""Folds of operators: no test row is in the training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from app.ops import OPS
from app.tables.measurements import Measurements, OperatorRuns
from app.training import row_hashes
from app.training.row_hashes import configurations, dimensions, mixed
from evaluation.data import NO_SPLIT, TEST, TRAIN, Cell
from evaluation.operators.folds import NEUSIGHT_TRAINING, PROTOCOLS, OperatorFold, operator_folds, sampled
from tests.unit.operators import operators

GPUS = (*NEUSIGHT_TRAINING, "nvidia-l4", "a100-pcie-80gb", "amd-instinct-mi100", "h100", "b200", "l40s")
P4, L4, A100_80, MI100, H100 = 0, 5, 6, 7, 8


def cell(op: str, dtype: str, rows: Sequence[dict[str, float]], gpu: Sequence[int], split: Sequence[int]) -> Cell:
    """Made-up rows; a row that comes twice has another time."""
    n = len(rows)
    none, unknown = np.zeros(n, dtype=np.intp), np.full((3, n), np.nan)
    table = operators(op, *rows, dtype=dtype)
    measured = Measurements(table, np.array(gpu, dtype=np.intp), 1e-5 * (1.0 + np.arange(n)))
    key = mixed(np.arange(n, dtype=np.uint64), np.uint64(7))
    runs = OperatorRuns(op, dtype, measured, none, none - 1, unknown, unknown, key, ("",), ())
    return Cell(runs, np.array(split, dtype=np.intp), np.zeros(n))


def grid(op: str, dtype: str, gpus: Sequence[int], fields: dict[str, Sequence[float]], split: int = NO_SPLIT) -> Cell:
    names = list(fields)
    shapes = np.stack(np.meshgrid(*fields.values()), axis=-1).reshape(-1, len(names))
    rows = [dict(zip(names, shape.tolist(), strict=True)) for _ in gpus for shape in shapes]
    return cell(op, dtype, rows, np.repeat(gpus, len(shapes)).tolist(), [split] * len(rows))


def fp32(op: str, **fields: Sequence[float]) -> Cell:
    """Train rows on NeuSight's GPUs, test rows there and on the unseen ones, and train rows on AMD's."""
    train = grid(op, "fp32", [0, 1, 2, 3, 4, MI100], fields)
    test = grid(op, "fp32", range(7), {name: [3.0 * v for v in values] for name, values in fields.items()})
    rows = [
        {name: float(part.runs.rows.ops.column(name)[k]) for name in fields}
        for part in (train, test)
        for k in range(len(part.runs))
    ]
    gpu = [*train.runs.rows.gpu.tolist(), *test.runs.rows.gpu.tolist()]
    return cell(op, "fp32", rows, gpu, [TRAIN] * len(train.runs) + [TEST] * len(test.runs))


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    sizes, messages = [2.0**k for k in range(4, 11)], [2.0**k for k in range(10, 30)]
    attention = {"heads": [8.0, 16.0, 32.0], "kv_heads": [1.0, 2.0, 4.0], "head_dim": [64.0, 96.0, 128.0]}
    return [
        fp32("softmax", b=sizes, h=sizes),
        grid("conv2d", "fp32", [0, 1, 2, 3, A100_80], {
            "b": [1.0, 2.0], "in_channels": sizes, "out_channels": sizes, "input_size": [28.0, 56.0],
            "kernel_size": [3.0], "stride": [1.0], "padding": [1.0],
        }, TRAIN),
        grid("linear", "bf16", [H100, 9, 10], {"m": sizes, "n": sizes, "k": sizes}),
        grid("linear", "fp8", [H100, 9], {"m": sizes, "n": sizes, "k": sizes}),
        grid("attention_decode", "bf16", [H100, 9], {**attention, "batch": [1.0, 8.0], "context_length": sizes}),
        grid("all_reduce", "fp16", [H100, 10], {"message_bytes": messages, "devices": [2.0, 8.0]}),
        grid("moe", "bf16", [H100, 9], {
            "tokens": sizes, "hidden": sizes, "intermediate": sizes, "experts": [8.0], "top_k": [2.0],
        }),
        grid("moe", "int4_wo", [H100], {
            "tokens": sizes, "hidden": [64.0], "intermediate": [64.0], "experts": [8.0], "top_k": [2.0],
        }),
        grid("linear", "nvfp4", [9], {"m": sizes, "n": sizes, "k": sizes}),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def folds(cells: list[Cell]) -> list[OperatorFold]:
    return list(operator_folds(cells, GPUS, PROTOCOLS, most_test=200, most_train=None))


def test_no_row_is_in_both_training_and_test_set(folds: list[OperatorFold]) -> None:
    assert {each.protocol for fold in folds for each in fold.evaluation_sets} == set(PROTOCOLS)
    for fold in folds:
        for each in fold.evaluation_sets:
            for k, rows in each.test.items():
                assert len(np.unique(rows)) == len(rows) > 0
                assert not np.isin(rows, fold.train.get(k, [])).any(), (fold.name, each)
                assert not np.isin(rows, each.given.get(k, [])).any(), (fold.name, each)


def test_training_rows_have_no_row_of_a_left_out_gpu(cells: list[Cell], folds: list[OperatorFold]) -> None:
    left_out = [fold for fold in folds if fold.name.endswith("left out")]
    assert len(left_out) == len(GPUS)
    for fold in left_out:
        target = GPUS.index(fold.name.removesuffix(" left out"))
        assert all((cells[k].runs.rows.gpu[rows] != target).all() for k, rows in fold.train.items())
        for each in fold.evaluation_sets:
            for rows_of in (each.test, each.given):
                assert all((cells[k].runs.rows.gpu[rows] == target).all() for k, rows in rows_of.items())
    tested = {k for fold in left_out for each in fold.evaluation_sets for k in each.test}
    assert tested == set(range(7)), "one GPU alone cannot be left out"


def test_a_held_out_configuration_is_held_out_on_every_gpu_and_dtype(
    cells: list[Cell], folds: list[OperatorFold]
) -> None:
    first, *others = [fold for fold in folds if fold.name.startswith("configurations")]
    assert {2, 3, 4, 5, 6, 8} <= set(first.train) and set(first.train) <= {2, 3, 4, 5, 6, 7, 8}
    for fold in (first, *others):
        (each,) = fold.evaluation_sets
        trained = {(cells[k].runs.op, h) for k, rows in fold.train.items() for h in _configured(cells[k], rows)}
        tested = {(cells[k].runs.op, h) for k, rows in each.test.items() for h in _configured(cells[k], rows)}
        assert trained and tested and not trained & tested
        assert 0.1 < len(tested) / len(trained | tested) < 0.35
        for k, rows in each.test.items():
            here = cells[k].runs.rows
            assert np.isin(here.gpu[rows], here.gpu[fold.train[k]]).all(), "the GPUs are trained on"


def test_every_configuration_of_experts_and_collectives_is_tested_once(cells: list[Cell]) -> None:
    folds = operator_folds(cells, GPUS, ["configurations"], most_test=10_000, most_train=None)
    tests = [fold.evaluation_sets[0].test for fold in folds]
    for few in (5, 6):
        assert np.sort(np.concatenate([test[few] for test in tests])).tolist() == list(range(len(cells[few].runs)))
    assert not any(7 in test for test in tests), "a dtype with one configuration has no other to train on"
    assert [set(test) for test in tests[1:]] == [{5, 6}] * 4


def _configured(cell: Cell, rows: np.ndarray) -> list[int]:
    return np.unique(configurations(cell.runs)[rows]).tolist()


def test_neusight_trains_on_its_gpus_and_dimensions_only(cells: list[Cell], folds: list[OperatorFold]) -> None:
    (fold,) = [fold for fold in folds if fold.name == "NeuSight's test dimensions"]
    assert set(fold.train) == {0}
    split, gpu = cells[0].split, cells[0].runs.rows.gpu
    assert (split[fold.train[0]] == TRAIN).all() and set(gpu[fold.train[0]]) == set(range(5))
    seen, unseen = fold.evaluation_sets
    assert (split[seen.test[0]] == TEST).all() and set(gpu[seen.test[0]]) == set(range(5))
    assert (split[unseen.test[0]] == TEST).all() and set(gpu[unseen.test[0]]) == {L4, A100_80}


def test_families_without_test_dimensions_hold_out_random_rows(cells: list[Cell], folds: list[OperatorFold]) -> None:
    (fold,) = [fold for fold in folds if fold.name == "NeuSight's rows held out"]
    seen, amd = fold.evaluation_sets
    assert (seen.part, set(seen.test), amd.part, set(amd.test)) == ("seen", {1}, "seen_amd", {0})
    assert set(cells[1].runs.rows.gpu[seen.test[1]]) == {0, 1, 2, 3, A100_80}
    assert set(cells[0].runs.rows.gpu[amd.test[0]]) == {MI100}
    assert MI100 in cells[0].runs.rows.gpu[fold.train[0]]
    assert (cells[0].split[fold.train[0]] == TRAIN).all()


def test_few_shot_gives_the_number_of_rows_in_its_name(cells: list[Cell], folds: list[OperatorFold]) -> None:
    few_shot = [each for fold in folds for each in fold.evaluation_sets if each.protocol == "few_shot"]
    assert {each.part for each in few_shot} == {"8_rows", "32_rows", "128_rows", "2_points"}
    for each in few_shot:
        for k, rows in each.given.items():
            if each.part == "2_points":
                table = cells[k].runs.rows.ops
                ends = {(table.column("message_bytes")[row], table.column("devices")[row]) for row in rows}
                assert ends == {(2.0**10, 2.0), (2.0**29, 2.0), (2.0**10, 8.0), (2.0**29, 8.0)}
            else:
                assert len(rows) == int(each.part.removesuffix("_rows"))


def test_repeats_of_given_rows_are_not_tested() -> None:
    rows = [{"m": 16.0, "n": 16.0, "k": 2.0 ** (k % 6)} for k in range(96)]
    twice = cell("linear", "bf16", rows, [8] * 48 + [9] * 48, [NO_SPLIT] * 96)
    for fold in operator_folds([twice], GPUS, ["few_shot"], most_test=100, most_train=None):
        for each in fold.evaluation_sets:
            shape = dimensions(twice.runs)
            assert not np.isin(shape[each.test[0]], shape[each.given[0]]).any()


def test_folds_do_not_change_when_other_rows_are_added(cells: list[Cell], folds: list[OperatorFold]) -> None:
    again = list(operator_folds(cells[:3], GPUS, PROTOCOLS, most_test=200, most_train=None))
    (before,) = [fold for fold in folds if fold.name == "configurations 1"]
    (after,) = [fold for fold in again if fold.name == "configurations 1"]
    assert (before.evaluation_sets[0].test[2] == after.evaluation_sets[0].test[2]).all()


def test_folds_do_not_change_when_other_operators_are_added(cells: list[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    before = [configurations(cell.runs) for cell in cells]
    assert before[5].tolist() != configurations(replace(cells[5].runs, op="all_gather")).tolist()
    monkeypatch.setattr(row_hashes, "OPS", OPS[::-1])
    monkeypatch.setattr(row_hashes, "OP_CODE", {op.name: code for code, op in enumerate(OPS[::-1])})
    for cell, hashes in zip(cells, before, strict=True):
        assert configurations(cell.runs).tolist() == hashes.tolist()


def test_row_limits_bound_test_and_training_rows(cells: list[Cell]) -> None:
    for fold in operator_folds(cells, GPUS, PROTOCOLS, most_test=10, most_train=20):
        counted = [(10, each.test) for each in fold.evaluation_sets] + [(20, fold.train)]
        for most, rows_of in counted:
            for k, rows in rows_of.items():
                assert np.bincount(cells[k].runs.rows.gpu[rows]).max() <= most


def test_chosen_draws_the_given_share_of_hashes() -> None:
    hashes = mixed(np.arange(100_000, dtype=np.uint64), np.uint64(3))
    assert sampled(hashes, 0.2).mean() == pytest.approx(0.2, abs=0.005)
    assert len(np.unique(hashes)) == len(hashes)
