"""Which GPUs a request's link joins, and whose collectives its library runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from app.engine.snapshot import GpuRows, Path
from app.networks.run import Parallelism
from app.predictors.links import link_refusal
from app.predictors.priors import IS_COLLECTIVE
from app.stacks.facts import Link
from app.tables.gpus import GpuSpec
from app.tables.ops import OpTable
from app.wire.operator_forms import OperatorsRequest

_VENDORS = {"nccl": "NVIDIA", "rccl": "AMD"}


def joined_by(rows: GpuRows, targets: Sequence[int], split: Parallelism, *, every: bool) -> list[int]:
    """Return the targets of which a network's link joins the devices of a machine, as `GpuRows.allowed`."""
    loc = ("workload", "parallelism", "link")
    return joined(rows, targets, split.link, split.devices // split.nodes, loc, every=every)


def joined(
    rows: GpuRows, targets: Sequence[int], link: Link | None, devices: int, loc: Path, *, every: bool
) -> list[int]:
    """Return the targets of which a link joins so many devices of a machine, as `GpuRows.allowed`."""
    return rows.allowed(targets, partial(link_refusal, link=link, devices=devices), loc, every=every)


def together(ops: OpTable) -> int:
    """Return the most devices of a machine that exchange among themselves in any of these rows; 1 for none."""
    rows = ops.take(np.flatnonzero(IS_COLLECTIVE[ops.kind]))
    devices = np.fmax(rows.column("devices"), rows.column("spread")) / rows.column("nodes") if len(rows) else np.ones(1)
    return int(devices.max())


def placed(rows: GpuRows, targets: Sequence[int], request: OperatorsRequest, ops: OpTable) -> list[int]:
    """Return the targets that are joined as a request says, and have its library, as `GpuRows.allowed`."""
    workload, every = request.workload, request.gpus == "all"
    library = workload.implementation

    def why(spec: GpuSpec) -> str | None:
        alike = library is None or spec.vendor == _VENDORS[library]
        return None if alike else f"{library} does not run on {spec.id}, by {spec.vendor}"

    targets = joined(rows, targets, workload.link, together(ops), ("workload", "link"), every=every)
    return rows.allowed(targets, why, ("workload", "implementation"), every=every)
