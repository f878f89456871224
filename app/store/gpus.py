"""Storage of the GPU catalogue, and of prices: idempotent by content; an admin alone removes prices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert as insert_into

from app.errors import Conflict, NotFound
from app.store import revision
from app.store.driver import Question, scalars
from app.store.keys import Caller
from app.store.sql_tables import GPUS, PRICE_KEY, PRICES, columns_of, records
from app.tables.complete import spec_from_dict, spec_to_dict
from app.tables.gpus import GpuSpec

_SEEDED = (GPUS.c.id, GPUS.c.origin, GPUS.c.spec)


def load_specs(connection: Connection) -> list[GpuSpec]:
    """Return all GPUs, ordered by id."""
    return [spec_from_dict(spec) for spec in connection.execute(sa.select(GPUS.c.spec).order_by(GPUS.c.id)).scalars()]


def get_spec(connection: Connection, gpu_id: str) -> GpuSpec:
    """Return the GPU with an id; raises NotFound."""
    spec = connection.execute(sa.select(GPUS.c.spec).where(GPUS.c.id == gpu_id)).scalar_one_or_none()
    if spec is None:
        raise NotFound(f"No GPU has the id {gpu_id!r}.")
    return spec_from_dict(spec)


def missing(ids: Collection[str]) -> Question[set[str]]:
    """Ask which of the given ids no GPU has."""
    return Question("SELECT id FROM gpus WHERE id = ANY(%s)", [list(ids)], lambda rows: {*ids} - {*scalars(rows)})


def insert_spec(connection: Connection, spec: GpuSpec, origin: str) -> None:
    """Add a GPU; raises Conflict if its id is taken. `origin` is seed, user or import."""
    revision.lock(connection)
    statement = insert_into(GPUS).values(id=spec.id, spec=spec_to_dict(spec), origin=origin).on_conflict_do_nothing()
    if connection.execute(statement.returning(GPUS.c.id)).one_or_none() is None:
        raise Conflict(f"A GPU with the id {spec.id!r} exists; PATCH /gpus/{spec.id} changes it.")
    revision.bump(connection, "gpus")


def update_spec(connection: Connection, spec: GpuSpec) -> None:
    """Replace a GPU's specification and set its origin to user, so that seeding does not change it."""
    revision.lock(connection)
    statement = sa.update(GPUS).where(GPUS.c.id == spec.id)
    values = {"spec": spec_to_dict(spec), "origin": "user", "updated_at": sa.func.now()}
    if connection.execute(statement.values(values)).rowcount == 0:
        raise NotFound(f"No GPU has the id {spec.id!r}.")
    revision.bump(connection, "gpus")


def delete_spec(connection: Connection, gpu_id: str) -> None:
    """Remove a GPU; raises NotFound."""
    revision.lock(connection)
    if connection.execute(sa.delete(GPUS).where(GPUS.c.id == gpu_id)).rowcount == 0:
        raise NotFound(f"No GPU has the id {gpu_id!r}.")
    revision.bump(connection, "gpus")


def seed(connection: Connection, specs: Sequence[GpuSpec]) -> int:
    """Insert missing GPUs and update those of origin seed; return the number of changed rows."""
    if not _due(connection, specs):
        return 0  # the usual start, which then needs no lock
    revision.lock(connection)
    if due := _due(connection, specs):
        statement = insert_into(GPUS).values([{"id": key, "spec": spec, "origin": "seed"} for key, spec in due.items()])
        fresh = {"spec": statement.excluded.spec, "updated_at": sa.func.now()}
        connection.execute(statement.on_conflict_do_update(index_elements=[GPUS.c.id], set_=fresh))
        revision.bump(connection, "gpus")
    return len(due)


def _due(connection: Connection, specs: Sequence[GpuSpec]) -> dict[str, dict[str, Any]]:
    """Return the GPUs, by id, that are missing in the database or, of origin seed, differ."""
    known = {key: (origin, spec) for key, origin, spec in connection.execute(sa.select(*_SEEDED))}
    fresh = {spec.id: spec_to_dict(spec) for spec in specs}
    return {
        key: spec
        for key, spec in fresh.items()
        if key not in known or (known[key][0] == "seed" and known[key][1] != spec)
    }


# Rows per INSERT: a statement has at most 65,535 parameters.
_INSERT_CHUNK = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """An offered price of one device per hour, in US dollars, on a day, and the id of the API key that sent it.

    `term`: on_demand, spot or reserved. `devices`: of the instance that is rented as a whole, whose price was divided.
    `shipped`: whether it comes with the release. `id` is 0 before it is stored.
    """

    gpu_id: str
    usd_per_hour: float
    source: str
    dated: date
    provider: str = ""
    region: str = ""
    id: int = 0
    key_id: int | None = None
    term: str = "on_demand"
    devices: int = 1
    shipped: bool = False


