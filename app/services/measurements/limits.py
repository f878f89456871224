"""Correct the limits of a GPU that repeated measurements prove too low."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from app.errors import BadInput, NotFound
from app.predictors.roofline import Limit, limiting_figures
from app.store import gpus, limits, revision
from app.store.limits import Breach, Raise
from app.store.session import Database
from app.tables.arrays import Floats, Ints
from app.tables.complete import revise
from app.tables.gpus import GpuSpec, GpuTable
from app.tables.ops import OpTable

LOG = logging.getLogger(__name__)
_PEAK = "peak_flops."
# A busy machine registers a part of its figures; measurements that are faster by more are in a wrong unit.
MOST_RAISED = 10.0


def find_breaches(
    ops: OpTable, table: GpuTable, gpu: Ints, latency_s: Floats, limit: Limit, rows: Ints
) -> tuple[Breach, ...]:
    """Return the breaches of `rows`, whose times are under the limit; `gpu[k]` is the row of `table` of row k.

    Rows so far under it that their unit must be wrong are left out.
    """
    rows = rows[limit.latency_s[rows] <= MOST_RAISED * latency_s[rows]]
    figures = limiting_figures(ops, table, rows, gpu[rows]) if len(rows) else []
    breaches = []
    for k, figure in zip(rows.tolist(), figures, strict=True):
        gpu_id, faster = table.ids[gpu[k]], float(limit.latency_s[k] / latency_s[k])
        # The limit stands for the workload: without it, equal times of two workloads would be one measurement.
        content = f"{gpu_id} {figure} {latency_s[k]!r} {limit.latency_s[k]!r}"
        digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
        breaches.append(Breach(digest, gpu_id, figure, faster * _figure(table, figure, int(gpu[k]))))
    return tuple(breaches)


def _figure(table: GpuTable, figure: str, gpu: int) -> float:
    name = f"peak_{figure.removeprefix(_PEAK)}_flops" if figure.startswith(_PEAK) else figure
    return float(table.column(name)[gpu])


def correct_limits(database: Database, breaches: Sequence[Breach], key_id: int | None) -> bool:
    """Record the breaches; raise the figures that they repeat, unless a data sheet states them. True if any was raised.

    Other processes notice through the revision.
    """
    with database.begin() as connection:
        revision.lock(connection)
        limits.record_breaches(connection, breaches, key_id)
        pairs = sorted({(one.gpu_id, one.figure) for one in breaches})
        corrected = [_corrected(connection, gpu_id, figure) for gpu_id, figure in pairs]
    return any(corrected)


def _corrected(connection: Connection, gpu_id: str, figure: str) -> bool:
    value = limits.repeated(connection, gpu_id, figure)
    if value is None:
        return False
    try:
        spec = gpus.get_spec(connection, gpu_id)
        if spec.provenance.get(figure, "datasheet") == "datasheet":
            return False
        before, provenance = _value(spec, figure), spec.provenance[figure]
        gpus.update_spec(connection, _changed(spec, figure, value, "measured"))
    except (BadInput, NotFound) as error:  # a GPU outside the catalogue, or a figure that nothing could have
        LOG.warning("%s of %s stays as it is: %s", figure, gpu_id, error.detail)
        return False
    LOG.warning("%s of %s is %.4g now: repeated measurements were beyond the limit", figure, gpu_id, value)
    limits.record_raise(connection, Raise(gpu_id, figure, value, before, provenance))
    limits.forget(connection, gpu_id, figure)
    return True


def withdraw_limits(connection: Connection, key_id: int, gpu_id: str | None = None) -> None:
    """Give figures that measurements of a key raised their earlier values, on one GPU or on all.

    What others measured raises them again. A figure that was changed otherwise since then stays.
    """
    limits.withdraw(connection, key_id, gpu_id)
    for raised in limits.take_back(connection, key_id, gpu_id):
        try:
            spec = gpus.get_spec(connection, raised.gpu_id)
            if _value(spec, raised.figure) == raised.value:
                gpus.update_spec(connection, _changed(spec, raised.figure, raised.before, raised.provenance))
        except (BadInput, NotFound) as error:  # a GPU that was removed, or whose other figures changed
            LOG.warning("%s of %s stays as it is: %s", raised.figure, raised.gpu_id, error.detail)


def _value(spec: GpuSpec, figure: str) -> float:
    value = spec.peak_flops[figure.removeprefix(_PEAK)] if figure.startswith(_PEAK) else getattr(spec, figure)
    return float(value)


def _changed(spec: GpuSpec, figure: str, value: float, provenance: str) -> GpuSpec:
    changes: dict[str, Any] = {figure: value}
    if figure.startswith(_PEAK):
        changes = {"peak_flops": {figure.removeprefix(_PEAK): value}}
    return revise(spec, {**changes, "provenance": {figure: provenance}})
