"""ConvNets that we measured ourselves (seed_data/measurements) as tables, each row with what it is of.

A run is a device and software, and what was timed: inference of whole networks, of their blocks, training steps, or one
of a step's phases; on several devices, however many, apart from one. Each is a platform of its own, as in the paper.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from app.config import SEED_DATA
from app.engine.curated import load_seed_specs
from app.engine.operator_blocks import TaggedBlock, to_tagged_runs
from app.errors import NotFound
from app.evaluation.measured_networks import NetworkRuns
from app.graphs.convnets import FAMILIES
from app.services.measurements.ingest import check, raise_errors
from app.services.measurements.measurement_bodies import read_measurements
from app.services.measurements.stored_networks import NetworkTime, network_block, network_times
from app.store.operator_blocks import identities
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable

FOLDER = SEED_DATA / "measurements"
BLOCKS, MANY = "blocks", "_many"
_PARQUET = "application/x-parquet"
_MOST_ROWS = 1_000_000


def read_own(folder: Path = FOLDER) -> list[NetworkRuns]:
    """ConvNets by name of every Parquet file in `folder`, a table per dtype; NotFound where there is none."""
    specs = load_seed_specs()
    by_dtype: dict[str, list[NetworkTime]] = {}
    for path in sorted(folder.glob("*.parquet")):
        upload = read_measurements(path.read_bytes(), _PARQUET, max_rows=_MOST_ROWS)
        checked = check(Catalog(specs), *upload.parts, device=upload.device)
        raise_errors(checked, len(upload))
        for one in (one for row in checked.rows if row.kind == "model" for one in network_times(row)):
            if _network(one) in FAMILIES:
                by_dtype.setdefault(one.dtype, []).append(one)
    if not by_dtype:
        raise NotFound(f"{folder} holds no measured ConvNets.")
    return [_runs(times, GpuTable.from_specs(specs)) for _, times in sorted(by_dtype.items())]


def _runs(times: list[NetworkTime], gpus: GpuTable) -> NetworkRuns:
    block = network_block(times)
    ((runs, row),) = to_tagged_runs([TaggedBlock(block, identities(block), np.arange(len(times)))], gpus)
    kept = [times[k] for k in row.tolist()]
    return NetworkRuns(
        runs,
        np.array([one.measured.name for one in kept]),
        np.array([FAMILIES[_network(one)] for one in kept]),
        np.array([f"{one.measured.gpu_id} {one.measured.software} {_what(one)}" for one in kept]),
        np.array([int(one.measured.workload.get("image_size", 0)) for one in kept], dtype=np.intp),
    )


def _network(one: NetworkTime) -> str:
    """The network, of a block too."""
    return one.measured.name.partition("/")[0]


def _what(one: NetworkTime) -> str:
    """The last word of a run: what was timed, on one device or many."""
    what = BLOCKS if "/" in one.measured.name else one.what.replace(" ", "_")
    return f"{what}{MANY}" if one.row["devices"] > 1 else what
