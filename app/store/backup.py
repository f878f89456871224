"""Back up an installation into one file, and restore it: the rows of every table, trained artefacts among them.

The file is a ZIP archive: `contents.json` (`Contents`), and `tables/NAME`, PostgreSQL's COPY in text form. All rows are
of one snapshot, so versions and their artefacts agree. No program of PostgreSQL is needed, and the server that restores
may be of another version than the one that was backed up.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import Connection

from app import __version__
from app.errors import BadInput, Conflict
from app.store import schema, versions
from app.store.driver import read_copy, write_copy
from app.store.sql_tables import ARTIFACTS, METADATA, REVISION

# What a file that is no backup, or was changed, raises: the archive's, the contents', and the database's errors.
_OF_ARCHIVE = (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError)
_OF_DATABASE = tuple(
    kind for of in (psycopg, sa.exc) for kind in (of.DataError, of.IntegrityError, of.ProgrammingError)
)
_DAMAGED = (*_OF_ARCHIVE, msgspec.MsgspecError, *_OF_DATABASE)
FORMAT = 1
CONTENTS = "contents.json"
_READ_BYTES = 1 << 20


class Table(msgspec.Struct):
    """One table of a backup."""

    name: str
    columns: list[str]
    rows: int


class Contents(msgspec.Struct):
    """What a backup holds; `schema` is the version of the tables, `missing` the artefacts that were not in them."""

    format: int
    release: str
    schema: str
    made_at: str
    tables: list[Table]
    sequences: dict[str, int]
    missing: list[str]


def back_up(connection: Connection, target: Path) -> Contents:
    """Write a backup to a file that does not exist yet; `connection` is at the start of its transaction."""
    connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
    version = schema.current(connection)
    if version is None:
        raise Conflict("The database has no tables of gpucast: there is nothing to back up.")
    if ARTIFACTS.name not in _tables(connection):
        raise Conflict(f"The database has schema {version}, of a release before 0.3.0: `gpucast migrate` first.")
    try:
        target.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        raise Conflict(f"{target} exists; backups are not overwritten.") from None
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            tables = [_write_table(connection, archive, name) for name in _tables(connection)]
            contents = Contents(
                format=FORMAT,
                release=__version__,
                schema=version,
                made_at=datetime.now(UTC).isoformat(timespec="seconds"),
                tables=tables,
                sequences=_sequences(connection),
                missing=versions.missing_artifacts(connection),
            )
            archive.writestr(CONTENTS, msgspec.json.format(msgspec.json.encode(contents)))
    except BaseException:
        target.unlink()
        raise
    return contents


def restore(connection: Connection, source: Path, *, replace: bool) -> Contents:
    """Fill a database without tables from a backup, and migrate it to this release; all of it or nothing.

    With `replace`, tables of gpucast are removed first. Raises Conflict if there are some otherwise, and BadInput for a
    file that is no backup, is damaged, or is of a newer release.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            contents = msgspec.json.decode(archive.read(CONTENTS), type=Contents)
            if contents.format != FORMAT:
                raise BadInput(f"{source} has format {contents.format}; this release reads format {FORMAT}.")
            if not contents.schema:
                raise BadInput(f"{source} names no schema: it is no backup of gpucast, or is damaged.")
            _restore(connection, archive, contents, replace=replace)
            return contents
    except _DAMAGED as error:
        cause = str(getattr(error, "orig", error)).partition("\n")[0]  # SQLAlchemy's names the statement
        raise BadInput(f"{source} is no backup of gpucast, or is damaged: {cause}") from error
    except OSError as error:
        raise BadInput(f"{source} cannot be read: {error.strerror}") from error


