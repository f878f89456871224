"""Stored measurements that lie on the curves of a page: facts beside the forecast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec import structs

from app.errors import BadInput
from app.services.compare.served_compare import Curves
from app.services.serving.deployment import resolve_deployment
from app.store.measurements import MeasurementRow, page
from app.store.session import Database
from app.store.uploads import Page
from app.wire.measurement_form import MeasuredModel
from app.wire.network_form import ModelWorkload
from app.wire.serving_form import ServingWorkload

# Most stored rows of a model on a GPU that are looked at.
_MOST_ROWS = 200


class MeasuredPoint(NamedTuple):
    """A measured point of a line `group`: what is varied along it (batch, requests in flight), and its place."""

    group: str
    at: float
    x: float
    y: float
    source: str


def measured_steps(
    database: Database, workload: ModelWorkload, names: Mapping[str, str], per_item: float
) -> list[MeasuredPoint]:
    """Return measured steps of the network at any batch: milliseconds, and items per second.

    names     of the GPUs' lines, by id
    per_item  items (tokens, images) of a sample
    """
    settings, points = structs.asdict(structs.replace(workload, batch=1)), []
    for row in _rows(database, names, "model", workload.name):
        step = msgspec.convert(row.workload, MeasuredModel)
        if structs.asdict(structs.replace(step, batch=1)) == settings:
            batch, ms = float(step.batch), 1e3 * row.latency_s
            points.append(MeasuredPoint(names[row.gpu_id], batch, ms, batch * per_item / row.latency_s, row.source))
    return sorted(points)


def measured_loads(
    database: Database, workload: ServingWorkload, curves: Sequence[Curves], names: Mapping[str, str]
) -> list[MeasuredPoint]:
    """Return measured loads of the served model, of the same lengths and split: tokens/s of a user, and of a GPU."""
    splits, points = {one.gpu: one for one in curves}, []
    planned = resolve_deployment(workload)
    for row in _rows(database, names, "serving", workload.name):
        with suppress(BadInput):
            measured = resolve_deployment(msgspec.convert(row.workload, ServingWorkload))
            load, curve, phases = measured.workload.load.concurrency, splits[row.gpu_id], row.phases_s or {}
            same = [
                (one.run.dtype, one.workload.input_tokens, one.workload.output_tokens, one.run.release.host)
                for one in (measured, planned)
            ]
            split = curve.parallelism
            same_split = (split.tensor, curve.devices) == (measured.run.parallelism.tensor, measured.devices)
            if load is None or same[0] != same[1] or not same_split or not phases.get("tpot"):
                continue
            rate = load * float(measured.workload.output_tokens or 0) / row.latency_s / curve.devices
            points.append(MeasuredPoint(names[row.gpu_id], float(load), 1.0 / phases["tpot"], rate, row.source))
    return sorted(points)


def _rows(database: Database, gpus: Mapping[str, str], kind: str, name: str | None) -> Iterator[MeasurementRow]:
    if name is None:  # of a pasted configuration nothing is stored by name
        return
    with database.begin() as connection:
        for gpu in gpus:
            yield from page(connection, Page(gpu=gpu, kind=kind, name=name, limit=_MOST_ROWS))
