"""Power draw of a device, and so the energy of a workload: E = P x t (PM2Lat, equation 3).

The power model is fitted to measured power: P = c0 + c1 u_compute + c2 u_memory, from the utilisation of a device's
units. u_compute is the fraction of the time that a workload's FLOPs take at the peaks of their number formats, u_memory
that of its bytes at the memory bandwidth. Coefficients are non-negative and minimise relative errors. A GPU with enough
rows of its own gets a fit in watts with the spread of its residuals. Other GPUs get the mean of the fits as a share of
the board power, with an interval of their own, because one card's spread does not carry over to another. Where no power
was measured at all, the shares are UNMEASURED.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np
from sqlalchemy import Connection

from app.bands.band import Band
from app.bands.conformal import residual_ends
from app.bands.error_model import Levels, error_models
from app.coefficients import Coefficients
from app.engine.measurement_tables import operator_table
from app.ops import kinds_of, work_of
from app.predictors.physics.clock_model import IDLE_SHARE
from app.predictors.roofline import formats_run, peaks
from app.store import measurements, operator_rows, operators, revision
from app.store.measurements import MeasurementRow
from app.tables.architectures import generation_of
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuSpec, GpuTable
from app.tables.ops import DTYPES, OpTable
from app.wire.kernel_tables import kernel_table
from app.wire.kernel_workload import KernelWorkload

GIVEN, MEASURED, ELSEWHERE, BOARD = "request", "measured", "measured on other GPUs", "board power"
ESTIMATED = "estimated from the load"
NOTES = {
    ESTIMATED: (
        f"{ESTIMATED!r} assumes a share of the board power by how busy compute units and "
        "memory are, and its interval says how far that may be off"
    ),
    BOARD: (
        f"{BOARD!r} assumes the board power, an upper bound; its interval begins "
        f"at {IDLE_SHARE:.0%} of it, the draw of an idle card"
    ),
    ELSEWHERE: (
        f"{ELSEWHERE!r} assumes the share of the board power that other GPUs draw when as "
        "busy, and its interval says how far that may be off"
    ),
}


class Power(NamedTuple):
    """Watts of one device: the estimate, the ends of its interval, and the source."""

    middle: float
    low: float
    high: float
    source: str


def power_notes(sources: Iterable[str | None], subject: str = "energy_j with power_source") -> list[str]:
    """Return the notes about these power sources, each once; `subject` names what was computed from the power."""
    known = set(sources)
    return [f"{subject} {note}" for source, note in NOTES.items() if source in known]


def stated_power(watts: float) -> Power:
    """Return the power that a request states, taken as exact."""
    return Power(watts, watts, watts, GIVEN)


def board_power(spec: GpuSpec) -> Power | None:
    """Return the range between an idle card and a card at its power limit; None if the board power is unknown."""
    most = spec.board_power_w
    return None if most is None else Power(most, IDLE_SHARE * most, most, BOARD)


_FITTED = Coefficients("physics")

# Fewer rows give no fit of a GPU's own; more than MOST_ROWS of one operator and GPU add no information.
LEAST_ROWS, MOST_ROWS = 16, 500


# Shares of the board power where no power was measured: what a busy card draws beside its products (as in the clock
# model), what compute units add at their peak, and memory at its bandwidth, in all at most the board power.
UNMEASURED = np.array(_FITTED.numbers("unmeasured_power"))


class Load(NamedTuple):
    """Work of a device in one step: FLOPs per dtype, float64 [dtypes], and bytes."""

    flops: Floats
    bytes: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients [3] of (1, u_compute, u_memory), and the rows' ln(measured / fitted), ascending."""

    coefficients: Floats
    residuals: Floats


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Fits in watts by GPU id, and their mean as a share of the board power.

    `revision`: of the database whose rows it was fitted to; None if it was fitted to none. `cap_w`: the power at which
    boards are capped, watts; None: they are not.
    """

    own: Mapping[str, Fit] = field(default_factory=dict)
    pooled: Floats | None = None
    revision: int | None = None
    cap_w: float | None = None

    def power(self, spec: GpuSpec, load: Load, seconds: float, coverage: float) -> Power | None:
        """Return the power of a device that takes `seconds` for `load`; None if not even the board power is known."""
        return self._capped(spec, self._uncapped(spec, load, seconds, coverage))

    def board(self, spec: GpuSpec) -> Power | None:
        """Return `board_power` of a board, which may be capped."""
        return self._capped(spec, board_power(spec))

    def _capped(self, spec: GpuSpec, power: Power | None) -> Power | None:
        if power is None or self.cap_w is None or self.cap_w >= (spec.board_power_w or 0.0):
            return power
        middle, low, high = (min(watts, self.cap_w) for watts in power[:3])
        return Power(middle, low, high, power.source)

    def _uncapped(self, spec: GpuSpec, load: Load, seconds: float, coverage: float) -> Power | None:
        fit, board = self.own.get(spec.id), board_power(spec)
        coefficients = self.pooled if fit is None else fit.coefficients
        busy = _busy(load, spec, seconds)
        if busy is None:
            return board
        if fit is not None:
            watts = float(busy @ fit.coefficients)
            return Power(watts, *residual_ends(watts, fit.residuals, coverage), MEASURED)
        if board is None:
            return None
        source = ESTIMATED if coefficients is None else ELSEWHERE
        share = float(np.clip(busy @ (UNMEASURED if coefficients is None else coefficients), IDLE_SHARE, 1.0))
        watts = share * board.middle
        levels = Levels(generation=generation_of(spec.architecture_key), gpu=spec.id)
        band = error_models()["power"].uncertainty(levels).band(Band.symmetric(0.0))
        low, high = band.ends(watts, coverage)
        return Power(watts, max(float(low), board.low), min(float(high), board.high), source)


class PoweredRows(NamedTuple):
    """Measured rows: GPU rows [n], (1, u_compute, u_memory) [n, 3], watts [n]."""

    gpu: Ints
    busy: Floats
    watts: Floats


def measured_power(connection: Connection, gpus: GpuTable, last: PowerModel) -> PowerModel:
    """Return the model of all stored operator and kernel rows with measured power; refitted if `last` lacks some."""
    now, changed = revision.changed(connection, last.revision)
    if not _has_others(connection, last, changed):
        return replace(last, revision=now)
    powered = [row for row in measurements.load(connection, kind="kernel") if row.power_w and row.gpu_id in gpus.ids]
    parts = [*_operator_rows(connection, gpus), *([_kernel_rows(powered, gpus)] if powered else [])]
    return fit_power_model(parts, gpus, now)


def _has_others(connection: Connection, last: PowerModel, changed: frozenset[revision.Part]) -> bool:
    """Whether rows with power, or GPUs, may have changed since `last`."""
    if last.revision is None or changed & {"gpus", "removed", "measurements"}:
        return True
    return "added" in changed and operators.any_powered(connection, since=last.revision)


def fit_power_model(parts: Sequence[PoweredRows], gpus: GpuTable, at: int | None = None) -> PowerModel:
    """Return the model fitted to these rows, the database's as of the revision `at`."""
    if not parts:
        return PowerModel(revision=at)
    rows = PoweredRows(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    own: dict[str, Fit] = {}
    shares: list[Floats] = []
    for gpu in np.unique(rows.gpu).tolist():
        mine = (rows.gpu == gpu) & np.isfinite(rows.busy).all(axis=1)
        if mine.sum() < LEAST_ROWS:
            continue
        fit = own[gpus.ids[gpu]] = _fit(rows.busy[mine], rows.watts[mine])
        board = float(gpus.column("board_power_w")[gpu])
        if np.isfinite(board):
            shares.append(fit.coefficients / board)
    return PowerModel(own, np.mean(shares, axis=0) if shares else None, at)


def powered_rows(table: OpTable, gpus: GpuTable, gpu: Ints, latency_s: Floats, watts: Floats) -> PoweredRows:
    """Return measured rows from operators `table`, and the GPU row, seconds and watts of each, [n]."""
    work = work_of(table, kinds_of(table))
    compute = np.divide(work.flops, peaks(gpus)[table.dtype, gpu], out=np.zeros(len(gpu)), where=work.flops > 0)
    memory = work.bytes / gpus.column("memory_bandwidth_bytes_per_s")[gpu]
    return PoweredRows(gpu, _utilisation(compute / latency_s, memory / latency_s), watts)


def _utilisation(compute: Floats, memory: Floats) -> Floats:
    busy = np.column_stack([np.ones(len(compute)), compute, memory])
    return np.minimum(busy, 1.0)


def _busy(load: Load, spec: GpuSpec, seconds: float) -> Floats | None:
    """Return (1, u_compute, u_memory) [3]; None if the GPU has no peak for a format, or if the time is 0."""
    gpus = GpuTable.from_specs([spec])
    peak = peaks(gpus)[formats_run(gpus)[:, 0], 0]
    each = np.divide(load.flops, peak, out=np.zeros(len(DTYPES)), where=load.flops > 0)
    if seconds <= 0 or np.isnan(each).any():
        return None
    memory = load.bytes / spec.memory_bandwidth_bytes_per_s
    busy: Floats = _utilisation(np.array([each.sum() / seconds]), np.array([memory / seconds]))[0]
    return busy


def _fit(busy: Floats, watts: Floats) -> Fit:
    coefficients = _non_negative(busy / watts[:, None])
    return Fit(coefficients, np.sort(np.log(watts / (busy @ coefficients))))


def _non_negative(shares: Floats) -> Floats:
    """Return the coefficients [3] of at least zero that bring `shares` [n, 3] nearest to one by least squares.

    They are those of the columns that have some, found by trying all subsets: SciPy's optimisers would cost every start
    0.2 s and 40 MB.
    """
    best, least = np.zeros(3), np.inf
    for kept in product((False, True), repeat=3):
        coefficients = np.zeros(3)
        coefficients[list(kept)] = np.linalg.lstsq(shares[:, kept], np.ones(len(shares)))[0]
        missed = float(np.sum((shares @ coefficients - 1.0) ** 2))
        if missed < least and (coefficients >= 0.0).all():
            best, least = coefficients, missed
    return best


def _operator_rows(connection: Connection, gpus: GpuTable) -> Iterable[PoweredRows]:
    row_of = {gpu_id: j for j, gpu_id in enumerate(gpus.ids)}
    used = Counter[Hashable]()
    for block, _ in operator_rows.load(connection, powered=True):
        gpu = np.array([row_of.get(item.gpu_id, -1) for item in block.contexts])[block.context]
        kept, first = list[Ints](), block.contexts[0]
        for row in np.unique(gpu[gpu >= 0]).tolist():
            cell = first.op, first.dtype, first.fields, row
            kept.append(np.flatnonzero(gpu == row)[: MOST_ROWS - used[cell]])
            used[cell] += len(kept[-1])
        if sum(map(len, kept)):
            rows = np.concatenate(kept)
            table = operator_table(block).take(rows)
            yield powered_rows(table, gpus, gpu[rows], block.latency_s[rows], block.power_w[rows])


def _kernel_rows(rows: Sequence[MeasurementRow], gpus: GpuTable) -> PoweredRows:
    table = kernel_table(msgspec.convert([row.workload for row in rows], list[KernelWorkload]))
    gpu = np.array([gpus.ids.index(row.gpu_id) for row in rows], dtype=np.intp)
    columns = zip(*((row.latency_s, row.power_w) for row in rows), strict=True)
    latency_s, watts = (np.array(column, dtype=np.float64) for column in columns)
    return powered_rows(table, gpus, gpu, latency_s, watts)
