"""What an hour of a GPU costs: what the user imported; nothing is invented.

Of each offer (GPU, provider, region) the newest price not after today counts, of a GPU's offers the cheapest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

# Rents move by tens of percent a year: older prices are still used, and said to be old.
STALE_DAYS = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars for an hour of one device, as somebody offered it on a day."""

    gpu_id: str
    usd_per_hour: float
    source: str
    dated: date
    provider: str = ""
    region: str = ""

    @property
    def words(self) -> str:
        """Where it comes from."""
        return ", ".join(part for part in (self.provider, self.region, self.source, f"{self.dated}") if part)

    def age_days(self, today: date) -> int:
        """Days since it was offered."""
        return (today - self.dated).days


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

    def find(self, gpu_id: str, today: date) -> Price | None:
        """The price that counts today, if there is one; of one day's, that stored last."""
        offers: dict[tuple[str, str], Price] = {}
        for price in sorted(self.rows.get(gpu_id, ()), key=lambda price: price.dated):
            if price.dated <= today:
                offers[price.provider, price.region] = price
        return min(offers.values(), key=lambda price: price.usd_per_hour, default=None)


def today_utc() -> date:
    """Today, wherever the server stands."""
    return datetime.now(UTC).date()
