"""Measured operators of the published data sets as tables, for evaluations without a database.

The readers and checks are those of `gpucast import`, so the rows are those that it would store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.engine.curated import load_seed_specs
from app.engine.operator_blocks import TaggedBlock, to_tagged_runs
from app.errors import BadInput, FieldError, NotFound
from app.formats import aiconfigurator, operator_tables
from app.formats.base import Part
from app.formats.own import read as read_own
from app.ops import OP_CODE
from app.services.measurements.check_operators import check_operators
from app.services.measurements.upload_gpus import UploadGpus
from app.store.operator_blocks import identities
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.training.operator_folds import NO_SPLIT, OWN, TEST, TRAIN
from app.wire.measurements.upload import OperatorColumns
from app.wire.operators.operator_columns import Words

NEUSIGHT = "neusight"
NEUSIGHT_FILE = f"{NEUSIGHT}/operators_fp32.parquet"
# Folder -> its reader.
_READERS: Mapping[str, Callable[[Path], Iterator[Part]]] = {
    NEUSIGHT: partial(operator_tables.read, NEUSIGHT),
    "serving_operators": aiconfigurator.read,
    "whole_models": partial(operator_tables.read, "llmservingsim"),
}
DATA_SETS = tuple(_READERS)
# A tag is split * _PER_SPLIT + position among all rows read; of duplicate rows the one with the least tag is kept.
_PER_SPLIT = 1 << 40


class FileRuns(NamedTuple):
    """Measured rows of one operator in one dtype.

    split    int [n]: NO_SPLIT, TRAIN or TEST, as the data set's authors split it; OWN: a row of `gpucast measure`
    drift_s  float64 [n], host drift in seconds, which an import subtracts from the measured time
    """

    runs: OperatorRuns
    split: NDArray[np.intp]
    drift_s: NDArray[np.float64]


def read_operator_files(
    folder: Path, ops: Collection[str] = OP_CODE, names: Collection[str] = DATA_SETS, own: Sequence[Path] = ()
) -> list[FileRuns]:
    """Return a table per operator of `ops` and dtype of the data sets `names` in `folder`, some of which may be absent.

    Operators in the files `own` of `gpucast measure` are in the same tables.

    `rows.gpu` are rows of the shipped catalogue; rows are unique and in the order of their keys. Raises NotFound
    without any data set.
    """
    specs = load_seed_specs()
    gpus = UploadGpus(Catalog(specs))
    blocks: list[TaggedBlock] = []
    drift_s: list[NDArray[np.float64]] = []
    read = 0
    for upload, split in _all_parts(folder, ops, names, own):
        rows = len(upload.sent)
        blocks += _blocks(upload, gpus, np.arange(read, read + rows), split)
        drift_s.append(np.zeros(rows) if upload.host_drift_s is None else upload.host_drift_s)
        read += rows
    drift = np.concatenate(drift_s)
    runs = to_tagged_runs(blocks, GpuTable.from_specs(specs))
    return [FileRuns(part, tag // _PER_SPLIT, drift[tag % _PER_SPLIT]) for part, tag in runs]


def _parts(folder: Path, ops: Collection[str], names: Collection[str]) -> Iterator[Part]:
    """Yield the uploads with operators of `ops` that an import of the data sets would send."""
    present = [name for name in names if (folder / name).is_dir()]
    if not present:
        raise NotFound(f"{folder} has none of the files known. Pass --data the folder that holds {NEUSIGHT_FILE}.")
    for name in present:
        yield from (part for part in _READERS[name](folder / name) if _has(part, ops))


def _all_parts(
    folder: Path, ops: Collection[str], names: Collection[str], own: Sequence[Path]
) -> Iterator[tuple[Part, int]]:
    """Yield the uploads of the data sets, then those of `own`, with the split of rows whose authors tell none."""
    for part in _parts(folder, ops, names):
        yield part, NO_SPLIT
    for path in own:
        for part in read_own(path):
            if isinstance(part.sent, OperatorColumns) and _has(part, ops):
                yield part, OWN


def _has(part: Part, ops: Collection[str]) -> bool:
    """Return whether a part has rows of one of the operators."""
    assert isinstance(part.sent, OperatorColumns)
    sent = part.sent.columns["op"]
    assert isinstance(sent, Words)
    return any(word in ops for word in sent.words)


def _blocks(part: Part, gpus: UploadGpus, read: NDArray[np.intp], untold: int) -> Iterator[TaggedBlock]:
    """Return the checked blocks of a part, tagged by split and position; `read` int [n] are the positions.

    `untold` is the split of rows whose authors tell none.
    """
    assert isinstance(part.sent, OperatorColumns)
    checked = check_operators(gpus, part.sent)
    if not checked.readable:
        errors = [FieldError((part.file, *error.loc), error.msg) for error in checked.errors]
        raise BadInput(f"{part.file} has cells that cannot be read.", errors=errors)
    order = np.argsort(part.sent.position, kind="stable")
    for block, position in zip(checked.blocks, checked.position, strict=True):
        rows = order[np.searchsorted(part.sent.position, position, sorter=order)]
        split = np.full(len(block), untold) if part.test is None else np.where(part.test[rows], TEST, TRAIN)
        yield TaggedBlock(block, identities(block), split * _PER_SPLIT + read[rows])
