"""From a prediction to the figures that GPUs are compared by."""

from __future__ import annotations

from datetime import date
from math import exp, hypot, log
from typing import NamedTuple

from msgspec import UNSET

from app.engine.power import Power
from app.engine.prices import STALE_DAYS, age_days, describe_source
from app.store.prices import Price
from app.wire.compare_form import Compared, Split
from app.wire.prediction_form import Interval, Prediction

_HOUR_S = 3600.0
# The narrowest end of an interval in log space that still is one.
_WIDEST = 30.0


class Rate(NamedTuple):
    """What an hour of one device costs, and who says so."""

    usd_per_hour: float
    source: str
    warning: str = ""

    @classmethod
    def of(cls, price: Price, today: date) -> Rate:
        """A stored price, with its age where it is old."""
        age, source = age_days(price, today), describe_source(price)
        words = f"the price of {price.gpu_id} is {age} days old ({source})" if age > STALE_DAYS else ""
        return cls(price.usd_per_hour, source, words)


def compared(found: Prediction, split: Split | None, rate: Rate | None, power: Power | None) -> Compared:
    """The prediction in time, throughput, money and energy; not ranked yet."""
    devices = 1 if found.devices is UNSET else found.devices
    seconds, time = found.latency_ms / 1e3, found.interval_ms
    per_s = _per_s(found)
    cost = None if rate is None else devices * rate.usd_per_hour / _HOUR_S
    watts = None if power is None else devices * power.middle
    return Compared(
        0,
        found.gpu,
        devices,
        split,
        found.latency_ms,
        time,
        per_s,
        None if per_s is None else _inverse(per_s, found),
        None if cost is None else seconds * cost,
        None if cost is None else Interval(time.low / 1e3 * cost, time.high / 1e3 * cost, time.coverage),
        None if watts is None else seconds * watts,
        None if power is None else _energy(found, power, devices),
        None if power is None else power.middle,
        None if power is None else power.source,
        None if rate is None else rate.usd_per_hour,
        None if rate is None else rate.source,
        None if per_s is None or not cost else per_s / cost,
        None if per_s is None or not watts else per_s / watts,
        found.memory,
        found.bound,
        found.support,
        found.predictor,
        False,
        [],
        [*found.warnings, *([rate.warning] if rate and rate.warning else [])],
    )


def _per_s(found: Prediction) -> float | None:
    """Sequences or images of a network, runs of anything else; None where it takes no time."""
    if found.latency_ms <= 0:
        return None
    return 1e3 / found.latency_ms if found.throughput_per_s is UNSET else found.throughput_per_s


def _inverse(per_s: float, found: Prediction) -> Interval:
    """Of the throughput, whose ends are those of the time upside down."""
    time = found.interval_ms
    least = found.latency_ms * exp(-_WIDEST)
    low, high = (per_s * found.latency_ms / max(end, least) for end in (time.high, time.low))
    return Interval(low, high, time.coverage)


def _energy(found: Prediction, power: Power, devices: int) -> Interval:
    """Time and power err independently: their deviations in log space add up in squares."""
    time, middle = found.interval_ms, found.latency_ms / 1e3 * devices * power.middle
    below = hypot(_apart(time.low, found.latency_ms), _apart(power.low, power.middle))
    above = hypot(_apart(found.latency_ms, time.high), _apart(power.middle, power.high))
    return Interval(middle * exp(-below), middle * exp(above), time.coverage)


def _apart(low: float, high: float) -> float:
    """ln(high / low), at most _WIDEST."""
    if high <= 0:
        return 0.0
    return min(log(high / low), _WIDEST) if low > 0 else _WIDEST
