"""Storage of limits of GPUs that refused measurements have raised, and whose measurements those were."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from app.store.limit_breaches import keys_of
from app.store.upload_tables import RAISED_LIMITS as RAISED


@dataclass(frozen=True, slots=True)
class Raise:
    """A figure of a GPU, as in a Breach, that was raised to `value` from `before`, which was of this provenance."""

    gpu_id: str
    figure: str
    value: float
    before: float
    provenance: str


def record(connection: Connection, raised: Raise) -> None:
    """Store a raise, for each key that sent a breach of the figure; None stands for no key."""
    keys = keys_of(connection, raised.gpu_id, raised.figure)
    connection.execute(sa.insert(RAISED), [{**asdict(raised), "key_id": key} for key in keys])


def take_back(connection: Connection, key_id: int, gpu_id: str | None) -> list[Raise]:
    """Forget the raises of a key, on one GPU or on all, and those that came later; return one for each figure.

    It goes from what the figure is now, if nothing else has changed it, to what it was before the first of them.
    """
    mine = (RAISED.c.key_id == key_id) & (sa.true() if gpu_id is None else RAISED.c.gpu_id == gpu_id)
    figures = sa.select(RAISED.c.gpu_id, RAISED.c.figure, sa.func.min(RAISED.c.id)).where(mine)
    firsts = connection.execute(figures.group_by(RAISED.c.gpu_id, RAISED.c.figure)).all()
    return [_taken_back(connection, *first) for first in firsts]


def _taken_back(connection: Connection, gpu_id: str, figure: str, first: int) -> Raise:
    later = (RAISED.c.gpu_id == gpu_id) & (RAISED.c.figure == figure) & (RAISED.c.id >= first)
    taken = sa.delete(RAISED).where(later).returning(RAISED.c.id, RAISED.c.value, RAISED.c.before, RAISED.c.provenance)
    rows = sorted(connection.execute(taken).all(), key=lambda row: row.id)
    return Raise(gpu_id, figure, rows[-1].value, rows[0].before, rows[0].provenance)
