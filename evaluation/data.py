"""Measured operators and networks as tables, from the published data sets and from files of `gpucast measure`.

No database is needed: the readers and checks are those of `gpucast import`, so the rows are those that it would store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from app.config import SEED_DATA
from app.engine.catalogue import load_seed_specs
from app.engine.measurement_tables import TaggedBlock, to_tagged_runs
from app.errors import BadInput, FieldError, NotFound
from app.formats import aiconfigurator, operator_tables
from app.formats import own as own_files
from app.formats.base import Part
from app.formats.operator_tables import read_table
from app.formats.own import read_measurements
from app.networks.convnets import FAMILIES
from app.ops import OP_CODE, OPS
from app.ops.base import Op
from app.services.measurements.check_operators import check_operators
from app.services.measurements.check_upload import check, raise_errors
from app.services.measurements.parse_rows import UploadGpus
from app.services.measurements.stored import NetworkTime, network_block, network_times
from app.store.operator_blocks import identities
from app.tables.arrays import Floats, Ints
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.measurements import OperatorRuns
from app.wire.measurement_form import OperatorColumns
from app.wire.operator_columns import Words

Names = NDArray[np.str_]
NO_SPLIT, TRAIN, TEST, OWN = range(4)

NEUSIGHT = "neusight"
NEUSIGHT_FILE = f"{NEUSIGHT}/operators_fp32.parquet"
# Folder -> its reader.
_READERS: Mapping[str, Callable[[Path], Iterator[Part]]] = {
    NEUSIGHT: partial(operator_tables.read, NEUSIGHT),
    "serving_operators": aiconfigurator.read,
    "whole_models": partial(operator_tables.read, "llmservingsim"),
    "aiter_operators": partial(operator_tables.read, "aiter"),
}
# A tag is split * _PER_SPLIT + position among all rows read; of duplicate rows the one with the least tag is kept.
_PER_SPLIT = 1 << 40
TIMM_FOLDER, TIMM_FILE = "vision_models", "vision_models.parquet"
_RUN = ("device", "framework", "layout", "compile_mode", "phase")
_NAMES = ("model", "family")
_SIZE = "img_size"
OWN_FOLDER = SEED_DATA / "measurements"
BLOCKS, SEVERAL_DEVICES = "blocks", "_many"
_PARQUET = "application/x-parquet"
_MOST_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Cell:
    """Measured rows of one operator in one dtype.

    split    int [n]: NO_SPLIT, TRAIN or TEST, as NeuSight split its data; OWN: a row of `gpucast measure`
    drift_s  float64 [n], host drift in seconds, which is not in the rows' times
    """

    runs: OperatorRuns
    split: Ints
    drift_s: Floats

    @property
    def op(self) -> Op:
        """Return the operator."""
        return OPS[OP_CODE[self.runs.op]]

    @property
    def group(self) -> str:
        """Return the operator's group."""
        return self.op.group


