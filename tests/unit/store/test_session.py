"""Transactions, and what happens to connections that were lost meanwhile."""

import pytest
import sqlalchemy as sa

from app.config import Settings
from app.store.session import Database


@pytest.fixture
def opened(settings: Settings) -> Database:
    """A pool of its own on the module's database."""
    return Database(settings.database_url or "")


def backend(database: Database) -> int:
    with database.begin() as connection:
        return int(connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one())


def test_a_transaction_begins_on_a_new_connection_if_those_in_the_pool_were_lost(
    database: Database, opened: Database
) -> None:
    with opened.begin(), opened.begin():
        pass  # two connections wait in the pool
    before = backend(opened)
    with database.begin() as connection:
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        connection.execute(sa.text(f"{ended} AND pid <> pg_backend_pid()"))
    assert backend(opened) != before
    assert backend(opened) == backend(opened)
    opened.close()


def test_a_transaction_of_one_state_does_not_see_what_others_commit_meanwhile(
    database: Database, opened: Database
) -> None:
    now = sa.text("SELECT count(*) FROM seen")
    with database.begin() as connection:
        connection.execute(sa.text("CREATE TABLE seen (x INT)"))
    with opened.begin(one_state=True) as old, opened.begin() as new:
        assert old.execute(now).scalar_one() == 0
        with database.begin() as connection:
            connection.execute(sa.text("INSERT INTO seen VALUES (1)"))
        assert (old.execute(now).scalar_one(), new.execute(now).scalar_one()) == (0, 1)
    with database.begin() as connection:
        connection.execute(sa.text("DROP TABLE seen"))
    opened.close()


def test_a_transaction_that_fails_is_rolled_back(database: Database, opened: Database) -> None:
    with pytest.raises(KeyError), opened.begin() as connection:
        connection.execute(sa.text("CREATE TABLE half (x INT)"))
        raise KeyError
    with database.begin() as connection:
        assert connection.execute(sa.text("SELECT to_regclass('half')")).scalar_one() is None
    opened.close()


def test_no_error_of_a_statement_shows_its_parameters(database: Database) -> None:
    """Tokens of saved answers were in the log of a statement that failed."""
    with pytest.raises(sa.exc.SQLAlchemyError) as caught, database.begin() as connection:
        connection.execute(sa.text("SELECT nothing(:token)"), {"token": "SECRET"})
    assert "nothing" in str(caught.value) and "SECRET" not in str(caught.value)
