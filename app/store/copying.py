"""COPY through psycopg, which SQLAlchemy does not support. `Database.begin` reports psycopg's errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import psycopg
from psycopg import sql
from sqlalchemy import Connection

from app.store.binary_copy import SIGNATURE, TRAILER


def driver_of(connection: Connection) -> psycopg.Connection[Any]:
    """Return psycopg's connection under SQLAlchemy's."""
    driver: Any = connection.connection.driver_connection
    return cast("psycopg.Connection[Any]", driver)


def run(connection: Connection, statements: str) -> None:
    """Run statements without parameters in one round trip, unprepared."""
    driver_of(connection).execute(statements.encode(), prepare=False)


def copy_in(connection: Connection, statement: str, parts: Iterable[bytes]) -> None:
    """Run COPY ... FROM STDIN with encoded rows."""
    with driver_of(connection).cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.write(SIGNATURE)
        for part in parts:
            copy.write(part)
        copy.write(TRAILER)


def copy_out(connection: Connection, statement: str, given: Sequence[Any]) -> bytearray:
    """Return the output of COPY ... TO STDOUT with parameters `given`."""
    body = bytearray()
    with driver_of(connection).cursor() as cursor, cursor.copy(statement.encode(), given) as copy:
        for part in copy:
            body += part
    return body


def read_copy(connection: Connection, statement: sql.Composed, write: Callable[[bytes], object]) -> int:
    """Hand the output of COPY ... TO STDOUT to `write`, part by part; returns the number of rows."""
    with driver_of(connection).cursor() as cursor:
        with cursor.copy(statement) as copy:
            for part in copy:
                write(bytes(part))
        return cursor.rowcount


def write_copy(connection: Connection, statement: sql.Composed, parts: Iterable[bytes]) -> int:
    """Run COPY ... FROM STDIN with these parts; returns the number of rows."""
    with driver_of(connection).cursor() as cursor:
        with cursor.copy(statement) as copy:
            for part in parts:
                copy.write(part)
        return cursor.rowcount
