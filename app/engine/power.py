"""Power draw of a device, and so the energy of a workload: E = P x t (PM2Lat, equation 3).

The power is that of the physical model (app.predictors.physics.power_model): a share of the board power from the FLOPs,
bytes and seconds of the workload's operators. A GPU with enough measured rows of its own draws by a factor more or less
than that, with the spread of its rows. Other GPUs have the interval of the error model, because one card's spread does
not carry over to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec
import numpy as np
from sqlalchemy import Connection

from app.bands.band import Band
from app.bands.conformal import residual_ends
from app.bands.error_model import Levels, error_models
from app.coefficients import Coefficients
from app.engine.measurement_tables import operator_table
from app.predictors.physics.power_model import SHARES, activity, row_shares, step_share
from app.store import measurements, operator_rows, operators, revision
from app.store.measurements import MeasurementRow
from app.tables.architectures import generation_of
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuSpec, GpuTable
from app.tables.ops import OpTable
from app.wire.kernel_tables import kernel_table
from app.wire.kernel_workload import KernelWorkload

GIVEN, MEASURED, BOARD = "request", "measured", "board power"
ESTIMATED = "estimated from the load"
NOTES = {
    ESTIMATED: (
        f"{ESTIMATED!r} follows from the FLOPs, bytes and seconds of the load and the board power, "
        "and its interval says how far that may be off"
    ),
    BOARD: (
        f"{BOARD!r} assumes the board power, an upper bound; its interval begins "
        f"at {SHARES.idle:.0%} of it, the draw of an idle card"
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
    return None if most is None else Power(most, SHARES.idle * most, most, BOARD)


# Fewer rows give no factor of a GPU's own; more than MOST_ROWS of one operator and GPU add no information.
LEAST_ROWS, MOST_ROWS = 16, 500
# Launches of a row that took less together have their pauses in the measured power, seconds.
LEAST_S = Coefficients("physics").number("powered_s")


class Load(NamedTuple):
    """Work of a device in one step: operators, how often each runs, float64 [n], and whether the host launches all."""

    ops: OpTable
    runs: Floats
    eager: bool = False


@dataclass(frozen=True, slots=True)
class PowerModel:
    """The physical model, and of GPUs with measured rows what it misses: their ln(measured / modelled), ascending.

    `revision`: of the database whose rows these are; None if there are none. `cap_w`: the power at which boards are
    capped, watts; None: they are not.
    """

    own: Mapping[str, Floats] = field(default_factory=dict)
    revision: int | None = None
    cap_w: float | None = None

    def power(
        self, spec: GpuSpec, load: Load, seconds: float, coverage: float, at: tuple[GpuTable, int] | None = None
    ) -> Power | None:
        """Return the power of a device that takes `seconds` for `load`; None if the board power is unknown.

        at  a table with the GPU, and its row; None: one of its own, whose rates take tens of milliseconds
        """
        board = self.board(spec)
        if board is None or seconds <= 0:
            return board
        gpus, row = at or (GpuTable.from_specs([spec]), 0)
        limit = board.middle / (spec.board_power_w or board.middle)
        rows = np.arange(len(load.ops))
        done = activity(load.ops, gpus, rows, np.full_like(rows, row))
        share = step_share(done, load.runs, seconds, load.eager, limit)
        if np.isnan(share):
            return board
        watts, residuals = share * board.middle / limit, self.own.get(spec.id)
        if residuals is not None:
            watts = min(watts * float(np.exp(np.median(residuals))), board.middle)
            low, high = residual_ends(watts, residuals - np.median(residuals), coverage)
            return Power(watts, low, min(high, board.high), MEASURED)
        levels = Levels(generation=generation_of(spec.architecture_key), gpu=spec.id)
        band = error_models()["power"].uncertainty(levels).band(Band.symmetric(0.0))
        low, high = band.ends(watts, coverage)
        return Power(watts, max(float(low), min(board.low, watts)), min(float(high), board.high), ESTIMATED)

    def board(self, spec: GpuSpec) -> Power | None:
        """Return `board_power` of a board, which may be capped."""
        power = board_power(spec)
        if power is None or self.cap_w is None:
            return power
        middle, low, high = (min(watts, self.cap_w) for watts in power[:3])
        return Power(middle, low, high, power.source)


class PoweredRows(NamedTuple):
    """Measured rows: GPU rows [n], modelled shares of the board power [n], watts [n]."""

    gpu: Ints
    share: Floats
    watts: Floats


def measured_power(connection: Connection, gpus: GpuTable, last: PowerModel) -> PowerModel:
    """Return the model of all stored operator and kernel rows with measured power; fitted anew if `last` lacks some."""
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
    missed = np.log(rows.watts / (rows.share * gpus.column("board_power_w")[rows.gpu]))
    known = np.isfinite(missed)
    counts = Counter(rows.gpu[known].tolist())
    own = {
        gpus.ids[gpu]: np.sort(missed[known & (rows.gpu == gpu)])
        for gpu, count in counts.items()
        if count >= LEAST_ROWS
    }
    return PowerModel(own, at)


def is_steady(ops: OpTable, latency_s: Floats, runs: Floats) -> Bools:
    """Return where measured power is that of the work: not of a cool card's bursts, nor mostly of pauses, bool [n]."""
    launches = np.nan_to_num(runs, nan=np.inf)
    cool = ops.column("burst") if "burst" in ops.fields else np.zeros(len(ops))
    steady: Bools = (cool == 0.0) & (launches * latency_s >= LEAST_S)
    return steady


def powered_rows(table: OpTable, gpus: GpuTable, gpu: Ints, latency_s: Floats, watts: Floats) -> PoweredRows:
    """Return measured rows from operators `table`, and the GPU row, seconds and watts of each, [n]."""
    return PoweredRows(gpu, row_shares(activity(table, gpus, np.arange(len(table)), gpu), latency_s), watts)


def _operator_rows(connection: Connection, gpus: GpuTable) -> Iterable[PoweredRows]:
    row_of = {gpu_id: j for j, gpu_id in enumerate(gpus.ids)}
    used = Counter[Hashable]()
    for block, _ in operator_rows.load(connection, powered=True):
        gpu = np.array([row_of.get(item.gpu_id, -1) for item in block.contexts])[block.context]
        table, first = operator_table(block), block.contexts[0]
        steady = is_steady(table, block.latency_s, block.runs)
        kept = list[Ints]()
        for row in np.unique(gpu[gpu >= 0]).tolist():
            cell = first.op, first.dtype, first.fields, row
            kept.append(np.flatnonzero((gpu == row) & steady)[: MOST_ROWS - used[cell]])
            used[cell] += len(kept[-1])
        if sum(map(len, kept)):
            rows = np.concatenate(kept)
            yield powered_rows(table.take(rows), gpus, gpu[rows], block.latency_s[rows], block.power_w[rows])


def _kernel_rows(rows: Sequence[MeasurementRow], gpus: GpuTable) -> PoweredRows:
    table = kernel_table(msgspec.convert([row.workload for row in rows], list[KernelWorkload]))
    gpu = np.array([gpus.ids.index(row.gpu_id) for row in rows], dtype=np.intp)
    columns = zip(*((row.latency_s, row.power_w) for row in rows), strict=True)
    latency_s, watts = (np.array(column, dtype=np.float64) for column in columns)
    return powered_rows(table, gpus, gpu, latency_s, watts)