def _restore(connection: Connection, archive: zipfile.ZipFile, contents: Contents, *, replace: bool) -> None:
    before = _clear(connection, replace=replace)
    schema.migrate(connection, contents.schema)
    _check_tables(connection, contents)
    for name in _tables(connection):
        connection.execute(sa.text(f"TRUNCATE {_quoted(name)} CASCADE"))
    for table in contents.tables:
        _read_table(connection, archive, table)
    for name, value in contents.sequences.items():
        connection.execute(sa.select(sa.func.setval(_quoted(name), value)))
    schema.migrate(connection, "head")
    # Higher than any that a running process has seen, so that all of them notice.
    highest = sa.func.greatest(REVISION.c.value, before) + 1
    connection.execute(sa.update(REVISION).values(value=highest))
    unlike = set(versions.missing_artifacts(connection)) - set(contents.missing)
    if unlike:
        raise BadInput(f"The backup's artefacts are not those that its versions name: {', '.join(sorted(unlike))}.")


def _clear(connection: Connection, *, replace: bool) -> int:
    """Remove the tables of a database if `replace`; returns the revision that they had, or 0."""
    schema.lock(connection)
    if not _tables(connection):
        return 0
    if not replace:
        raise Conflict(
            "The database has tables of gpucast, with the rows that are in them. Restore into an empty database, or"
            " say --replace to remove them first."
        )
    before = connection.execute(sa.select(REVISION.c.value)).scalar_one()
    schema.remove(connection)
    return int(before)


def _check_tables(connection: Connection, contents: Contents) -> None:
    """Refuse a backup whose tables or columns are not those of its schema version."""
    present = {name: set(_columns(connection, name)) for name in _tables(connection)}
    expected = {table.name: set(table.columns) for table in contents.tables}
    if present != expected:
        raise BadInput(f"The backup does not hold the tables of schema {contents.schema}.")


def _tables(connection: Connection) -> list[str]:
    """Names of the tables of gpucast and its queue, each after those that its rows refer to."""
    ordered = [name for name, _ in sa.inspect(connection).get_sorted_table_and_fkc_names() if name is not None]
    return [name for name in ordered if name in METADATA.tables or name.startswith(schema.FOREIGN_PREFIX)]


def _columns(connection: Connection, table: str) -> list[str]:
    return [column["name"] for column in sa.inspect(connection).get_columns(table) if "computed" not in column]


def _sequences(connection: Connection) -> dict[str, int]:
    """Last value of each sequence of our tables, so that ids of removed rows are not given out again."""
    query = "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = current_schema() AND last_value > 0"
    last_values = {str(name): int(value) for name, value in connection.execute(sa.text(query))}
    tables = tuple(f"{name}_" for name in _tables(connection))
    return {name: value for name, value in last_values.items() if name.startswith(tables)}


def _write_table(connection: Connection, archive: zipfile.ZipFile, name: str) -> Table:
    columns = _columns(connection, name)
    statement = sql.SQL("COPY {} ({}) TO STDOUT").format(*_identifiers(name, columns))
    with archive.open(f"tables/{name}", "w", force_zip64=True) as member:
        rows = read_copy(connection, statement, member.write)
    return Table(name, columns, rows)


def _read_table(connection: Connection, archive: zipfile.ZipFile, table: Table) -> None:
    """Copy the rows in. Triggers, such as those that tell the queue of a job, have run when the rows were written."""
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(*_identifiers(table.name, table.columns))
    connection.execute(sa.text(f"ALTER TABLE {_quoted(table.name)} DISABLE TRIGGER USER"))
    with archive.open(f"tables/{table.name}") as member:
        rows = write_copy(connection, statement, iter(lambda: member.read(_READ_BYTES), b""))
    connection.execute(sa.text(f"ALTER TABLE {_quoted(table.name)} ENABLE TRIGGER USER"))
    if rows != table.rows:
        raise BadInput(f"The backup has {rows} rows of {table.name}, and says that there are {table.rows}.")


def _identifiers(table: str, columns: Sequence[str]) -> Iterator[sql.Composable]:
    yield sql.Identifier(table)
    yield sql.SQL(", ").join(map(sql.Identifier, columns))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
