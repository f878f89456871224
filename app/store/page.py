"""What a listing or a removal of measurements asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Column, ColumnElement, and_, true


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Rows that agree with every filter given, exactly; `gpu` is a catalogue id, `name` of an operator which it is."""

    gpu: str | None = None
    kind: str | None = None
    name: str | None = None
    software: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Filters):
    """Up to `limit` of these rows in the order of their ids, the first one after the id `after`."""

    after: str | None = None
    limit: int = 100


def agreeing(wanted: Mapping[Column[str], str | None]) -> ColumnElement[bool]:
    """The condition that columns hold the values wanted of them; None is whatever they hold."""
    return and_(true(), *(column == value for column, value in wanted.items() if value is not None))