# Exact values of columns; None matches any.
PriceFilters: TypeAlias = Mapping[str, str | int | None]
_COLUMNS = columns_of(PRICES, Price)


def insert_prices(connection: Connection, prices: Sequence[Price]) -> int:
    """Add rows in the caller's transaction, and return the number of new ones; known rows are unchanged."""
    values = [_values(price) for price in prices]
    revision.lock(connection)
    added = 0
    for first in range(0, len(values), _INSERT_CHUNK):
        statement = insert_into(PRICES).values(values[first : first + _INSERT_CHUNK]).on_conflict_do_nothing()
        added += len(connection.execute(statement.returning(PRICES.c.id)).all())
    if added:
        revision.bump(connection, "prices")
    return added


def _values(price: Price) -> dict[str, Any]:
    return {name: value for name, value in asdict(price).items() if name != "id"}


def seed_prices(connection: Connection, prices: Sequence[Price]) -> int:
    """Insert missing shipped prices, and withdraw those that the release no longer has; return how many changed."""
    if not _unlike(connection, prices):
        return 0  # the usual start, which then needs no lock
    revision.lock(connection)
    if stored := _unlike(connection, prices):
        gone, due = stored
        connection.execute(sa.update(PRICES).where(PRICES.c.id.in_(gone)).values(withdrawn_at=sa.func.now()))
        if due:
            statement = insert_into(PRICES).values([_values(price) for price in due])
            back = statement.on_conflict_do_update(index_elements=[*PRICE_KEY], set_={"withdrawn_at": None})
            connection.execute(back)
        revision.bump(connection, "prices")
        return len(gone) + len(due)
    return 0


def _unlike(connection: Connection, prices: Sequence[Price]) -> tuple[list[int], list[Price]] | None:
    """Return the ids of stored shipped prices that are not among `prices`, and those that are not stored."""
    statement = sa.select(*_COLUMNS).where(PRICES.c.shipped, PRICES.c.withdrawn_at.is_(None))
    stored = {replace(row, id=0): row.id for row in records(connection, statement, Price)}
    gone, due = [stored[row] for row in stored.keys() - {*prices}], [row for row in prices if row not in stored]
    return (gone, due) if gone or due else None


def load_prices(connection: Connection, *, until: datetime | None = None) -> list[Price]:
    """Return the rows that are not withdrawn, or those of a time, in the order of storage."""
    withdrawn = PRICES.c.withdrawn_at
    known: sa.ColumnElement[bool] = withdrawn.is_(None)
    if until is not None:
        known = sa.and_(PRICES.c.created_at <= until, sa.or_(known, withdrawn > until))
    return records(connection, sa.select(*_COLUMNS).where(known).order_by(PRICES.c.id), Price)


def price_page(connection: Connection, filters: PriceFilters, *, after: int = 0, limit: int = 100) -> list[Price]:
    """Return up to `limit` rows after the id `after` that match all filters, in the order of storage."""
    known = PRICES.c.id > after, PRICES.c.withdrawn_at.is_(None), *_matching(filters)
    statement = sa.select(*_COLUMNS).where(*known).order_by(PRICES.c.id).limit(limit)
    return records(connection, statement, Price)


def remove_prices(connection: Connection, filters: PriceFilters, *, dry_run: bool = False) -> int:
    """Delete the rows that match all filters, of which there is at least one, and return their number.

    Shipped prices stay: the next start would store them again.
    """
    matching = [*_matching(filters), sa.not_(PRICES.c.shipped)]
    if dry_run:
        return connection.execute(sa.select(sa.func.count()).select_from(PRICES).where(*matching)).scalar_one()
    return _removed(connection, matching)


def remove_price(connection: Connection, price_id: int, caller: Caller) -> bool:
    """Delete a row that the caller's key sent, or one that it succeeds; return whether there was one.

    Raises Conflict for a shipped price.
    """
    if connection.execute(sa.select(PRICES.c.shipped).where(PRICES.c.id == price_id)).scalar():
        raise Conflict(f"Price {price_id} ships with gpucast and stays: one that you send goes before it.")
    return _removed(connection, [PRICES.c.id == price_id, caller.sent(PRICES.c.key_id)]) > 0


def _removed(connection: Connection, matching: Sequence[sa.ColumnElement[bool]]) -> int:
    revision.lock(connection)
    removed = connection.execute(sa.delete(PRICES).where(*matching)).rowcount
    if removed:
        revision.bump(connection, "prices")
    return removed


def _matching(filters: PriceFilters) -> list[sa.ColumnElement[bool]]:
    return [PRICES.c[name] == value for name, value in filters.items() if value is not None]
