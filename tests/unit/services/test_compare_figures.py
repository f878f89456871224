"""Cost, energy, Pareto sets and which of two is faster, beside values worked out by hand."""

from datetime import date
from math import exp, log, nan, sqrt

import numpy as np
import pytest
from msgspec import structs

from app.engine.catalogue import load_seed_specs
from app.engine.power import board_power
from app.engine.prices import PriceBook
from app.predictors.physics.power_model import SHARES
from app.services.compare.request import Rate, pareto, to_compared
from app.store.gpus import Price
from app.wire.prediction_form import AnsweredBy, Interval, MemoryUse, Prediction

TODAY = date(2026, 11, 21)
L4 = next(spec for spec in load_seed_specs() if spec.id == "nvidia-l4")  # 72 W


def prediction(middle: float, low: float, high: float, **fields: float) -> Prediction:
    memory, by = MemoryUse(1e9, 24e9, fits=True), AnsweredBy("auto", "1")
    interval = Interval(low, high, 0.8)
    figures = Prediction("nvidia-l4", middle, interval, "compute", by, "measured", memory, [], [], [])
    return structs.replace(figures, **fields)


def test_a_step_costs_time_times_devices_times_price() -> None:
    # 1.8 s on four devices of 2.5 USD an hour.
    figures = to_compared(
        prediction(1800.0, 900.0, 3600.0, devices=4, throughput_per_s=10.0), None, Rate(2.5, "x"), None
    )
    assert figures.cost_usd == pytest.approx(1.8 / 3600 * 4 * 2.5) == pytest.approx(0.005)
    assert figures.cost_interval_usd == Interval(pytest.approx(0.0025), pytest.approx(0.01), 0.8)
    assert figures.throughput_per_usd == pytest.approx(10.0 * 3600 / 10.0)
    assert figures.throughput_interval_per_s == Interval(pytest.approx(5.0), pytest.approx(20.0), 0.8)


def test_energy_is_power_times_time() -> None:
    # Equation 3 of PM2Lat: 2 s x 72 W; the interval goes down to what an idle card draws.
    figures = to_compared(prediction(2000.0, 1000.0, 4000.0), None, None, board_power(L4))
    assert figures.energy_j == pytest.approx(144.0) and figures.power_w == 72.0
    assert figures.energy_interval_j is not None
    assert figures.energy_interval_j.low == pytest.approx(144.0 * exp(-sqrt(log(2) ** 2 + log(SHARES.idle) ** 2)))
    assert figures.energy_interval_j.high == pytest.approx(288.0)
    assert figures.throughput_per_joule == pytest.approx(0.5 / 72.0)
    assert figures.cost_usd is None and figures.price_source is None


def test_zero_time_has_no_throughput() -> None:
    figures = to_compared(prediction(0.0, 0.0, 0.0), None, Rate(1.0, "x"), board_power(L4))
    assert (figures.throughput_per_s, figures.throughput_per_usd, figures.cost_usd, figures.energy_j) == (
        None,
        None,
        0.0,
        0.0,
    )


def test_an_owned_gpu_costs_nothing() -> None:
    figures = to_compared(prediction(1.0, 1.0, 1.0), None, Rate(0.0, "request"), None)
    assert figures.cost_usd == 0.0 and figures.throughput_per_usd is None


def test_the_pareto_set() -> None:
    # Time, money, energy: the third is beaten by the first; the last has no price and is slower than the first.
    costs = [[1.0, 3.0, 5.0], [2.0, 1.0, 5.0], [1.0, 4.0, 5.0], [3.0, 3.0, 1.0], [1.5, nan, 5.0]]
    assert pareto(np.array(costs)).tolist() == [True, True, False, True, False]
    assert pareto(np.array([[1.0, nan], [1.0, nan]])).tolist() == [True, True]


def test_two_criteria_are_sorted_as_more_are_compared() -> None:
    pairs = np.random.default_rng(0).integers(0, 12, (300, 2)).astype(np.float64)
    pairs[::17, 0] = np.nan
    pairs[::23, 1] = np.nan
    compared = pareto(np.column_stack([pairs, np.zeros(len(pairs))]))
    assert pareto(pairs).tolist() == compared.tolist()
    assert 0 < compared.sum() < 30


def price(usd: float, day: date, provider: str = "", region: str = "") -> Price:
    return Price(gpu_id="g", usd_per_hour=usd, source="list", dated=day, provider=provider, region=region)


def test_the_newest_price_of_each_offer_and_the_cheapest_offer_count() -> None:
    old, new = date(2026, 1, 1), date(2026, 11, 1)
    book = PriceBook.of(
        [price(3.0, new, "a"), price(1.0, old, "a"), price(2.5, new, "b"), price(0.1, date(2027, 1, 1))]
    )
    assert book.find("g", TODAY) == price(2.5, new, "b")
    assert book.find("g", date(2026, 2, 1)) == price(1.0, old, "a")
    assert book.find("g", date(2025, 1, 1)) is None and book.find("h", TODAY) is None


def test_the_last_stored_price_of_a_day_counts() -> None:
    assert PriceBook.of([price(2.0, TODAY), price(3.0, TODAY)]).find("g", TODAY) == price(3.0, TODAY)


def test_old_prices_report_their_age() -> None:
    old = Rate.of(price(1.0, date(2026, 8, 22)), TODAY).warning
    assert old is not None and "91 days old" in old.text
    assert Rate.of(price(1.0, date(2026, 8, 23)), TODAY).warning is None
