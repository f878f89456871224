"""Convert stored measurements of ConvNets, operator `network` and models, to training tables for ConvMeter.

A model given by name becomes a row of `network` for each pass that was timed. Training's forward pass is only learned
as part of its step: it takes longer than inference's, because batch normalisation and saved tensors cost time. Where
several devices exchange gradients during backward, backward and update count as one pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np
from sqlalchemy import Connection

from app.engine.measurement_tables import to_runs
from app.errors import BadInput
from app.ops.network import BACKWARD, BACKWARD_UPDATE, FORWARD, NETWORK, STEP, UPDATE
from app.services.models.network_hits import to_workload
from app.services.models.resolve_networks import resolve_network
from app.services.models.whole_networks import network_figures, network_row
from app.steps.networks import forward_rows
from app.store import measurements, operator_rows
from app.store.measurements import MeasurementRow
from app.store.operator_blocks import NO_TIME, Context, OperatorBlock, identities
from app.tables.arrays import Bytes
from app.tables.gpus import GpuTable
from app.tables.measurements import OperatorRuns
from app.wire.measurement_form import MeasuredModel

# `count` and `eager` describe how a row ran, not which network it is, and are not stored.
_FIELDS = tuple(name for name in NETWORK.fields if name not in ("count", "eager", "stack"))
TRAINING_FORWARD = "training forward"


class NetworkTime(NamedTuple):
    """One pass of a measured network: inference, step or a training phase, its columns of NETWORK, and seconds."""

    measured: MeasurementRow
    what: str
    row: dict[str, float]
    latency_s: float

    @property
    def dtype(self) -> str:
        """Its number format."""
        return str(self.measured.workload.get("dtype", "fp32"))


def stored_networks(connection: Connection, gpus: GpuTable) -> list[OperatorRuns]:
    """Return stored networks on GPUs of `gpus`, one table per dtype, as `stored_operators` does for operators."""
    models = network_blocks(measurements.load(connection, kind="model"))
    return to_runs(chain(operator_rows.load(connection, ops=(NETWORK.name,)), models), gpus)


def network_blocks(rows: Sequence[MeasurementRow]) -> Iterator[tuple[OperatorBlock, Bytes]]:
    """Yield measured ConvNets, one block per dtype, with the identities of their rows."""
    by_dtype: dict[str, list[NetworkTime]] = {}
    for timed in (timed for row in rows for timed in network_times(row) if timed.what != TRAINING_FORWARD):
        by_dtype.setdefault(timed.dtype, []).append(timed)
    for times in by_dtype.values():
        block = network_block(times)
        yield block, identities(block)


def network_block(times: Sequence[NetworkTime]) -> OperatorBlock:
    """Return passes of one dtype as a block, in order."""
    contexts = [
        Context(
            NETWORK.name, item.dtype, _FIELDS, item.measured.gpu_id, item.measured.software, item.measured.source, None
        )
        for item in times
    ]
    distinct = tuple(dict.fromkeys(contexts))
    absent, nowhere = np.full(len(times), np.nan), np.full((3, len(times)), np.nan)
    return OperatorBlock(
        distinct,
        np.array([distinct.index(context) for context in contexts], dtype=np.intp),
        np.array([[item.row[name] for item in times] for name in _FIELDS]),
        np.array([item.latency_s for item in times]),
        latency_std_s=absent,
        runs=absent,
        clock_hz=absent,
        power_w=absent,
        measured_at=np.full(len(times), NO_TIME),
        grid=nowhere,
        block=nowhere,
    )


def network_times(measured: MeasurementRow) -> Iterator[NetworkTime]:
    """Yield the passes of a measured model; none unless it is a known ConvNet with plain data parallelism."""
    workload = to_workload(msgspec.convert(measured.workload, MeasuredModel))
    if workload is None:
        return
    try:
        network, run = resolve_network(workload, None)
        figures = network_figures(forward_rows(network, run), run)
    except BadInput:
        return
    if run.mode != "training":
        yield NetworkTime(measured, "inference", network_row(figures, run, FORWARD), measured.latency_s)
        return
    yield NetworkTime(measured, "step", network_row(figures, run, STEP), measured.latency_s)
    several = run.parallelism.data > 1
    for name, (what, seconds) in _passes(measured.phases_s or {}, several=several).items():
        if seconds > 0:
            yield NetworkTime(measured, f"training {name}", network_row(figures, run, what), seconds)


def _passes(phases: Mapping[str, float], *, several: bool) -> dict[str, tuple[int, float]]:
    """Return the passes of a step with their seconds, 0 if not timed. The update includes the gradient exchange."""
    forward, backward, update = (phases.get(name, 0.0) for name in ("forward", "backward", "update"))
    exchange = phases.get("communication", 0.0)
    if several and not exchange:  # the exchange overlaps backward
        both = backward + update if min(backward, update) > 0 else 0.0
        return {"forward": (FORWARD, forward), "backward_update": (BACKWARD_UPDATE, both)}
    apart = {"backward": (BACKWARD, backward), "update": (UPDATE, update + exchange)}
    return {"forward": (FORWARD, forward), **apart}