def read_cells(
    folder: Path, ops: Collection[str] = OP_CODE, names: Collection[str] = tuple(_READERS), own: Sequence[Path] = ()
) -> list[Cell]:
    """Return a cell per operator of `ops` and dtype of the data sets `names` in `folder`, some of which may be absent.

    Operators in the files `own` of `gpucast measure` are in the same cells. Times are without host drift, which an
    import subtracts. `rows.gpu` are rows of the shipped catalogue; rows are unique and in the order of their keys.
    Raises NotFound without any data set.
    """
    specs = load_seed_specs()
    gpus = UploadGpus(Catalog(specs))
    blocks: list[TaggedBlock] = []
    drift_s: list[NDArray[np.float64]] = []
    read = 0
    for upload, split in _parts(folder, ops, names, own):
        rows = len(upload.sent)
        blocks += _split_blocks(upload, gpus, np.arange(read, read + rows), split)
        drift_s.append(np.zeros(rows) if upload.host_drift_s is None else upload.host_drift_s)
        read += rows
    drift = np.concatenate(drift_s)
    runs = to_tagged_runs(blocks, GpuTable.from_specs(specs))
    return [Cell(part, tag // _PER_SPLIT, drift[tag % _PER_SPLIT]) for part, tag in runs]


def _parts(
    folder: Path, ops: Collection[str], names: Collection[str], own: Sequence[Path]
) -> Iterator[tuple[Part, int]]:
    """Yield the uploads with operators of `ops`, and the split of rows for which their authors give none."""
    present = [name for name in names if (folder / name).is_dir()]
    if not present:
        raise NotFound(f"{folder} has none of the files known. Pass --data the folder that holds {NEUSIGHT_FILE}.")
    for name in present:
        yield from ((part, NO_SPLIT) for part in _READERS[name](folder / name) if _has(part, ops))
    for path in own:
        yield from ((part, OWN) for part in own_files.read(path) if _has(part, ops))


def _has(part: Part, ops: Collection[str]) -> bool:
    """Return whether a part has rows of one of the operators."""
    if not isinstance(part.sent, OperatorColumns):
        return False
    sent = part.sent.columns["op"]
    assert isinstance(sent, Words)
    return any(word in ops for word in sent.words)


def _split_blocks(part: Part, gpus: UploadGpus, read: Ints, no_split: int) -> Iterator[TaggedBlock]:
    """Return the checked blocks of a part, tagged by split and position; `read` int [n] are the positions.

    `no_split` is the split of rows for which their authors give none.
    """
    assert isinstance(part.sent, OperatorColumns)
    order = np.argsort(part.sent.position, kind="stable")
    for checked in _checked(part, gpus):
        rows = order[np.searchsorted(part.sent.position, checked.tag, sorter=order)]
        split = np.full(len(rows), no_split) if part.test is None else np.where(part.test[rows], TEST, TRAIN)
        yield checked._replace(tag=split * _PER_SPLIT + read[rows])


def _checked(part: Part, gpus: UploadGpus) -> Iterator[TaggedBlock]:
    """Return the checked blocks of a part, tagged by position. Raises BadInput for a cell that cannot be read."""
    assert isinstance(part.sent, OperatorColumns)
    checked = check_operators(gpus, part.sent)
    if not checked.readable:
        errors = [FieldError((part.file, *error.loc), error.msg) for error in checked.errors]
        raise BadInput(f"{part.file} has cells that cannot be read.", errors=errors)
    for block, position in zip(checked.blocks, checked.position, strict=True):
        yield TaggedBlock(block, identities(block), position)


class NetworkRuns(NamedTuple):
    """Measured networks in one dtype.

    name, family  str [n], network, and family of networks such as resnet
    batch_of      str [n], run: device, software, and what was timed, each a platform of its own as in ConvMeter's paper
    image_size    int [n], pixels per side
    """

    runs: OperatorRuns
    name: Names
    family: Names
    batch_of: Names
    image_size: Ints

    def take(self, rows: Ints) -> NetworkRuns:
        """Return the rows at positions `rows`."""
        runs, name, family, batch_of, size = self
        return NetworkRuns(runs.take(rows), name[rows], family[rows], batch_of[rows], size[rows])


def read_networks(folder: Path) -> list[NetworkRuns]:
    """Return timm's ConvNets in `folder`, a table per dtype, read and checked as by `gpucast import timm`.

    A run is a device, its software, layout, compilation and phase.
    """
    home = folder / TIMM_FOLDER
    if not home.is_dir():
        raise NotFound(f"{folder} has no {TIMM_FOLDER}. Pass --data the folder that holds {TIMM_FOLDER}/{TIMM_FILE}.")
    others = [name for name in pq.read_schema(home / TIMM_FILE).names if name not in (*_RUN, *_NAMES, _SIZE)]
    table = read_table(home / TIMM_FILE, (*_RUN, *_NAMES), (_SIZE,), unused=others)
    run = np.array([" ".join(words) for words in zip(*(_strings(table, name) for name in _RUN), strict=True)])
    name, family, size = _strings(table, "model"), _strings(table, "family"), table[_SIZE].to_numpy().astype(np.intp)
    specs = load_seed_specs()
    gpus = UploadGpus(Catalog(specs))
    blocks = [block for part in operator_tables.read("timm", home) for block in _checked(part, gpus)]
    return [
        NetworkRuns(runs, name[row], family[row], run[row], size[row])
        for runs, row in to_tagged_runs(blocks, GpuTable.from_specs(specs))
    ]


def _strings(table: pa.Table, name: str) -> Names:
    return np.array(table[name].to_pylist(), dtype=np.str_)


def read_own(folder: Path = OWN_FOLDER) -> list[NetworkRuns]:
    """Return the ConvNets that gpucast measured, in the Parquet files of `folder`, a table per dtype.

    A run is a device, its software and what was timed: inference of whole networks, of their blocks, training steps, or
    one phase of a step; on one device, or on several (any number). Raises NotFound if there are none.
    """
    specs = load_seed_specs()
    by_dtype: dict[str, list[NetworkTime]] = {}
    for path in sorted(folder.glob("*.parquet")):
        upload = read_measurements(path.read_bytes(), _PARQUET, max_rows=_MOST_ROWS)
        checked = check(Catalog(specs), *upload.parts, device=upload.device)
        raise_errors(checked, len(upload))
        for time in (time for row in checked.rows if row.kind == "model" for time in network_times(row)):
            if _network(time) in FAMILIES:
                by_dtype.setdefault(time.dtype, []).append(time)
    if not by_dtype:
        raise NotFound(f"{folder} holds no measured ConvNets.")
    return [_own_runs(times, GpuTable.from_specs(specs)) for _, times in sorted(by_dtype.items())]


def _own_runs(times: Sequence[NetworkTime], gpus: GpuTable) -> NetworkRuns:
    """Return measured times of one dtype as a table."""
    block = network_block(times)
    ((runs, row),) = to_tagged_runs([TaggedBlock(block, identities(block), np.arange(len(times)))], gpus)
    unique = [times[k] for k in row.tolist()]
    return NetworkRuns(
        runs,
        np.array([time.measured.name for time in unique]),
        np.array([FAMILIES[_network(time)] for time in unique]),
        np.array([f"{time.measured.gpu_id} {time.measured.software} {_timed(time)}" for time in unique]),
        np.array([int(time.measured.workload.get("image_size", 0)) for time in unique], dtype=np.intp),
    )


def _network(time: NetworkTime) -> str:
    """Return the name of the measured network, or of the network of a measured block."""
    return time.measured.name.partition("/")[0]


def _timed(time: NetworkTime) -> str:
    """Return the last word of a run's name: what was timed, on one device or several."""
    timed = BLOCKS if "/" in time.measured.name else time.what.replace(" ", "_")
    return f"{timed}{SEVERAL_DEVICES}" if time.row["devices"] > 1 else timed
