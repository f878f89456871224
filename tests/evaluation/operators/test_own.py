"""Folds and lines of the evaluation on measured operators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.errors import BadInput, NotFound
from evaluation.data import NO_SPLIT, OWN
from evaluation.operators.folds import OperatorFold
from evaluation.operators.own import evaluate_own_operators, own_folds, report
from evaluation.render import text_lines
from tests.evaluation.operators.test_folds import GPUS, H100, P4, grid

SIZES = {"m": [1024.0, 2048.0], "n": [512.0, 1024.0, 2048.0], "k": [float(1 << power) for power in range(5, 15)]}
B200 = GPUS.index("b200")
CELL = grid("linear", "bf16", [P4, H100, H100, B200], SIZES, split=NO_SPLIT)
ROWS = len(CELL.runs) // 4
# The first half are public rows, the second our own on two GPUs.
CELL = replace(CELL, split=np.repeat([NO_SPLIT, OWN], 2 * ROWS))


def folds() -> dict[str, OperatorFold]:
    return {fold.name: fold for fold in own_folds([CELL], GPUS, 1000)}


def test_folds_never_train_on_what_they_test() -> None:
    by_name = folds()
    assert {name.split()[0] for name in by_name} == {"public", "public,", "held_out", "sibling", "k_sweep"}
    for fold in by_name.values():
        (tested,) = fold.evaluation_sets
        assert len(tested.test[0])
        assert not np.intersect1d(fold.train[0], tested.test[0]).size


def test_the_tested_gpu_of_a_sibling_fold_has_only_public_rows() -> None:
    fold = folds()["sibling h100"]
    on_h100 = fold.train[0][CELL.runs.rows.gpu[fold.train[0]] == H100]
    assert (CELL.split[on_h100] == NO_SPLIT).all()
    assert (CELL.split[fold.train[0]] == OWN).any()


def test_a_k_sweep_is_tested_between_depths_of_the_same_gpu() -> None:
    fold = folds()["k_sweep h100"]
    (tested,) = fold.evaluation_sets
    k = CELL.runs.rows.ops.column("k")
    assert set(k[tested.test[0]].tolist()) == {64.0, 256.0, 1024.0, 4096.0}
    assert set(CELL.runs.rows.gpu[fold.train[0]].tolist()) == {H100}
    assert {32.0, 16384.0} <= set(k[fold.train[0]].tolist())


def test_lines_show_each_family_once_per_gpu_part_and_predictor() -> None:
    cell = {"part": "public", "predictor": "auto", "family": "linear", "op": "linear", "mape": 1.0}
    figures = {"median_ape": 1.0, "p95_ape": 1.0, "median_ratio": 1.0}
    cells = [cell | figures | {"gpu": "h100", "dtype": dtype, "n": n} for dtype, n in (("bf16", 2), ("all", 5))]
    lines = list(text_lines(report(cells).blocks))
    assert len(lines) == 1 + 2
    assert " 5 " in lines[2]


def test_an_unknown_predictor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Unknown predictor 'none': use one of auto"):
        evaluate_own_operators(tmp_path, [], ["none"])


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has none of the files known"):
        evaluate_own_operators(tmp_path, [], ["auto"])
