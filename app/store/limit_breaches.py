"""Storage of measurements that were refused because they passed a limit of their GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from app.store.upload_tables import LIMIT_BREACHES as BREACHES

# Two runs so far apart do not share what disturbed one of them.
APART = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Breach:
    """One measurement beyond a limit; `id` is the same for one measurement that is sent again.

    figure  of the GPU: a field of `GpuSpec`, or "peak_flops.PIPE"
    value   the least that the figure must be for the measurement to be possible, SI units
    """

    id: str
    gpu_id: str
    figure: str
    value: float


def record(connection: Connection, breaches: Sequence[Breach], key_id: int | None) -> None:
    """Add breaches; those that are known stay as they were."""
    values = [{**asdict(one), "key_id": key_id} for one in breaches]
    connection.execute(insert(BREACHES).on_conflict_do_nothing(), values)


def repeated(connection: Connection, gpu_id: str, figure: str) -> float | None:
    """Return the highest value that two measurements confirm, if there are some at least `APART` apart; else None."""
    mine = (BREACHES.c.gpu_id == gpu_id) & (BREACHES.c.figure == figure)
    first, last = connection.execute(
        sa.select(sa.func.min(BREACHES.c.created_at), sa.func.max(BREACHES.c.created_at)).where(mine)
    ).one()
    if first is None or last - first < APART:
        return None
    highest = sa.select(BREACHES.c.value).where(mine).order_by(BREACHES.c.value.desc())
    found: float = connection.execute(highest.offset(1).limit(1)).scalar_one()
    return found


def forget(connection: Connection, gpu_id: str, figure: str) -> None:
    """Delete the breaches of a figure that was corrected."""
    connection.execute(sa.delete(BREACHES).where(BREACHES.c.gpu_id == gpu_id, BREACHES.c.figure == figure))


def keys_of(connection: Connection, gpu_id: str, figure: str) -> list[int | None]:
    """Return the ids of the keys that sent breaches of a figure; None stands for no key."""
    mine = (BREACHES.c.gpu_id == gpu_id) & (BREACHES.c.figure == figure)
    return list(connection.execute(sa.select(BREACHES.c.key_id).where(mine).distinct()).scalars())


def withdraw(connection: Connection, key_id: int, gpu_id: str | None) -> None:
    """Delete the breaches that a key sent, on one GPU or on all."""
    of = sa.true() if gpu_id is None else BREACHES.c.gpu_id == gpu_id
    connection.execute(sa.delete(BREACHES).where(BREACHES.c.key_id == key_id, of))
