"""Compare new measurements with what is predicted for them: their drift, and rows that are far off, set aside.

Those wait until an admin confirms them: a wrong unit, a busy machine or bad faith would otherwise teach nonsense.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
import numpy as np
from sqlalchemy import Connection

from app.bands.coverage import COVERAGE
from app.engine.engine import Engine
from app.engine.evidence import kernel_evidence
from app.engine.measurement_tables import to_measurements
from app.engine.snapshot import Snapshot
from app.errors import BadInput, FieldError, GpucastError
from app.ops import OP_CODE
from app.runtime.cancellation import check_cancelled
from app.services.measurements.check_upload import Checked
from app.services.measurements.stored import operator_row, row_form
from app.services.models.predict_networks import predict_network, to_workload
from app.services.serving.predict_serving import predict_serving
from app.store import measurements, operators
from app.store.doubtful import DoubtfulRow
from app.store.measurements import MeasurementRow
from app.store.operator_blocks import ID_BYTES, NO_TIME, OperatorBlock, identities
from app.tables.arrays import Bools, Bytes, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements, stacked
from app.tables.predictions import Predictions
from app.wire.kernel_tables import NO_MEASUREMENTS
from app.wire.measurement_form import Drift, MeasuredModel
from app.wire.network_form import ModelRequest
from app.wire.serving_form import ServingRequest, ServingWorkload

MOST_OPERATORS = 1_000_000  # of one network
# They are stored one by one; more than these have a cause in common.
MOST_DOUBTFUL = 10_000


@dataclass(frozen=True, slots=True)
class Doubts:
    """Rows of an upload that are far from what is expected.

    rows       row of `Checked.rows` (kernels and models) -> expected seconds
    operators  for each block: its rows, int [m], and their expected seconds, float64 [m]
    """

    rows: Mapping[int, float]
    operators: tuple[tuple[Ints, Floats], ...]

    def __len__(self) -> int:
        return len(self.rows) + sum(len(rows) for rows, _ in self.operators)


def compare_with_predictions(engine: Engine, checked: Checked, factor: float) -> tuple[Doubts, DriftSample]:
    """Return the rows whose time is more than `factor` times longer or shorter than `auto` expects, and a sample.

    No row is doubtful if the factor is 0. Raises BadInput if more are than `MOST_DOUBTFUL`.
    """
    far, kernels, samples = dict[int, float](), tuple[str, ...](), list[tuple[Floats, Bools]]()
    if checked.measured is not None:
        expected = _expected(engine, checked.measured, checked.gpus)
        far_rows, expected_s = _far(expected, checked.gpus, factor)
        far = dict(zip(far_rows.tolist(), expected_s.tolist(), strict=True))
        rows, error, inside = _compared(expected, sample_rows(len(checked.measured)))
        kernels = tuple(measurements.identity(checked.rows[k]) for k in rows)
        samples.append((error, inside))
    far |= _far_models(engine, checked.rows, factor)
    distant, ids = list[tuple[Ints, Floats]](), [np.empty((0, ID_BYTES), np.uint8)]
    blocks = () if checked.operators is None else checked.operators.blocks
    chosen, first = sample_rows(sum(map(len, blocks))), 0
    for block in blocks:
        check_cancelled()
        expected = _expected(engine, to_measurements(block, checked.gpus), checked.gpus)
        distant.append(_far(expected, checked.gpus, factor))
        rows, error, inside = _compared(expected, chosen[(chosen >= first) & (chosen < first + len(block))] - first)
        ids.append(identities(block.take(rows)))
        samples.append((error, inside))
        first += len(block)
    doubts = Doubts(far, tuple(distant))
    _refuse_many(doubts, checked, factor)
    nothing = np.empty(0), np.empty(0, dtype=np.bool_)
    error, inside = (np.concatenate(column) for column in zip(nothing, *samples, strict=True))
    return doubts, DriftSample(kernels, np.concatenate(ids), error, inside)


def _refuse_many(doubts: Doubts, checked: Checked, factor: float) -> None:
    if len(doubts) > MOST_DOUBTFUL:
        raise BadInput(
            f"{len(doubts):,} of {len(checked):,} times are more than {factor:g} times off what is expected, so none is"
            f" stored: check their unit. At most {MOST_DOUBTFUL:,} are taken as doubtful."
        )


def _far(expected: ExpectedTimes, gpus: GpuTable, factor: float) -> tuple[Ints, Floats]:
    measured, known, answer = expected
    if answer is None or not factor:
        return known[:0], np.empty(0)
    on_cpu = gpus.column("warp_size")[measured.gpu[known]] == 1
    far = _is_far(measured.latency_s[known] / answer.latency_s, on_cpu, factor)
    return known[far], answer.latency_s[far]


def _is_far(ratio: Floats, on_cpu: Bools, factor: float) -> Bools:
    """Return whether times are far off, bool [n]; `ratio` is measured over expected time.

    Where a CPU lacks vector code for a number format, correct times are up to 200 times those that a model of GPUs
    expects, so there the factor counts twice. A time in a wrong unit is still found.
    """
    slowest = np.where(on_cpu, factor**2, factor)
    far: Bools = (ratio > slowest) | (ratio < 1 / factor)
    return far


def _far_models(engine: Engine, rows: Sequence[MeasurementRow], factor: float) -> dict[int, float]:
    """Return the models and served loads that are far from what is expected: row -> expected seconds."""
    kinds = {"model": _expected_model_s, "serving": _expected_served_s}
    pairs = [(k, kinds[row.kind]) for k, row in enumerate(rows) if row.kind in kinds] if factor else []
    if not pairs:
        return {}
    snapshot = Snapshot.of(engine)
    cpus = {spec.id for spec in engine.catalog.specs if spec.kind == "cpu"}
    far: dict[int, float] = {}
    for k, expected in pairs:
        try:
            times = expected(snapshot, rows[k])
        except GpucastError:  # a network, load or GPU that cannot be predicted
            continue
        ratio = np.array([measured_s / expected_s for measured_s, expected_s in times])
        if _is_far(ratio, np.array(rows[k].gpu_id in cpus), factor).any():
            far[k] = times[0][1]
    return far


def _expected_model_s(snapshot: Snapshot, row: MeasurementRow) -> list[tuple[float, float]]:
    """Return the measured and the predicted seconds of a network; none where it cannot be predicted."""
    workload = to_workload(msgspec.convert(row.workload, MeasuredModel))
    if workload is None:
        return []
    request = ModelRequest(gpu=row.gpu_id, workload=workload)
    answer = predict_network(snapshot, request, max_rows=MOST_OPERATORS, advise=False)
    return [(row.latency_s, prediction.latency_ms / 1e3) for prediction in answer.predictions[:1]]


def _expected_served_s(snapshot: Snapshot, row: MeasurementRow) -> list[tuple[float, float]]:
    """Return the measured and the predicted seconds of a load: of a request, and of an output token.

    Of a load that is predicted to saturate only those of a token, as its queues have no expected length.
    """
    workload = msgspec.convert(row.workload, ServingWorkload)
    workload = msgspec.structs.replace(workload, software=row.software or workload.software, method="closed_form")
    answer = predict_serving(snapshot, ServingRequest(gpu=row.gpu_id, workload=workload), max_rows=MOST_OPERATORS)
    if not answer.predictions or not row.phases_s:
        return []
    served = answer.predictions[0].serving
    token_ms = served.step_ms.decode if served.tpot_ms is None else served.tpot_ms.mean
    request_s = [] if served.e2e_ms is None else [(row.latency_s, served.e2e_ms.mean / 1e3)]
    return [*request_s, *([] if token_ms is None else [(row.phases_s["tpot"], token_ms / 1e3)])]


def set_aside(
    connection: Connection, checked: Checked, doubts: Doubts
) -> tuple[Checked, list[DoubtfulRow], list[FieldError]]:
    """Return the upload without its doubtful rows, these without an upload, and a message for each.

    Rows that are stored already are not in doubt.
    """
    if not doubts:
        return checked, [], []
    ids = {k: measurements.identity(checked.rows[k]) for k in doubts.rows}
    known = measurements.known(connection, list(ids.values()))
    aside = {k: expected_s for k, expected_s in doubts.rows.items() if ids[k] not in known}
    rows = [_doubtful(checked.rows[k], ids[k], expected_s) for k, expected_s in aside.items()]
    notes = [_note(checked.position[k], checked.rows[k].latency_s, expected_s) for k, expected_s in aside.items()]
    if checked.operators is None:
        return _without(checked, aside), rows, notes
    blocks, positions = [], []
    parts = zip(checked.operators.blocks, checked.operators.position, doubts.operators, strict=True)
    for block, position, (suspect, suspect_s) in parts:
        if not len(suspect):
            blocks.append(block)
            positions.append(position)
            continue
        new = ~operators.known(connection, identities(block.take(suspect)))
        far, expected_s = suspect[new], suspect_s[new]
        ids_far = [row.tobytes().hex() for row in identities(block.take(far))]
        rows += map(_doubtful, (_operator_row(block, k) for k in far.tolist()), ids_far, expected_s.tolist())
        times = block.latency_s[far].tolist()
        notes += map(_note, position[far].tolist(), times, expected_s.tolist())
        kept = np.setdiff1d(np.arange(len(block)), far)
        if len(kept):
            blocks.append(block.take(kept))
            positions.append(position[kept])
    left = replace(checked.operators, blocks=tuple(blocks), position=tuple(positions))
    return replace(_without(checked, aside), operators=left), rows, notes


def _without(checked: Checked, aside: Mapping[int, float]) -> Checked:
    """Return the upload without these kernels and models."""
    if not aside:
        return checked
    n = 0 if checked.measured is None else len(checked.measured)
    kernels = np.array([k for k in range(n) if k not in aside], dtype=np.intp)
    kept = [k for k in range(len(checked.rows)) if k not in aside]
    return replace(
        checked,
        measured=None if checked.measured is None else checked.measured.take(kernels),
        rows=tuple(checked.rows[k] for k in kept),
        position=tuple(checked.position[k] for k in kept),
    )


def _note(position: int, latency_s: float, expected_s: float) -> FieldError:
    ratio = latency_s / expected_s
    off = f"{ratio:.3g} times" if ratio > 1 else f"1/{1 / ratio:.3g} of"
    msg = f"{latency_s * 1e3:.6g} ms is {off} the expected {expected_s * 1e3:.6g} ms: doubtful until it is confirmed"
    return FieldError((int(position), "latency_ms"), msg)


def _doubtful(row: MeasurementRow, row_id: str, expected_s: float) -> DoubtfulRow:
    when = {} if row.measured_at is None else {"measured_at": row.measured_at.isoformat()}
    return DoubtfulRow(
        id=row_id,
        kind=row.kind,
        gpu_id=row.gpu_id,
        name=row.name,
        software=row.software,
        source=row.source,
        body=row_form(row, _exact_ms) | when,
        expected_s=float(expected_s),
        upload_id=0,
    )


def _operator_row(block: OperatorBlock, k: int) -> MeasurementRow:
    at, runs = block.measured_at[k], _known(block.runs[k])
    return operator_row(
        block.contexts[block.context[k]],
        block.dims[:, k].tolist(),
        (_extents(block.grid[:, k]), _extents(block.block[:, k])),
        latency_s=float(block.latency_s[k]),
        latency_std_s=_known(block.latency_std_s[k]),
        runs=None if runs is None else int(runs),
        clock_hz=_known(block.clock_hz[k]),
        power_w=_known(block.power_w[k]),
        measured_at=None if at == NO_TIME else datetime.fromtimestamp(at / 1e6, UTC),
    )


def _exact_ms(seconds: float) -> float:
    """Return the shortest milliseconds that are exactly these seconds again: they are part of a row's identity."""
    written = [float(f"{seconds * 1e3:.{digits}g}") for digits in (14, 15, 16, 17)]
    closest = [float(np.nextafter(seconds * 1e3, end)) for end in (0.0, np.inf)]
    return next((ms for ms in (*written, *closest) if ms / 1e3 == seconds), written[-1])


