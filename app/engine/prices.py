"""GPU prices per hour: those that users imported, and the dated list prices that ship.

Of each offer (GPU, provider, region, term) the newest price up to today counts; of shipped offers, of each size of the
instance. Of a GPU's offers for a term, users' own go before shipped ones, then fresh ones before stale ones, and of
those the cheapest counts.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.config import SEED_DATA
from app.store.gpus import Price

# Rents move by tens of percent a year: older prices are used with a warning, and after those that are not.
STALE_DAYS = 90
# Shipped prices that are older are used no more: a release that is never renewed knows no price then.
SHIPPED_DAYS = 365


ON_DEMAND = "on_demand"


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

    def find(self, gpu_id: str, today: datetime.date, term: str = ON_DEMAND) -> Price | None:
        """Return the price that counts today, or None. Of several prices of one day the last one stored counts."""
        offers: dict[tuple[bool, str, str, int], Price] = {}
        for price in sorted(self.rows.get(gpu_id, ()), key=lambda price: price.dated):
            too_old = price.shipped and age_days(price, today) > SHIPPED_DAYS
            if price.term == term and price.dated <= today and not too_old:
                instance = price.devices if price.shipped else 0  # an import has the cheapest instance alone
                offers[price.shipped, price.provider, price.region, instance] = price
        return min(
            offers.values(),
            key=lambda price: (price.shipped, age_days(price, today) > STALE_DAYS, price.usd_per_hour),
            default=None,
        )

    @property
    def own(self) -> PriceBook:
        """The prices that do not ship."""
        return PriceBook.of(price for rows in self.rows.values() for price in rows if not price.shipped)


def shipped_prices() -> list[Price]:
    """Return the list prices that ship."""
    return listed_prices(json.loads((SEED_DATA / "prices.json").read_text("utf-8"))["lists"])


def listed_prices(lists: Iterable[Mapping[str, Any]]) -> list[Price]:
    """Return the prices of providers' lists in the form of seed_data/prices.json, each of one device."""
    return [
        Price(
            gpu_id=row["gpu"],
            usd_per_hour=row["usd_per_hour"] / row.get("instance_of", 1),
            source=one["source"],
            dated=datetime.date.fromisoformat(one["date"]),
            provider=one["provider"],
            region=one.get("region", ""),
            term=row.get("term", ON_DEMAND),
            devices=row.get("instance_of", 1),
            shipped=True,
        )
        for one in lists
        for row in one["prices"]
    ]


@dataclass(frozen=True, slots=True)
class Listed:
    """A stored price in a listing. `counts` is whether comparisons for its term use it today."""

    id: int = field(metadata={"description": "Identifier"})
    gpu: str = field(metadata={"description": "Id of the GPU"})
    usd_per_hour: float = field(metadata={"description": "US dollars per hour of one device"})
    source: str = field(metadata={"description": "Who measured or published it"})
    date: datetime.date = field(metadata={"description": "Day of the price"})
    term: str = field(metadata={"description": "on_demand, spot or reserved"})
    devices: int = field(metadata={"description": "Devices of the instance that is rented as a whole"})
    shipped: bool = field(metadata={"description": "Whether it is a list price that ships with gpucast"})
    age_days: int = field(metadata={"description": "Days since `date`"})
    counts: bool = field(metadata={"description": "Whether comparisons for its term use this price today"})
    provider: str | None = field(default=None, metadata={"description": "Cloud provider"})
    region: str | None = field(default=None, metadata={"description": "Where"})


def to_listing(price: Price, book: PriceBook, today: datetime.date) -> Listed:
    """Return a price of the book as an item of a listing."""
    return Listed(
        price.id,
        price.gpu_id,
        price.usd_per_hour,
        price.source,
        price.dated,
        price.term,
        price.devices,
        price.shipped,
        age_days(price, today),
        book.find(price.gpu_id, today, price.term) == price,
        price.provider or None,
        price.region or None,
    )


def describe_source(price: Price) -> str:
    """Return where a price comes from: provider, region, term, instance, source and date."""
    whole = f"one of {price.devices} rented together" if price.devices > 1 else ""
    term = price.term.replace("_", " ")
    return ", ".join(
        part for part in (price.provider, price.region, term, whole, price.source, f"{price.dated}") if part
    )


def age_days(price: Price, today: datetime.date) -> int:
    """Return days since the price was offered; negative if it lies in the future."""
    return (today - price.dated).days


def today_utc() -> datetime.date:
    """Return today's date in UTC."""
    return datetime.datetime.now(datetime.UTC).date()
