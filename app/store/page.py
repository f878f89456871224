"""What a listing of measurements asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Up to `limit` rows in the order of their ids, the first one after the id `after`; filters are exact."""

    gpu: str | None = None
    kind: str | None = None
    name: str | None = None
    software: str | None = None
    source: str | None = None
    after: str | None = None
    limit: int = 100
