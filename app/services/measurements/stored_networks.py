"""Stored measurements of ConvNets as tables that ConvMeter learns from: rows of the operator `network`, and models.

A model by its name or graph becomes a row of `network` for each pass of it that was timed. Of training that is the
step, backward and the update; its forward pass normalises by the batch and keeps what backward needs, which takes
longer than the forward pass of inference, and is in the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np
from sqlalchemy import Connection

from app.errors import BadInput
from app.ops.network import BACKWARD, FORWARD, NETWORK, STEP, UPDATE
from app.services.measurements.form import MeasuredModel
from app.services.measurements.operator_blocks import runs_of
from app.services.models.networks import forward_of
from app.services.models.sources import asked_network
from app.services.models.whole_networks import network_figures, network_row
from app.store import measurements, operators
from app.store.measurements import MeasurementRow
from app.store.operator_blocks import NO_TIME, Bytes, Context, OperatorBlock, identities
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns

# What says how a row was run rather than which network it is, and is not stored.
_FIELDS = tuple(name for name in NETWORK.fields if name not in ("count", "eager"))


class NetworkTime(NamedTuple):
    """One pass of a measured network: its columns of NETWORK, and seconds."""

    row: dict[str, float]
    latency_s: float


def stored_networks(connection: Connection, gpus: GpuTable) -> list[OperatorRuns]:
    """Stored networks on GPUs of `gpus`: one table per dtype, as `stored_operators` gives operators."""
    models = network_blocks(measurements.load(connection, kind="model"))
    return runs_of(chain(operators.load(connection, ops=(NETWORK.name,)), models), gpus)


def network_blocks(rows: Sequence[MeasurementRow]) -> Iterator[tuple[OperatorBlock, Bytes]]:
    """Measured models that are ConvNets, a block per dtype, with the identities of their rows."""
    by_dtype: dict[str, list[tuple[MeasurementRow, NetworkTime]]] = {}
    for row in rows:
        for one in network_times(row):
            by_dtype.setdefault(row.workload.get("dtype", "fp32"), []).append((row, one))
    for dtype, found in by_dtype.items():
        contexts = [
            Context(NETWORK.name, dtype, _FIELDS, row.gpu_id, row.software, row.source, None) for row, _ in found
        ]
        distinct = tuple(dict.fromkeys(contexts))
        absent = np.full(len(found), np.nan)
        block = OperatorBlock(
            distinct,
            np.array([distinct.index(one) for one in contexts], dtype=np.intp),
            np.array([[one.row[name] for _, one in found] for name in _FIELDS]),
            np.array([one.latency_s for _, one in found]),
            *(absent,) * 4,
            np.full(len(found), NO_TIME),
            *(np.full((3, len(found)), np.nan),) * 2,
        )
        yield block, identities(block)


def network_times(measured: MeasurementRow) -> Iterator[NetworkTime]:
    """Passes of a measured model; none of what is no ConvNet, is not known, or is not plain data parallelism."""
    asked = msgspec.convert(measured.workload, MeasuredModel).asked()
    try:
        if asked is None:
            return
        network, run = asked_network(asked, None)
        found = network_figures(forward_of(network, run), run)
    except BadInput:
        return
    times = {STEP if run.mode == "training" else FORWARD: measured.latency_s}
    if run.mode == "training":
        phases = measured.phases_s or {}
        exchanged = phases.get("communication", 0.0)
        times |= {BACKWARD: phases["backward"]} if "backward" in phases else {}
        times |= {UPDATE: phases["update"] + exchanged} if "update" in phases else {}
    for what, seconds in times.items():
        if seconds > 0:
            yield NetworkTime(network_row(found, run, what), seconds)
