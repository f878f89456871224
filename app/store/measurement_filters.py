"""Filters of listings and removals of measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Column, ColumnElement, and_, true


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Exact filters, all of which must match; `gpu` is a catalogue id, `name` a kernel, operator or model.

    `upload` and `key` are ids: of the upload that brought a row, and of the key that sent it.
    """

    gpu: str | None = None
    kind: str | None = None
    name: str | None = None
    software: str | None = None
    source: str | None = None
    upload: int | None = None
    key: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Filters):
    """Up to `limit` matching rows after the id `after`, ordered by id."""

    after: str | None = None
    limit: int = 100


def agreeing(filters: Mapping[Column[str], str | None]) -> ColumnElement[bool]:
    """Return the condition that columns have the given values; None matches any value."""
    return and_(true(), *(column == value for column, value in filters.items() if value is not None))
