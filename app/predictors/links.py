"""Which link collectives take: the GPU's own, or its slot where that link does not join all that take part.

A GPU whose link joins some devices only (a bridge) is two rows to whoever predicts: as it is, and as it is over its
slot alone, under another id, so that neither physics nor what was learned of one link is taken for the other's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.predictors.priors import IS_COLLECTIVE
from app.tables.gpus import COLUMN_INDEX, MOST_IN_A_MACHINE, GpuTable, once_per_table
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import OpTable

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

_LINK, _DOMAIN, _SLOT = (
    COLUMN_INDEX[name] for name in ("link_bandwidth_bytes_per_s", "link_domain_gpus", "slot_bandwidth_bytes_per_s")
)
# Ends the id of a GPU over its slot; no id of the catalogue has a slash.
_OVER_SLOT = "/slot"


def named(gpu: str) -> str:
    """The id of the GPU that a row is of, over whichever link."""
    return gpu.removesuffix(_OVER_SLOT)


def not_joined(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Bools | None:
    """Collectives, operator row `i[q]`, of more devices of a machine than the link of GPU row `j[q]` joins, bool [n].

    None where there are none.
    """
    domain = gpus.values[_DOMAIN][j]
    if not (domain <= MOST_IN_A_MACHINE).any() or not IS_COLLECTIVE[ops.kind].any():
        return None
    devices, nodes, spread = (ops.column(name) for name in ("devices", "nodes", "spread"))
    among = np.where(IS_COLLECTIVE[ops.kind] & (devices > nodes), np.fmax(spread, devices) / nodes, 1.0)
    apart: Bools = (among[i] > domain) & (domain <= MOST_IN_A_MACHINE)
    return apart if apart.any() else None


def linked(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> tuple[GpuTable, Ints]:
    """The table, and its rows [n], by which operator row `i[q]` is predicted on GPU row `j[q]`."""
    apart = not_joined(ops, gpus, i, j)
    if apart is None:
        return gpus, j
    place = len(gpus) + np.cumsum(_bridged(gpus)) - 1
    return _with_slots(gpus), np.where(apart, place[j], j)


def linked_runs(runs: Sequence[OperatorRuns], gpus: GpuTable) -> tuple[Sequence[OperatorRuns], GpuTable]:
    """Measured rows on the rows of a table by which they are predicted."""
    found = [linked(run.rows.ops, gpus, np.arange(len(run)), run.rows.gpu) for run in runs]
    table = max((table for table, _ in found), key=len, default=gpus)
    if table is gpus:
        return runs, gpus
    return [replace(run, rows=replace(run.rows, gpu=j)) for run, (_, j) in zip(runs, found, strict=True)], table


def _bridged(gpus: GpuTable) -> Bools:
    """GPUs whose link joins some devices of a machine only, bool [gpus]."""
    bridged: Bools = gpus.values[_DOMAIN] <= MOST_IN_A_MACHINE
    return bridged


@once_per_table
def _with_slots(gpus: GpuTable) -> GpuTable:
    """The table, and behind its rows those `_bridged` over their slots."""
    slots = gpus.take(np.flatnonzero(_bridged(gpus)))
    slots.values[_LINK] = np.fmin(slots.values[_LINK], slots.values[_SLOT])  # of an unknown slot the link
    slots.values[_DOMAIN] = np.nan
    ids = tuple(f"{gpu}{_OVER_SLOT}" for gpu in slots.ids)
    values = np.ascontiguousarray(np.concatenate([gpus.values, slots.values], axis=1))
    return GpuTable(gpus.ids + ids, values, gpus.architectures + slots.architectures)
