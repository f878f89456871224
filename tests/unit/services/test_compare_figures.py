"""Cost, energy, Pareto sets and which of two is faster, beside values worked out by hand."""

from dataclasses import replace
from datetime import date, timedelta
from math import exp, log, nan, sqrt
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from app.engine.catalogue import load_seed_specs
from app.engine.power import Power, board_power
from app.engine.prices import SHIPPED_DAYS, STALE_DAYS, PriceBook, describe_source, shipped_prices
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


def test_an_owned_gpu_costs_electricity_and_what_is_written_off() -> None:
    # 1.8 s on four devices of 0.5 USD an hour, that draw 250 W (125 to 500) at 0.4 USD per kWh: 0.6 an hour each.
    step = prediction(1800.0, 900.0, 3600.0, devices=4, throughput_per_s=10.0)
    rate, power = Rate(0.5, "request", usd_per_kwh=0.4), Power(250.0, 125.0, 500.0, "measured")
    figures = to_compared(step, None, rate, power)
    assert figures.price_usd_per_hour == pytest.approx(0.6)
    assert figures.price_source == "owned: 0.4 USD per kWh at 250 W, and 0.5 USD written off an hour"
    assert figures.cost_usd == pytest.approx(1.8 / 3600 * 4 * 0.6) == pytest.approx(0.0012)
    assert figures.cost_interval_usd is not None
    # In log space the deviations of time (a factor of 2) and price (0.55 to 0.7) add up in squares.
    high = exp(sqrt(log(2.0) ** 2 + log(0.7 / 0.6) ** 2))
    assert figures.cost_interval_usd.high == pytest.approx(0.0012 * high)
    assert to_compared(step, None, rate, None).cost_usd is None  # unknown power
    free = to_compared(step, None, Rate(0.0, "request", usd_per_kwh=0.4), power)
    assert free.energy_j is not None and free.cost_usd == pytest.approx(free.energy_j / 3.6e6 * 0.4)
    assert free.cost_interval_usd is not None and free.energy_interval_j is not None
    assert free.cost_interval_usd.low == pytest.approx(free.energy_interval_j.low / 3.6e6 * 0.4)


def test_a_month_of_an_owned_gpu_has_its_idle_hours() -> None:
    loaded, board = Power(200.0, 200.0, 200.0, "measured"), Power(400.0, 50.0, 400.0, "board power")
    owned = Rate(0.1, "request", usd_per_kwh=0.5)
    # 0.4 of 730 h at 0.1 + 0.1 USD, the rest at 0.1 + 0.025.
    assert owned.monthly(loaded, board, 0.4) == pytest.approx(730 * (0.4 * 0.2 + 0.6 * 0.125))
    assert owned.monthly(None, board, 0.4) is None
    assert Rate(2.0, "x").monthly(None, None, 0.4) == pytest.approx(730 * 0.4 * 2.0)


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


def price(usd: float, day: date, provider: str = "", region: str = "", **more: Any) -> Price:
    return Price(gpu_id="g", usd_per_hour=usd, source="list", dated=day, provider=provider, region=region, **more)


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


def test_own_prices_go_before_shipped_ones_and_fresh_before_stale_ones() -> None:
    fresh, stale, gone = (TODAY - timedelta(days=days) for days in (STALE_DAYS, STALE_DAYS + 1, SHIPPED_DAYS + 1))
    cheap, dear = price(1.0, stale, "a", shipped=True), price(2.0, fresh, "b", shipped=True)
    own, cheaper = price(9.0, gone), price(0.5, gone, "d", shipped=True)
    assert PriceBook.of([cheap, dear, cheaper]).find("g", TODAY) == dear
    assert PriceBook.of([cheap, cheaper]).find("g", TODAY) == cheap
    assert PriceBook.of([cheaper]).find("g", TODAY) is None
    book = PriceBook.of([cheap, dear, own, cheaper])
    assert book.find("g", TODAY) == own and book.own == PriceBook.of([own])
    assert PriceBook.of([cheap, dear]).own == PriceBook()


def test_prices_count_for_their_term_alone() -> None:
    book = PriceBook.of([price(3.0, TODAY, "a"), price(1.0, TODAY, "a", term="spot")])
    assert [book.find("g", TODAY, term) for term in ("on_demand", "spot", "reserved")] == [*book.rows["g"], None]


def test_sizes_of_an_instance_are_offers_of_their_own_where_the_whole_list_is_known() -> None:
    old, new = TODAY - timedelta(days=20), TODAY
    eight, one = price(2.0, old, "a", devices=8), price(3.0, new, "a")
    assert PriceBook.of([eight, one]).find("g", TODAY) == one  # an import has the cheapest instance alone
    shipped = [replace(each, shipped=True) for each in (eight, one)]
    assert PriceBook.of(shipped).find("g", TODAY) == shipped[0]


def test_the_shipped_list_is_of_many_gpus_and_providers_with_sources() -> None:
    known = {spec.id for spec in load_seed_specs()}
    prices = shipped_prices()
    gpus, providers = {one.gpu_id for one in prices}, {one.provider for one in prices}
    assert gpus <= known and len(gpus) >= 15 and len(providers) >= 4
    assert all(one.source.startswith("https://") and one.shipped for one in prices)
    assert len(set(prices)) == len(prices)
    # An instance is divided: p5.48xlarge costs 55.04 an hour, and has 8.
    (p5,) = [one for one in prices if (one.gpu_id, one.provider) == ("h100-sxm5-80gb", "AWS")]
    assert (p5.usd_per_hour, p5.devices) == (6.88, 8)
    assert describe_source(p5).startswith(
        "AWS, us-east-1, on demand, one of 8 rented together, https://aws.amazon.com/"
    )


def test_old_prices_report_their_age() -> None:
    old = Rate.of(price(1.0, date(2026, 8, 22)), TODAY).warning
    assert old is not None and "91 days old" in old.text
    assert Rate.of(price(1.0, date(2026, 8, 23)), TODAY).warning is None
