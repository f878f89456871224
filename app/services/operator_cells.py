"""Measured operators of a data folder as cells: one per operator and dtype, with NeuSight's split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.services.operator_files import Measured, read_operators
from app.services.seed import load_seed_specs
from app.tables.catalog import Catalog
from app.tables.measurements import Measurements
from app.tables.operator_runs import OperatorRuns
from app.training.operator_folds import NO_SPLIT, TEST, TRAIN, Cell, hashed, mixed

Ints = NDArray[np.intp]

_SPLITS = {None: NO_SPLIT, "train": TRAIN, "test": TEST}


def read_cells(folder: Path) -> Iterator[Cell]:
    """Every operator and dtype of the folder; `rows.gpu` are rows of the shipped catalogue."""
    catalog = Catalog(load_seed_specs())
    row = {spec.id: k for k, spec in enumerate(catalog.specs)}
    for measured in read_operators(folder):
        rows = {name: row[catalog.resolve(name).id] for name in set(measured.gpu)}
        yield _cell(measured, np.array([rows[name] for name in measured.gpu], dtype=np.intp))


def _cell(measured: Measured, gpu: Ints) -> Cell:
    software, stacks = _codes(measured.stack)
    kernel, kernels = _codes(measured.kernel)
    rows = Measurements(measured.table, gpu, measured.latency_s)
    key = mixed(measured.latency_s.view(np.uint64), mixed(gpu.astype(np.uint64), hashed(measured.table)))
    runs = OperatorRuns(
        measured.op, measured.dtype, rows, software, kernel, measured.grid, measured.block, key, stacks, kernels
    )
    return Cell(runs, np.array([_SPLITS[name] for name in measured.split], dtype=np.intp))


def _codes(names: Sequence[str | None]) -> tuple[Ints, tuple[str, ...]]:
    """Codes of names, -1 for none, and the names behind them."""
    words = tuple(sorted({name for name in names if name is not None}))
    code = {name: k for k, name in enumerate(words)}
    return np.array([-1 if name is None else code[name] for name in names], dtype=np.intp), words
