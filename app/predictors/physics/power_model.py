"""Power model: what a board draws in a step, from the FLOPs, bytes and seconds of its operators.

While an operator runs, a board draws its idle power, that of clocked multiprocessors, and the energy of each FLOP and
each byte over the operator's time, at most its limit: an operator that would draw more runs at a lower clock
(physics.clock_model), so that it draws the limit. While the host or a link has the device wait, it draws its idle
power. A FLOP's energy is a share of the board power over the peak of its number format, and a byte's one over the DRAM
bandwidth: boards are built for what their units draw.

Which part of a step its operators run is the analytic model's: eager operators run somewhat longer than it says, and
the rest of the step is the host's; elsewhere the operators take the step but for the analytic share of launches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.ops import OP_CODE, kinds_of, work_of
from app.ops.network import NETWORK
from app.predictors.physics.analytic_model import ANY_TILE, LINK_S, TERMS, TIME, WORK_S, devices_of, fill_terms
from app.predictors.physics.operator_features import operator_features, products_of
from app.predictors.priors import IS_EAGER
from app.predictors.roofline import PIPES_OF_DTYPE, formats_run, peaks
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable, once_per_table
from app.tables.ops import DTYPES, OpTable

_WHOLE = [OP_CODE["kernel"], OP_CODE[NETWORK.name]]


class Shares(NamedTuple):
    """Shares of the board power: of an idle board, of running multiprocessors, of pipes at their peak, of the memory.

    tensor, lanes  of tensor units and of FP32 and other lanes at the peak of the number format
    memory         at the DRAM bandwidth
    slower         seconds of eager operators over the analytic ones, where the host does not hold them up
    """

    idle: float
    running: float
    tensor: float
    lanes: float
    memory: float
    slower: float


SHARES = Shares(**Coefficients("physics").by_name("power_shares"))


class Activity(NamedTuple):
    """What operators do on GPUs, n queries.

    work_s   float64 [n], analytic seconds of the device; NaN for kernels and networks in one piece
    waits_s  float64 [n], analytic seconds of launches besides
    eager    bool [n], the host launches it, by its own column
    sends    bool [n], its time is a link's
    tensor   bool [n], its FLOPs run on tensor units
    peak_s   float64 [n], its FLOPs over the peak of their number format; NaN where the GPU has none
    moved_s  float64 [n], its bytes over the DRAM bandwidth
    """

    work_s: Floats
    waits_s: Floats
    eager: Bools
    sends: Bools
    tensor: Bools
    peak_s: Floats
    moved_s: Floats


def activity(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Activity:
    """Return what operator row `i[q]` does on GPU row `j[q]`."""
    kinds, terms = kinds_of(ops), np.zeros((TERMS, len(i)))
    work, whole = work_of(ops, kinds), np.isin(ops.kind, _WHOLE)
    if not whole.all():
        features = operator_features(ops, kinds, products_of(kinds))
        fill_terms(features, devices_of(gpus), (i, j), np.full(len(i), ANY_TILE), terms)
    given = ops.column("eager") if "eager" in ops.fields else np.full(len(ops), np.nan)
    eager, dtype = given[i], formats_run(gpus)[ops.dtype[i], j]
    return Activity(
        work_s=np.where(whole[i], np.nan, terms[WORK_S]),
        waits_s=np.where(whole[i], 0.0, terms[TIME] - terms[WORK_S]),
        eager=np.where(np.isnan(eager), IS_EAGER[ops.dtype[i]], eager > 0.0) & ~whole[i],
        sends=terms[LINK_S] > terms[WORK_S] / 2.0,
        tensor=_on_tensor_units(gpus)[dtype, j],
        peak_s=np.divide(work.flops[i], peaks(gpus)[dtype, j], out=np.zeros(len(i)), where=work.flops[i] > 0),
        moved_s=work.bytes[i] / gpus.column("memory_bandwidth_bytes_per_s")[j],
    )


@once_per_table
def _on_tensor_units(gpus: GpuTable) -> Bools:
    """Return where a number format runs on tensor units, bool [dtypes, gpus]."""
    columns = [[f"peak_{pipe}_flops" for pipe in PIPES_OF_DTYPE[name] if pipe.endswith("_tensor")] for name in DTYPES]
    rates = [[gpus.values[COLUMN_INDEX[column]] for column in names] for names in columns]
    none = np.zeros(len(gpus), dtype=np.bool_)
    return np.array([~np.isnan(np.array(each)).all(axis=0) if each else none for each in rates])


def step_share(
    done: Activity, runs: Floats, seconds: float, eager: bool, limit: float = 1.0, shares: Shares = SHARES
) -> float:
    """Return the mean power, as a share of the board's, of a step of `seconds` that has each row `runs` often.

    `eager`: the host launches every row. `limit`: share of the board power that the board may draw. NaN where a peak is
    unknown.
    """
    work_s = np.where(np.isnan(done.work_s), seconds / max(float(runs.sum()), 1.0), done.work_s)
    total_s = float(runs @ work_s)
    if total_s <= 0.0:
        return shares.idle
    if eager or runs @ (work_s * done.eager) > total_s / 2.0:
        busy = min(shares.slower * total_s / seconds, 1.0)
    else:
        busy = total_s / (total_s + float(runs @ done.waits_s))
    running_s = work_s * (busy * seconds / total_s)
    drawn = _while_running(done, np.maximum(running_s, np.finfo(np.float64).tiny), limit, shares)
    return float(runs @ (running_s * drawn)) / seconds + (1.0 - busy) * shares.idle


def row_shares(done: Activity, seconds: Floats, limit: float = 1.0, shares: Shares = SHARES) -> Floats:
    """Return the same of steps of one row each, float64 [n]."""
    work_s = np.where(np.isnan(done.work_s), seconds, done.work_s)
    of_others = work_s / np.maximum(work_s + done.waits_s, np.finfo(np.float64).tiny)
    busy = np.where(done.eager, np.minimum(shares.slower * work_s / seconds, 1.0), of_others)
    drawn = _while_running(done, np.maximum(busy * seconds, np.finfo(np.float64).tiny), limit, shares)
    share: Floats = busy * drawn + (1.0 - busy) * shares.idle
    return share


def _while_running(done: Activity, running_s: Floats, limit: float, shares: Shares) -> Floats:
    """Return the share of the board power while each row runs, which takes `running_s`, [n]."""
    of_pipe = np.where(done.tensor, shares.tensor, shares.lanes)
    dynamic = (
        np.where(done.sends, 0.0, shares.running) + (of_pipe * done.peak_s + shares.memory * done.moved_s) / running_s
    )
    return np.minimum(shares.idle + dynamic, limit)
