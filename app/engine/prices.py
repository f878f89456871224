"""What an hour of a GPU costs: what the user imported; nothing is invented.

Of each offer (GPU, provider, region) the newest price not after today counts, of a GPU's offers the cheapest.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.store.prices import Price

# Rents move by tens of percent a year: older prices are still used, and said to be old.
STALE_DAYS = 90


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Every stored price by GPU id, in the order stored."""

    rows: Mapping[str, tuple[Price, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, prices: Iterable[Price]) -> PriceBook:
        """From rows in the order stored."""
        rows: dict[str, list[Price]] = {}
        for price in prices:
            rows.setdefault(price.gpu_id, []).append(price)
        return cls({gpu: tuple(each) for gpu, each in rows.items()})

    def find(self, gpu_id: str, today: datetime.date) -> Price | None:
        """The price that counts today, if there is one; of one day's, that stored last."""
        offers: dict[tuple[str, str], Price] = {}
        for price in sorted(self.rows.get(gpu_id, ()), key=lambda price: price.dated):
            if price.dated <= today:
                offers[price.provider, price.region] = price
        return min(offers.values(), key=lambda price: price.usd_per_hour, default=None)


@dataclass(frozen=True, slots=True)
class Listed:
    """One stored price as it is listed; `counts` says whether comparisons use it today."""

    id: int
    gpu: str
    usd_per_hour: float
    source: str
    date: datetime.date
    provider: str | None
    region: str | None
    age_days: int
    counts: bool


def listed(price: Price, book: PriceBook, today: datetime.date) -> Listed:
    """A price of the book in a listing."""
    return Listed(
        price.id,
        price.gpu_id,
        price.usd_per_hour,
        price.source,
        price.dated,
        price.provider or None,
        price.region or None,
        age_days(price, today),
        book.find(price.gpu_id, today) == price,
    )


def words_of(price: Price) -> str:
    """Where a price comes from."""
    return ", ".join(part for part in (price.provider, price.region, price.source, f"{price.dated}") if part)


def age_days(price: Price, today: datetime.date) -> int:
    """Days since it was offered; negative where it is not yet."""
    return (today - price.dated).days


def today_utc() -> datetime.date:
    """Today, wherever the server stands."""
    return datetime.datetime.now(datetime.UTC).date()
