"""Measured operators of a data folder as cells: one per operator and dtype, with NeuSight's split."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from app.ops import OP_CODE
from app.training.operator_folds import Cell
from evaluation import operator_files


def read_cells(
    folder: Path,
    ops: Collection[str] = OP_CODE,
    names: Collection[str] = operator_files.DATA_SETS,
    own: Sequence[Path] = (),
) -> Iterator[Cell]:
    """Return a cell per operator of `ops` and dtype of the data sets `names`; `rows.gpu` are rows of the catalogue.

    Operators in the files `own` of `gpucast measure` are in the same cells.
    """
    for found in operator_files.read_operator_files(folder, ops, names, own):
        yield Cell(*found)
