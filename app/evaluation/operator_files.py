"""Measured operators of the two published data sets as tables, without a database: what evaluations run on.

The same readers and checks as `gpucast import`, so the rows are those that would be stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.engine.curated import load_seed_specs
from app.engine.operator_blocks import TaggedBlock, to_tagged_runs
from app.errors import BadInput, FieldError, NotFound
from app.services.measurements.check_operators import check_operators
from app.services.measurements.importers import aiconfigurator, neusight
from app.services.measurements.importers.base import Part
from app.services.measurements.upload_gpus import UploadGpus
from app.store.operator_blocks import identities
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.wire.measurements.upload import OperatorColumns

NEUSIGHT, MODERN = "neusight", "modern_operators"
NEUSIGHT_FILE = f"{NEUSIGHT}/{neusight.FILE}"
NO_SPLIT, TRAIN, TEST = range(3)
# Of rows that are the same the least tag stays: the split counts first, then the place among all rows read.
_PER_SPLIT = 1 << 40


class FileRuns(NamedTuple):
    """Measured rows of one operator in one dtype, and the part of the data set that each is of.

    split    int [n]: NO_SPLIT, TRAIN or TEST, as the data set's authors used it
    drift_s  float64 [n], what the process that measured took longer, which an import takes off
    """

    runs: OperatorRuns
    split: NDArray[np.intp]
    drift_s: NDArray[np.float64]


def read_operator_files(folder: Path) -> list[FileRuns]:
    """Every operator and dtype of both data sets in `folder`; a data set that is absent is passed over.

    `rows.gpu` are rows of the shipped catalogue; rows come in the order of their keys, each once.
    """
    specs = load_seed_specs()
    gpus = UploadGpus(Catalog(specs))
    blocks: list[TaggedBlock] = []
    drift_s: list[NDArray[np.float64]] = []
    read = 0
    for part in _parts(folder):
        rows = len(part.sent)
        blocks += _blocks(part, gpus, np.arange(read, read + rows))
        drift_s.append(np.zeros(rows) if part.host_drift_s is None else part.host_drift_s)
        read += rows
    drift = np.concatenate(drift_s)
    runs = to_tagged_runs(blocks, GpuTable.from_specs(specs))
    return [FileRuns(some, tag // _PER_SPLIT, drift[tag % _PER_SPLIT]) for some, tag in runs]


def _parts(folder: Path) -> Iterator[Part]:
    if not (folder / NEUSIGHT).is_dir() and not (folder / MODERN).is_dir():
        raise NotFound(f"{folder} has none of the files known. Pass --data the folder that holds {NEUSIGHT_FILE}.")
    if (folder / NEUSIGHT).is_dir():
        yield from neusight.read(folder / NEUSIGHT)
    if (folder / MODERN).is_dir():
        yield from aiconfigurator.read(folder / MODERN)


def _blocks(part: Part, gpus: UploadGpus, read: NDArray[np.intp]) -> Iterator[TaggedBlock]:
    """Blocks whose tags are a row's split and its place `read` [n] among all rows."""
    assert isinstance(part.sent, OperatorColumns)
    checked = check_operators(gpus, part.sent)
    if not checked.readable:
        errors = [FieldError((part.file, *error.loc), error.msg) for error in checked.errors]
        raise BadInput(f"{part.file} has cells that cannot be read.", errors=errors)
    order = np.argsort(part.sent.position, kind="stable")
    for block, position in zip(checked.blocks, checked.position, strict=True):
        rows = order[np.searchsorted(part.sent.position, position, sorter=order)]
        split = np.full(len(block), NO_SPLIT) if part.test is None else np.where(part.test[rows], TEST, TRAIN)
        yield TaggedBlock(block, identities(block), split * _PER_SPLIT + read[rows])
