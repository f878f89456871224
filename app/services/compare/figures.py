"""Figures that GPUs are compared by: time, throughput, cost and energy, the load that power depends on, Pareto sets."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from app.bands.band import Band
from app.engine.operator_rows import Distinct, read_operators
from app.engine.power import Load, Power
from app.engine.prices import STALE_DAYS, age_days, describe_source
from app.ops.figures import Work
from app.ops.kinds import kinds_of, work_of
from app.services.graphs.graph_store import Graphs
from app.services.models.resolve_networks import resolve_network
from app.steps.networks import prepare, rows_per_step
from app.store.gpus import Price
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_CODE, DTYPES
from app.warning_codes import CodedWarning, texts, warning
from app.wire.compare_form import Compared, Split
from app.wire.graph_form import NetworkWorkload
from app.wire.kernel_workload import KernelWorkload
from app.wire.operator_forms import OperatorsWorkload
from app.wire.prediction_form import Interval, Prediction

_HOUR_S = 3600.0


class Rate(NamedTuple):
    """Price of one device-hour, with its source."""

    usd_per_hour: float
    source: str
    warning: CodedWarning | None = None

    @classmethod
    def of(cls, price: Price, today: date) -> Rate:
        """Return the rate of a stored price, with a warning if it is old."""
        age, source = age_days(price, today), describe_source(price)
        text = f"the price of {price.gpu_id} is {age} days old ({source})"
        return cls(price.usd_per_hour, source, warning("price_stale", text) if age > STALE_DAYS else None)


def to_compared(prediction: Prediction, split: Split | None, rate: Rate | None, power: Power | None) -> Compared:
    """Return the prediction as time, throughput, cost and energy; not ranked yet."""
    devices = 1 if prediction.devices is UNSET else prediction.devices
    seconds, time = prediction.latency_ms / 1e3, prediction.interval_ms
    per_s = _per_s(prediction)
    cost = None if rate is None else devices * rate.usd_per_hour / _HOUR_S
    watts = None if power is None else devices * power.middle
    warnings = [*prediction.warning_codes, *([rate.warning] if rate and rate.warning else [])]
    return Compared(
        0,
        prediction.gpu,
        devices,
        split,
        prediction.latency_ms,
        time,
        per_s,
        None if per_s is None else _inverse(per_s, prediction),
        None if cost is None else seconds * cost,
        None if cost is None else time.scaled(cost / 1e3),
        None if watts is None else seconds * watts,
        None if power is None else _energy(prediction, power, devices),
        None if power is None else power.middle,
        None if power is None else power.source,
        None if rate is None else rate.usd_per_hour,
        None if rate is None else rate.source,
        None if per_s is None or not cost else per_s / cost,
        None if per_s is None or not watts else per_s / watts,
        prediction.memory,
        prediction.bound,
        prediction.support,
        prediction.predictor,
        False,
        [],
        texts(warnings),
        warnings,
    )


def _per_s(prediction: Prediction) -> float | None:
    """Return sequences or images per second for a network, runs per second otherwise; None if it takes no time."""
    if prediction.latency_ms <= 0:
        return None
    return 1e3 / prediction.latency_ms if prediction.throughput_per_s is UNSET else prediction.throughput_per_s


def _inverse(per_s: float, prediction: Prediction) -> Interval:
    time = prediction.interval_ms
    return Interval.of(per_s, time.band(prediction.latency_ms).inverse(), time.coverage)


def _energy(prediction: Prediction, power: Power, devices: int) -> Interval:
    """Return the energy's interval. Errors of time and power are independent."""
    time, middle = prediction.interval_ms, prediction.latency_ms / 1e3 * devices * power.middle
    of_power = Band.of(power.middle, power.low, power.high, time.coverage)
    return Interval.of(middle, time.band(prediction.latency_ms).widened(of_power), time.coverage)


ComparableWorkload: TypeAlias = KernelWorkload | OperatorsWorkload | NetworkWorkload


def device_load(workload: ComparableWorkload, graphs: Graphs | None) -> Load:
    """Return FLOPs by number format and bytes; for a pipelined network those of the mean stage."""
    if isinstance(workload, KernelWorkload):
        flops = np.zeros(len(DTYPES))
        flops[DTYPE_CODE[workload.dtype]] = workload.flops
        return Load(flops, workload.bytes)
    if isinstance(workload, OperatorsWorkload):
        distinct = read_operators(workload.operators)
        return _load(distinct, work_of(distinct.table, kinds_of(distinct.table)), distinct.repeats)
    network, run = resolve_network(workload, graphs)
    rows = prepare(network, run)
    return _load(rows.distinct, rows.work, rows_per_step(rows, run) / run.parallelism.pipeline)


def _load(distinct: Distinct, work: Work, times: Floats) -> Load:
    """Return the load of rows that run `times` often, float64 [n]; `work` is per distinct row."""
    runs = np.bincount(distinct.row, weights=times, minlength=len(distinct.table))
    flops = np.bincount(distinct.table.dtype, weights=work.flops * runs, minlength=len(DTYPES))
    return Load(flops.astype(np.float64), float(work.bytes @ runs))


_PAIR = 2


def pareto(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether each row of `costs` [n, criteria] (less is better) is undominated, bool [n].

    A row dominates another if it is nowhere worse and somewhere better. An unknown cost (NaN) counts as infinite.
    """
    known = np.where(np.isnan(costs), np.inf, costs)
    if known.shape[1] == _PAIR and len(known):
        return _of_pairs(known)
    no_worse = np.all(known[:, None, :] <= known[None, :, :], axis=2)
    better = np.any(known[:, None, :] < known[None, :, :], axis=2)
    best: NDArray[np.bool_] = ~np.any(no_worse & better, axis=0)
    return best


def _of_pairs(known: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the same of two criteria, in the time of a sort: thousands of rows are compared."""
    levels, level = np.unique(known[:, 0], return_inverse=True)
    least = np.full(len(levels), np.inf)
    np.minimum.at(least, level, known[:, 1])
    before = np.minimum.accumulate(least)[:-1]
    undominated = np.concatenate([[True], least[1:] < before])
    best: NDArray[np.bool_] = undominated[level] & (known[:, 1] == least[level])
    return best
