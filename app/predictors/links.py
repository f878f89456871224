"""Link that a collective uses: the GPU's own link, or its slot if the link does not join all participants.

A GPU whose link joins only some devices of a node (a bridge) has two rows: itself, and itself over its slot under
another id, so that the physics and the models of one link are not applied to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.predictors.priors import IS_COLLECTIVE
from app.tables.arrays import Bools, Ints
from app.tables.gpus import COLUMN_INDEX, MOST_IN_A_MACHINE, GpuTable, once_per_table
from app.tables.measurements import OperatorRuns
from app.tables.ops import OpTable

_LINK, _DOMAIN, _SLOT = (
    COLUMN_INDEX[name] for name in ("link_bandwidth_bytes_per_s", "link_domain_gpus", "slot_bandwidth_bytes_per_s")
)
# Suffix of the id of a GPU over its slot; no id of the catalogue has a slash.
_OVER_SLOT = "/slot"


def gpu_id_of(gpu: str) -> str:
    """Return the catalogue id of a row's GPU, over either link."""
    return gpu.removesuffix(_OVER_SLOT)


def beyond_link_domain(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Bools | None:
    """Return True for collectives of more devices of a node than the GPU's link joins, bool [n]; None if all False.

    Query q is operator row `i[q]` on GPU row `j[q]`.
    """
    domain = gpus.values[_DOMAIN][j]
    if not (domain <= MOST_IN_A_MACHINE).any() or not IS_COLLECTIVE[ops.kind].any():
        return None
    devices, nodes, spread = (ops.column(name) for name in ("devices", "nodes", "spread"))
    among = np.where(IS_COLLECTIVE[ops.kind] & (devices > nodes), np.fmax(spread, devices) / nodes, 1.0)
    by_slot: Bools = (among[i] > domain) & (domain <= MOST_IN_A_MACHINE)
    return by_slot if by_slot.any() else None


def by_link(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> tuple[GpuTable, Ints]:
    """Return a GPU table with rows over slots, and the row, int [n], to predict each query with.

    Query q is operator row `i[q]` on GPU row `j[q]` of `gpus`.
    """
    by_slot = beyond_link_domain(ops, gpus, i, j)
    if by_slot is None:
        return gpus, j
    place = len(gpus) + np.cumsum(_bridged(gpus)) - 1
    return _with_slots(gpus), np.where(by_slot, place[j], j)


def runs_by_link(runs: Sequence[OperatorRuns], gpus: GpuTable) -> tuple[Sequence[OperatorRuns], GpuTable]:
    """Return the runs with GPU rows of a table with rows over slots, and that table."""
    resolved = [by_link(run.rows.ops, gpus, np.arange(len(run)), run.rows.gpu) for run in runs]
    table = max((table for table, _ in resolved), key=len, default=gpus)
    if table is gpus:
        return runs, gpus
    return [replace(run, rows=replace(run.rows, gpu=j)) for run, (_, j) in zip(runs, resolved, strict=True)], table


def _bridged(gpus: GpuTable) -> Bools:
    """Return True for GPUs whose link joins only some devices of a node, bool [gpus]."""
    bridged: Bools = gpus.values[_DOMAIN] <= MOST_IN_A_MACHINE
    return bridged


@once_per_table
def _with_slots(gpus: GpuTable) -> GpuTable:
    """Return the table with the `_bridged` GPUs over their slots appended."""
    slots = gpus.take(np.flatnonzero(_bridged(gpus)))
    slots.values[_LINK] = np.fmin(slots.values[_LINK], slots.values[_SLOT])  # the link if the slot is unknown
    slots.values[_DOMAIN] = np.nan
    ids = tuple(f"{gpu}{_OVER_SLOT}" for gpu in slots.ids)
    values = np.ascontiguousarray(np.concatenate([gpus.values, slots.values], axis=1))
    return GpuTable(gpus.ids + ids, values, gpus.architectures + slots.architectures)
