"""GPU prices per hour, as imported by the user.

Of each offer (GPU, provider, region) the newest price up to today counts, and of a GPU's offers the cheapest.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.store.gpus import Price

# Rents move by tens of percent a year: older prices are used with a warning.
STALE_DAYS = 90


@dataclass(frozen=True, slots=True)
class PriceBook:
    """All stored prices by GPU id, in the order stored."""

    rows: Mapping[str, tuple[Price, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, prices: Iterable[Price]) -> PriceBook:
        """Return the book of these prices, given in the order stored."""
        rows: dict[str, list[Price]] = {}
        for price in prices:
            rows.setdefault(price.gpu_id, []).append(price)
        return cls({gpu: tuple(each) for gpu, each in rows.items()})

    def find(self, gpu_id: str, today: datetime.date) -> Price | None:
        """Return the price that counts today, or None. Of several prices of one day the last one stored counts."""
        offers: dict[tuple[str, str], Price] = {}
        for price in sorted(self.rows.get(gpu_id, ()), key=lambda price: price.dated):
            if price.dated <= today:
                offers[price.provider, price.region] = price
        return min(offers.values(), key=lambda price: price.usd_per_hour, default=None)


@dataclass(frozen=True, slots=True)
class Listed:
    """A stored price in a listing. `counts` is whether comparisons use it today."""

    id: int = field(metadata={"description": "Identifier"})
    gpu: str = field(metadata={"description": "Id of the GPU"})
    usd_per_hour: float = field(metadata={"description": "US dollars per hour of one device"})
    source: str = field(metadata={"description": "Who measured or published it"})
    date: datetime.date = field(metadata={"description": "Day of the price"})
    provider: str | None = field(metadata={"description": "Cloud provider"})
    region: str | None = field(metadata={"description": "Where"})
    age_days: int = field(metadata={"description": "Days since `date`"})
    counts: bool = field(metadata={"description": "Whether comparisons use this price today"})


def to_listing(price: Price, book: PriceBook, today: datetime.date) -> Listed:
    """Return a price of the book as an item of a listing."""
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


def describe_source(price: Price) -> str:
    """Return where a price comes from: provider, region, source and date."""
    return ", ".join(part for part in (price.provider, price.region, price.source, f"{price.dated}") if part)


def age_days(price: Price, today: datetime.date) -> int:
    """Return days since the price was offered; negative if it lies in the future."""
    return (today - price.dated).days


def today_utc() -> datetime.date:
    """Return today's date in UTC."""
    return datetime.datetime.now(datetime.UTC).date()
