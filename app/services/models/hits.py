"""Exact hits of whole networks: the time measured of that very network, run so, on that very GPU."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from statistics import median

import msgspec
import numpy as np

from app.engine.measured_networks import MeasuredModels
from app.errors import BadInput
from app.graphs.run import Run
from app.graphs.schedule import schedule
from app.predictors.roofline import hardware_limit
from app.services.models.networks import Network, prepared
from app.services.models.runs import is_host_launched
from app.services.models.sources import asked_network, is_known
from app.store.measurements import MeasurementRow, training_set_hash
from app.tables.gpus import GpuTable
from app.wire.measurements.measurement_form import MeasuredModel
from app.wire.network_form import ModelWorkload


def key_of(network: Network, run: Run, *, launched: bool) -> Hashable:
    """What a network is and how it runs; networks of equal keys take equally long."""
    return network.key, run, launched


def measured_models(rows: Sequence[MeasurementRow], last: MeasuredModels | None) -> MeasuredModels:
    """Stored rows of kind `model`; `last` where they are the same."""
    fingerprint = training_set_hash(rows)
    if last is not None and last.fingerprint == fingerprint:
        return last
    found: dict[Hashable, dict[str, list[float]]] = {}
    for row in rows:
        key = _key(msgspec.convert(row.workload, MeasuredModel), row.software)
        if key is not None:
            found.setdefault(key, {}).setdefault(row.gpu_id, []).append(row.latency_s)
    times = {key: {gpu: median(each) for gpu, each in by_gpu.items()} for key, by_gpu in found.items()}
    return MeasuredModels(times, fingerprint)


def request_for(measured: MeasuredModel) -> ModelWorkload | None:
    """The workload that POST /predict answers with its time; None for an unknown name or another layout of tensors."""
    unknown = measured.name is not None and not is_known(measured.name)
    if unknown or measured.memory_format == "channels_last":
        return None
    fields = {name: getattr(measured, name) for name in ModelWorkload.__struct_fields__}
    return ModelWorkload(**fields | {"fused": measured.fused or measured.compiled})


def _key(measured: MeasuredModel, software: str) -> Hashable | None:
    """None for a network that is not known here, or that nobody can ask for."""
    asked = request_for(measured)
    if asked is None:
        return None
    try:
        network, run = asked_network(asked, None)
    except BadInput:
        return None
    return key_of(network, run, launched=is_host_launched(software, run.mode, run.dtype))


def model_limit_s(measured: MeasuredModel, gpus: GpuTable, gpu: int) -> float | None:
    """The least time that the network can take on a GPU, seconds; None where the network is not known here.

    BadInput for a configuration or a run that cannot be.
    """
    asked = request_for(measured)
    if asked is None:
        return None
    network, run = asked_network(asked, None)
    ready = prepared(network, run)
    u = len(ready.distinct.table)
    limit = hardware_limit(ready.distinct.table, gpus, np.arange(u), np.full(u, gpu)).latency_s
    return float(schedule(ready.workload, limit[ready.distinct.row][:, None], 0.0, run).step_s[0])
