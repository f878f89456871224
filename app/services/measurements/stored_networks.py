"""Stored measurements of ConvNets as tables that ConvMeter learns from: rows of the operator `network`, and models.

A model by its name becomes a row of `network` for each pass of it that was timed. Training's forward pass is learned
in its step alone: it takes longer than inference's, for it normalises by the batch and keeps what backward needs.
Where several devices exchange gradients while backward runs, backward and update are one pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np
from sqlalchemy import Connection

from app.engine.operator_blocks import to_runs
from app.errors import BadInput
from app.ops.network import BACKWARD, BACKWARD_UPDATE, FORWARD, NETWORK, STEP, UPDATE
from app.services.models.hits import request_for
from app.services.models.networks import forward_of
from app.services.models.sources import asked_network
from app.services.models.whole_networks import network_figures, network_row
from app.store import measurements, operators
from app.store.measurements import MeasurementRow
from app.store.operator_blocks import NO_TIME, Context, OperatorBlock, identities
from app.tables.arrays import Bytes
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.wire.measurements.measurement_form import MeasuredModel

# What says how a row was run rather than which network it is, and is not stored.
_FIELDS = tuple(name for name in NETWORK.fields if name not in ("count", "eager"))
TRAINING_FORWARD = "training forward"


class NetworkTime(NamedTuple):
    """One pass of a measured network: inference, step or a phase of training, its columns of NETWORK, and seconds."""

    measured: MeasurementRow
    what: str
    row: dict[str, float]
    latency_s: float

    @property
    def dtype(self) -> str:
        """Its number format."""
        return str(self.measured.workload.get("dtype", "fp32"))


def stored_networks(connection: Connection, gpus: GpuTable) -> list[OperatorRuns]:
    """Stored networks on GPUs of `gpus`: one table per dtype, as `stored_operators` gives operators."""
    models = network_blocks(measurements.load(connection, kind="model"))
    return to_runs(chain(operators.load(connection, ops=(NETWORK.name,)), models), gpus)


def network_blocks(rows: Sequence[MeasurementRow]) -> Iterator[tuple[OperatorBlock, Bytes]]:
    """Measured models that are ConvNets, a block per dtype, with the identities of their rows."""
    by_dtype: dict[str, list[NetworkTime]] = {}
    for one in (one for row in rows for one in network_times(row) if one.what != TRAINING_FORWARD):
        by_dtype.setdefault(one.dtype, []).append(one)
    for times in by_dtype.values():
        block = network_block(times)
        yield block, identities(block)


def network_block(times: Sequence[NetworkTime]) -> OperatorBlock:
    """Passes in one dtype, in their order."""
    contexts = [
        Context(NETWORK.name, one.dtype, _FIELDS, one.measured.gpu_id, one.measured.software, one.measured.source, None)
        for one in times
    ]
    distinct = tuple(dict.fromkeys(contexts))
    absent, nowhere = np.full(len(times), np.nan), np.full((3, len(times)), np.nan)
    return OperatorBlock(
        distinct,
        np.array([distinct.index(one) for one in contexts], dtype=np.intp),
        np.array([[one.row[name] for one in times] for name in _FIELDS]),
        np.array([one.latency_s for one in times]),
        latency_std_s=absent,
        runs=absent,
        clock_hz=absent,
        power_w=absent,
        measured_at=np.full(len(times), NO_TIME),
        grid=nowhere,
        block=nowhere,
    )


def network_times(measured: MeasurementRow) -> Iterator[NetworkTime]:
    """Passes of a measured model; none of what is no ConvNet, is not known, or is not plain data parallelism."""
    asked = request_for(msgspec.convert(measured.workload, MeasuredModel))
    if asked is None:
        return
    try:
        network, run = asked_network(asked, None)
        found = network_figures(forward_of(network, run), run)
    except BadInput:
        return
    if run.mode != "training":
        yield NetworkTime(measured, "inference", network_row(found, run, FORWARD), measured.latency_s)
        return
    yield NetworkTime(measured, "step", network_row(found, run, STEP), measured.latency_s)
    many = run.parallelism.data > 1
    for name, (what, seconds) in _passes(measured.phases_s or {}, many=many).items():
        if seconds > 0:
            yield NetworkTime(measured, f"training {name}", network_row(found, run, what), seconds)


def _passes(phases: Mapping[str, float], *, many: bool) -> dict[str, tuple[int, float]]:
    """Passes of a step and seconds of each, 0 where nobody timed it: gradients are exchanged for the update."""
    forward, backward, update = (phases.get(name, 0.0) for name in ("forward", "backward", "update"))
    exchange = phases.get("communication", 0.0)
    if many and not exchange:  # it runs beside backward
        both = backward + update if min(backward, update) > 0 else 0.0
        return {"forward": (FORWARD, forward), "backward_update": (BACKWARD_UPDATE, both)}
    apart = {"backward": (BACKWARD, backward), "update": (UPDATE, update + exchange)}
    return {"forward": (FORWARD, forward), **apart}
