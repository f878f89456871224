"""Measured operators of a data folder as cells: one per operator and dtype, with NeuSight's split."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from app.evaluation import operator_files
from app.ops import OP_CODE
from app.training.operator_folds import NO_SPLIT, TEST, TRAIN, Cell

# NeuSight's split of operator_files -> that of operator_folds.
_SPLIT = np.empty(3, dtype=np.intp)
_SPLIT[[operator_files.NO_SPLIT, operator_files.TRAIN, operator_files.TEST]] = NO_SPLIT, TRAIN, TEST


def read_cells(
    folder: Path, ops: Collection[str] = OP_CODE, names: Collection[str] = operator_files.DATA_SETS
) -> Iterator[Cell]:
    """Return a cell per operator of `ops` and dtype of the data sets `names`; `rows.gpu` are rows of the catalogue."""
    for runs, split, drift_s in operator_files.read_operator_files(folder, ops, names):
        yield Cell(runs, _SPLIT[split], drift_s)
