"""Link that a collective uses: the GPU's own link, or its slot if the link does not join all participants.

A GPU whose link joins only some devices of a node (a bridge) has two rows: itself, and itself over its slot under
another id, so that the physics and the models of one link are not applied to the other. So has one that is asked about
over another link than its own: its slot, or a bridge that joins two cards (seed_data/links.json).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from app.coefficients import Coefficients
from app.config import SEED_DATA
from app.predictors.priors import IS_COLLECTIVE, SENDS
from app.stacks.facts import Link
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import COLUMN_INDEX, MOST_IN_A_MACHINE, GpuSpec, GpuTable, once_per_table
from app.tables.measurements import OperatorRuns
from app.tables.ops import OpTable

_LINK, _DOMAIN, _SLOT = (
    COLUMN_INDEX[name] for name in ("link_bandwidth_bytes_per_s", "link_domain_gpus", "slot_bandwidth_bytes_per_s")
)
# Suffixes of the id of a GPU over its slot, and over a bridge; no id of the catalogue has a slash.
_OVER_SLOT = "/slot"
_SUFFIXES: Mapping[Link, str] = {"pcie": _OVER_SLOT, "nvlink_bridge": "/bridge"}
# Relative difference up to which two bandwidths are one link's.
_SAME = Coefficients("physics").number("same_link_rate")


@cache
def _facts(link: Link) -> Mapping[str, Any]:
    """Return the figures of a kind of link: by GPU id (bytes per second, cards) or by architecture (bytes per second).

    Bytes per second are one way.
    """
    figures: Mapping[str, Any] = json.loads((SEED_DATA / "links.json").read_bytes())[link]["figures"]
    return figures


def gpu_id_of(gpu: str) -> str:
    """Return the catalogue id of a row's GPU, over any link."""
    return gpu.partition("/")[0]


def link_refusal(spec: GpuSpec, link: Link | None, devices: int) -> str | None:
    """Return why so many devices of a machine cannot be joined by a link; None if they can."""
    if link is None:
        return None
    _, joined = _other_link(GpuTable.from_specs([spec]), link)[:, 0]
    if np.isnan(joined):
        return f"{spec.id} has no {'NVLink bridge' if link == 'nvlink_bridge' else 'PCIe slot'}"
    return f"a bridge joins {joined:g} cards of {spec.id}, got {devices}" if devices > joined else None


def _other_link(gpus: GpuTable, link: Link) -> Floats:
    """Return bytes per second over a link of each GPU, and devices of a machine that it joins, [2, gpus]; NaN: none."""
    slots = gpus.values[_SLOT]
    if link == "nvlink_bridge":
        return np.array([_facts(link).get(gpu_id_of(gpu), (np.nan, np.nan)) for gpu in gpus.ids]).T
    names = (key.partition("/")[0] for key in gpus.architectures or ("",) * len(gpus))
    of_era = np.array([_facts(link).get(name, np.nan) for name in names])
    rates = np.minimum(np.where(np.isnan(slots), of_era, slots), gpus.values[_LINK])
    return np.array([rates, np.where(np.isnan(rates), np.nan, np.inf)])


def over_link(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, link: Link) -> tuple[GpuTable, Ints]:
    """Return a GPU table with rows over a link that is asked for, and the row, int [n], to predict each query with.

    Query q is operator row `i[q]` on GPU row `j[q]` of `gpus`; those that send nothing keep their row.
    """
    sends = SENDS[ops.kind[i]]
    if not sends.any():
        return gpus, j
    rates, joined = _other_link(gpus, link)
    other = np.isfinite(rates) & ~np.isclose(rates, gpus.values[_LINK], rtol=_SAME)
    if ("over", link) not in gpus.memo:
        rows = gpus.take(np.flatnonzero(other))
        rows.values[_SLOT] = np.fmin(rows.values[_SLOT], rows.values[_LINK])
        rows.values[_LINK], rows.values[_DOMAIN] = rates[other], np.where(np.isinf(joined), np.nan, joined)[other]
        gpus.memo["over", link] = _with_rows(gpus, rows, _SUFFIXES[link])
    place = len(gpus) + np.cumsum(other) - 1
    return gpus.memo["over", link], np.where(sends & other[j], place[j], j)


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
    return _with_rows(gpus, slots, _OVER_SLOT)


def _with_rows(gpus: GpuTable, others: GpuTable, suffix: str) -> GpuTable:
    """Return the table with other rows appended, whose ids end so."""
    ids = tuple(f"{gpu_id_of(gpu)}{suffix}" for gpu in others.ids)
    values = np.ascontiguousarray(np.concatenate([gpus.values, others.values], axis=1))
    return GpuTable(gpus.ids + ids, values, gpus.architectures + others.architectures)
