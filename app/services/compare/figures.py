"""Convert predictions to the figures that GPUs are compared by."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

from msgspec import UNSET

from app.bands.band import Band
from app.engine.power import Power
from app.engine.prices import STALE_DAYS, age_days, describe_source
from app.store.prices import Price
from app.warning_codes import CodedWarning, texts, warning
from app.wire.compare_form import Compared, Split
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
    """Return the interval of the throughput, with the ends of the time inverted."""
    time = prediction.interval_ms
    return Interval.of(per_s, time.band(prediction.latency_ms).inverse(), time.coverage)


def _energy(prediction: Prediction, power: Power, devices: int) -> Interval:
    """Return the energy's interval. Errors of time and power are independent."""
    time, middle = prediction.interval_ms, prediction.latency_ms / 1e3 * devices * power.middle
    of_power = Band.of(power.middle, power.low, power.high, time.coverage)
    return Interval.of(middle, time.band(prediction.latency_ms).widened(of_power), time.coverage)