def _known(figure: float) -> float | None:
    return None if np.isnan(figure) else float(figure)


def _extents(extents: Floats) -> list[int] | None:
    return None if np.isnan(extents[0]) else [int(extent) for extent in extents]


PREDICTOR = "auto"
# Enough rows for a median within a few percent, in a fraction of a second.
MOST_ROWS = 200


def sample_rows(n: int) -> Ints:
    """Return at most MOST_ROWS of n row indices, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, MOST_ROWS)).round().astype(np.intp))


class ExpectedTimes(NamedTuple):
    """Rows of a table whose GPUs the engine knows, int [k], and what would have been predicted for them.

    The table holds kernels, or one operator. The answer is None if the engine knows none of the GPUs.
    """

    measured: Measurements
    known: Ints
    answer: Predictions | None


class DriftSample(NamedTuple):
    """At most MOST_ROWS kernels and as many operators of an upload, compared with what would have been predicted.

    kernels, operators  identities of the rows, kernels before operators in what follows
    error               float64 [n], absolute error of the prediction over the measured time
    inside              bool [n], whether the time was within the interval
    """

    kernels: tuple[str, ...]
    operators: Bytes
    error: Floats
    inside: Bools

    def ids(self) -> list[str]:
        """Return the identities of all rows, hexadecimal."""
        return [*self.kernels, *(row.tobytes().hex() for row in self.operators)]

    def drift(self, new: Bools) -> Drift | None:
        """Return the drift of the rows of a mask; None without any."""
        if not new.any():
            return None
        return Drift(int(new.sum()), float(100 * np.median(self.error[new])), float(100 * self.inside[new].mean()))


def _compared(expected: ExpectedTimes, chosen: Ints) -> tuple[Ints, Floats, Bools]:
    """Return the chosen rows whose GPUs are known, their relative errors, and whether the times were inside."""
    measured, known, answer = expected
    if answer is None:
        return known[:0], np.empty(0), np.empty(0, dtype=np.bool_)
    at = np.flatnonzero(np.isin(known, chosen))
    latency_s = measured.latency_s[known[at]]
    inside = (answer.low_s[at] <= latency_s) & (latency_s <= answer.high_s[at])
    return known[at], np.abs(answer.latency_s[at] / latency_s - 1), inside


def _expected(engine: Engine, measured: Measurements, gpus: GpuTable) -> ExpectedTimes:
    """Return what would have been predicted; `measured.gpu` are rows of `gpus`."""
    position = {gpu_id: j for j, gpu_id in enumerate(engine.gpus.ids)}
    target = np.array([position.get(gpus.ids[k], -1) for k in measured.gpu], dtype=np.intp)
    known = np.flatnonzero(target >= 0)
    if not len(known):
        return ExpectedTimes(measured, known, None)
    rows, target = measured.take(known), target[known]
    answer = engine.predict(
        rows.ops,
        engine.gpus,
        np.arange(len(known)),
        target,
        predictor=PREDICTOR,
        coverage=COVERAGE,
        evidence=_evidence(engine, rows, target),
    )
    return ExpectedTimes(measured, known, answer)


def _evidence(engine: Engine, measured: Measurements, target: Ints) -> Evidence:
    """Return the stored rows of each row's kernel, as a prediction would use them; nothing for operators."""
    if measured.ops.kind[0] != OP_CODE["kernel"]:
        return Evidence(NO_MEASUREMENTS, np.empty(0, dtype=np.intp))
    nothing = measured.take(np.empty(0, dtype=np.intp))
    parts = [
        kernel_evidence(engine.kernels, measured.ops.take(np.array([k])), target[k : k + 1], nothing)
        for k in range(len(measured))
    ]
    return Evidence(
        stacked([part.rows for part in parts]),
        np.concatenate([np.full(len(part), k, dtype=np.intp) for k, part in enumerate(parts)]),
    )
