"""Measured networks of a data folder as tables, each row with its network, family and run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from app.engine.curated import load_seed_specs
from app.engine.operator_blocks import TaggedBlock, to_tagged_runs
from app.errors import NotFound
from app.formats import operator_tables
from app.formats.operator_tables import read_table
from app.services.measurements.check_operators import check_operators
from app.services.measurements.upload_gpus import UploadGpus
from app.store.operator_blocks import identities
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.wire.measurements.upload import OperatorColumns

Names = NDArray[np.str_]
FOLDER, FILE = "vision_models", "vision_models.parquet"
_RUN = ("device", "framework", "layout", "compile_mode", "phase")
_NAMES = ("model", "family")
_SIZE = "img_size"


class NetworkRuns(NamedTuple):
    """Measured networks in one dtype.

    name, family  str [n], network, and family of networks such as resnet
    batch_of      str [n], benchmark run: device, software, layout, compilation, phase
    image_size    int [n], pixels per side
    """

    runs: OperatorRuns
    name: Names
    family: Names
    batch_of: Names
    image_size: NDArray[np.intp]

    def take(self, rows: NDArray[np.intp]) -> NetworkRuns:
        """Return the rows at positions `rows`."""
        runs, name, family, batch_of, size = self
        return NetworkRuns(runs.take(rows), name[rows], family[rows], batch_of[rows], size[rows])


def read_networks(folder: Path) -> list[NetworkRuns]:
    """Return timm's ConvNets in `folder`, a table per dtype, read and checked as by `gpucast import timm`."""
    if not (folder / FOLDER).is_dir():
        raise NotFound(f"{folder} has no {FOLDER}. Pass --data the folder that holds {FOLDER}/{FILE}.")
    specs = load_seed_specs()
    gpus = UploadGpus(Catalog(specs))
    columns = _columns(folder / FOLDER / FILE)
    blocks = [block for part in operator_tables.read("timm", folder / FOLDER) for block in _blocks(part.sent, gpus)]
    name, family, batch_of, size = columns
    return [
        NetworkRuns(runs, name[row], family[row], batch_of[row], size[row])
        for runs, row in to_tagged_runs(blocks, GpuTable.from_specs(specs))
    ]


def _columns(path: Path) -> tuple[Names, Names, Names, NDArray[np.intp]]:
    """Return name, family, run and image size of every row of the file, [n] each."""
    others = [name for name in pq.read_schema(path).names if name not in (*_RUN, *_NAMES, _SIZE)]
    table = read_table(path, (*_RUN, *_NAMES), (_SIZE,), unused=others)
    joined = np.array([" ".join(fields) for fields in zip(*(_strings(table, name) for name in _RUN), strict=True)])
    size = table[_SIZE].to_numpy().astype(np.intp)
    return _strings(table, "model"), _strings(table, "family"), joined, size


def _strings(table: pa.Table, name: str) -> Names:
    return np.array(table[name].to_pylist(), dtype=np.str_)


def _blocks(sent: object, gpus: UploadGpus) -> Iterator[TaggedBlock]:
    """Return the checked blocks of one part of an upload, tagged with their rows' positions."""
    assert isinstance(sent, OperatorColumns)
    checked = check_operators(gpus, sent)
    for block, position in zip(checked.blocks, checked.position, strict=True):
        yield TaggedBlock(block, identities(block), position)
