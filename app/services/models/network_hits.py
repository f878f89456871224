"""Exact hits of whole networks: the measured time of the same network, run the same way, on the same GPU."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median

import msgspec
import numpy as np
from msgspec.structs import replace as replace_field

from app.engine.exact_hits import MeasuredModels
from app.errors import BadInput
from app.networks.run import Run
from app.predictors.roofline import hardware_limit
from app.services.models.resolve_networks import is_network_name, resolve_network
from app.stacks.release import is_eager, plain_release
from app.steps.networks import Network, prepare
from app.steps.schedule import schedule
from app.store.measurements import MeasurementRow, training_set_hash
from app.tables.gpus import GpuTable
from app.wire.measurement_form import MeasuredModel
from app.wire.network_form import ModelWorkload


def network_key(network: Network, run: Run, *, launched: bool) -> Hashable:
    """Return the identity of a network and its run; equal keys take the same time, on whatever host."""
    release = replace(run.release, eager_host_s=plain_release().eager_host_s)
    return network.key, replace(run, release=release), launched


def measured_models(rows: Sequence[MeasurementRow], last: MeasuredModels | None) -> MeasuredModels:
    """Return the index of stored rows of kind `model`; `last` if the rows are the same."""
    fingerprint = training_set_hash(rows)
    if last is not None and last.fingerprint == fingerprint:
        return last
    seconds: dict[Hashable, dict[str, list[float]]] = {}
    for row in rows:
        for key in _keys(msgspec.convert(row.workload, MeasuredModel), row.software):
            seconds.setdefault(key, {}).setdefault(row.gpu_id, []).append(row.latency_s)
    times = {key: {gpu: median(each) for gpu, each in by_gpu.items()} for key, by_gpu in seconds.items()}
    return MeasuredModels(times, fingerprint)


def to_workload(measured: MeasuredModel) -> ModelWorkload | None:
    """Return the workload whose prediction would be this time; None for unknown names."""
    if measured.name is not None and not is_network_name(measured.name):
        return None
    fields = {name: getattr(measured, name) for name in ModelWorkload.__struct_fields__}
    return ModelWorkload(**fields | {"fused": measured.fused or measured.compiled})


def _keys(measured: MeasuredModel, software: str) -> set[Hashable]:
    """Return the keys of requests that it answers, with its software and with none; none for what cannot be asked."""
    workload, keys = to_workload(measured), set[Hashable]()
    if workload is None:
        return keys
    for named in (workload, replace_field(workload, software=workload.software or software)):
        with suppress(BadInput):
            network, run = resolve_network(named, None)
            keys.add(network_key(network, run, launched=is_eager(software)))
    return keys


def model_limit_s(measured: MeasuredModel, gpus: GpuTable, gpu: int) -> float | None:
    """Return the hardware limit of the network on a GPU, seconds; None if the network is unknown.

    Raises BadInput for an impossible configuration or run.
    """
    workload = to_workload(measured)
    if workload is None:
        return None
    network, run = resolve_network(workload, None)
    ready = prepare(network, run)
    u = len(ready.distinct.table)
    limit = hardware_limit(ready.distinct.table, gpus, np.arange(u), np.full(u, gpu)).latency_s
    return float(schedule(ready.workload, limit[ready.distinct.row][:, None], 0.0, run).step_s[0])
