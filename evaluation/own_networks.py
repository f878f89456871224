"""ConvNets measured by gpucast (seed_data/measurements) as tables, each row with its network, family and run.

A run is a device, its software and what was timed: inference of whole networks, of their blocks, training steps, or one
phase of a step; runs on one device and on several (any number) are separate. Each is a platform of its own, as in the
ConvMeter paper.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from app.config import SEED_DATA
from app.engine.curated import load_seed_specs
from app.engine.operator_blocks import TaggedBlock, to_tagged_runs
from app.errors import NotFound
from app.formats.own import read_measurements
from app.graphs.convnets import FAMILIES
from app.services.measurements.check_upload import check, raise_errors
from app.services.measurements.stored_networks import NetworkTime, network_block, network_times
from app.store.operator_blocks import identities
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from evaluation.measured_networks import NetworkRuns

FOLDER = SEED_DATA / "measurements"
BLOCKS, SEVERAL_DEVICES = "blocks", "_many"
_PARQUET = "application/x-parquet"
_MOST_ROWS = 1_000_000


def read_own(folder: Path = FOLDER) -> list[NetworkRuns]:
    """Return the ConvNets in the Parquet files of `folder`, a table per dtype. Raises NotFound if there are none."""
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
    return [_runs(times, GpuTable.from_specs(specs)) for _, times in sorted(by_dtype.items())]


def _runs(times: list[NetworkTime], gpus: GpuTable) -> NetworkRuns:
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
