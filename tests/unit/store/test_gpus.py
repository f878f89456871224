from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from app.engine.catalogue import load_seed_specs
from app.engine.prices import shipped_prices
from app.errors import Conflict, NotFound
from app.store import gpus, revision
from app.store.gpus import Price
from app.store.keys import ANYONE
from app.store.session import Database
from app.store.sql_tables import GPUS


def test_seeding_again_changes_nothing(database: Database) -> None:
    specs = load_seed_specs()
    with database.begin() as connection:
        before = revision.current(connection)
        assert gpus.seed(connection, specs) == 0
        assert revision.current(connection) == before
        assert gpus.load_specs(connection) == sorted(specs, key=lambda spec: spec.id)


def test_a_users_change_survives_seeding(database: Database) -> None:
    with database.begin() as connection:
        spec = gpus.get_spec(connection, "titan-v")
        changed = replace(spec, note="mine")
        gpus.update_spec(connection, changed)
        gpus.seed(connection, load_seed_specs())
        assert gpus.get_spec(connection, "titan-v") == changed


def test_seeding_refreshes_unchanged_rows(database: Database) -> None:
    with database.begin() as connection:
        spec = gpus.get_spec(connection, "nvidia-l4")
        assert gpus.seed(connection, [replace(spec, note="newer data sheet")]) == 1
        assert gpus.get_spec(connection, spec.id).note == "newer data sheet"


def test_rows_stored_before_link_domains_are_read_and_shipped_ones_refreshed(database: Database) -> None:
    with database.begin() as connection:
        specs = {spec.id: spec for spec in gpus.load_specs(connection)}
        gpus.update_spec(connection, specs["titan-v"])
        newer = sa.literal(["link_domain_gpus", "slot_bandwidth_bytes_per_s"], ARRAY(sa.Text))
        connection.execute(sa.update(GPUS).values(spec=GPUS.c.spec.op("-")(newer)))
        assert gpus.get_spec(connection, "h100-nvl-94gb").link_domain_gpus is None
        assert gpus.seed(connection, load_seed_specs()) == len(specs) - 1
        assert gpus.get_spec(connection, "h100-nvl-94gb") == specs["h100-nvl-94gb"]
        assert gpus.get_spec(connection, "titan-v") == specs["titan-v"]  # the user's


def test_insert_and_delete(database: Database) -> None:
    with database.begin() as connection:
        spec = replace(gpus.get_spec(connection, "titan-v"), id="mine", name="Mine", aliases=())
        gpus.insert_spec(connection, spec, "user")
        with pytest.raises(Conflict):
            gpus.insert_spec(connection, spec, "user")
        gpus.delete_spec(connection, "mine")
        for call in (lambda: gpus.delete_spec(connection, "mine"), lambda: gpus.get_spec(connection, "mine")):
            with pytest.raises(NotFound):
                call()
        with pytest.raises(NotFound):
            gpus.update_spec(connection, spec)


def test_seeding_prices_again_changes_nothing_and_a_dropped_one_is_withdrawn(database: Database) -> None:
    shipped, own = shipped_prices(), Price(gpu_id="b200", usd_per_hour=5.0, source="mine", dated=date(2026, 11, 1))
    later = datetime.now(UTC) + timedelta(hours=1)
    with database.begin() as connection:
        gpus.insert_prices(connection, [own])
        before = revision.current(connection)
        assert gpus.seed_prices(connection, shipped) == 0
        assert revision.current(connection) == before
    with database.begin() as connection:
        then = connection.execute(sa.func.clock_timestamp()).scalar_one()
    with database.begin() as connection:
        assert gpus.seed_prices(connection, shipped[1:]) == 1
    with database.begin() as connection:
        assert stored(gpus.load_prices(connection)) == {own, *shipped[1:]}
        assert stored(gpus.price_page(connection, {}, limit=1_000)) == {own, *shipped[1:]}
        assert stored(gpus.load_prices(connection, until=then)) == {own, *shipped}  # for answers that were saved then
        assert stored(gpus.load_prices(connection, until=later)) == {own, *shipped[1:]}
        assert gpus.seed_prices(connection, shipped) == 1
        assert stored(gpus.load_prices(connection)) == {own, *shipped}


def test_shipped_prices_are_not_deleted(database: Database) -> None:
    with database.begin() as connection:
        shipped = [price for price in gpus.load_prices(connection) if price.shipped]
        assert gpus.remove_prices(connection, {"provider": shipped[0].provider}) == 0
        with pytest.raises(Conflict, match="ships with gpucast"):
            gpus.remove_price(connection, shipped[0].id, ANYONE)


def stored(prices: list[Price]) -> set[Price]:
    return {replace(price, id=0) for price in prices}
