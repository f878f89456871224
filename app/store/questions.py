"""Several statements in one round trip, by PostgreSQL's pipeline mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection

from app.store.copying import driver_of

T = TypeVar("T")
Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A statement of SQL with parameters written %s, and what its rows mean."""

    statement: str
    given: Sequence[Any]
    answer: Callable[[Rows], T]


def ask(connection: Connection, *questions: Question[Any]) -> list[Any]:
    """Return the answers to the questions, which are asked in this order."""
    driver = driver_of(connection)
    with nullcontext() if len(questions) == 1 else driver.pipeline():
        cursors = [driver.execute(each.statement.encode(), each.given) for each in questions]
    rows = [cursor.fetchall() if cursor.description else [] for cursor in cursors]
    return [each.answer(found) for each, found in zip(questions, rows, strict=True)]


def scalars(rows: Rows) -> list[Any]:
    """Return the first column."""
    return [row[0] for row in rows]
