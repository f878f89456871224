"""Requests of callers, counted by each process of all replicas, by the clock of the database.

All replicas share that clock: their own may be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from app.store.sql_tables import RATE_COUNTS

_NOW = sa.text("SELECT extract(epoch FROM clock_timestamp())::float8")


def now_s(connection: Connection) -> float:
    """Return the seconds since 1970."""
    return float(connection.execute(_NOW).scalar_one())


_C = RATE_COUNTS.c
# Index of a window of time, and a caller's digest.
Slot = tuple[int, str]


class Requests(NamedTuple):
    """Number of requests, and of processes that got any."""

    number: int
    processes: int


NONE = Requests(0, 0)


def exchange(connection: Connection, process: str, counts: Mapping[Slot, int]) -> dict[Slot, Requests]:
    """Record a process's requests, and return those of all other processes since the first window of `counts`.

    Earlier windows are forgotten.
    """
    rows = [
        {"window": window, "caller": caller, "process": process, "requests": requests}
        for (window, caller), requests in sorted(counts.items())
    ]
    first = min(window for window, _ in counts)
    given = insert(RATE_COUNTS)
    connection.execute(
        given.on_conflict_do_update(index_elements=RATE_COUNTS.primary_key, set_={"requests": given.excluded.requests}),
        rows,
    )
    connection.execute(sa.delete(RATE_COUNTS).where(_C.window < first))
    others = sa.select(_C.window, _C.caller, sa.func.sum(_C.requests), sa.func.count())
    of_others = connection.execute(others.where(_C.process != process).group_by(_C.window, _C.caller))
    return {(window, caller): Requests(int(number), processes) for window, caller, number, processes in of_others}
