"""Read measurements in gpucast's own form, as in POST /measurements: bodies by media type, files, folders of files.

CSV and Parquet may mix kinds of rows, one field per column. A column `kind` gives a row's kind: kernel, operator or
model. Without it, rows with a column `op` are operators and others kernels. A column `outcome` gives the result of a
run: rows other than "measured" are skipped and counted. Operators are read in columns; other rows as objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from app.errors import BadInput, FieldError, Malformed, NotFound, TooLarge, UnsupportedMedia
from app.formats import DEVICE
from app.formats.base import Part, PartsImporter
from app.formats.own_tables import (
    OUTCOME,
    REMARKS,
    CellReaders,
    check_column_names,
    csv_names,
    read_parquet_columns,
    read_text_columns,
    split_by_kind,
    strip_prefix,
    text_table,
)
from app.runtime.release import release
from app.wire.decoding import decode_plain
from app.wire.json_text import list_length
from app.wire.measurement_form import Objects, Upload
from app.wire.measurement_rows import cell_errors, check_lines, read_csv, read_parquet_table, read_text_table
from app.wire.table_files import DAMAGED, PARQUET, TableReader, read_schema, read_table

# Rows of a JSON list: as objects each takes some 3 kB, and half a million of them over a GiB. A table takes more rows.
MAX_JSON_ROWS = 200_000

_AS_TABLE = {"op", OUTCOME, *REMARKS}
_PARQUET = CellReaders(read_parquet_columns, read_parquet_table)
_TEXT = CellReaders(read_text_columns, read_text_table)


def read_measurements(
    body: bytes, content_type: str | None, *, max_rows: int, read_table: TableReader = read_table
) -> Upload:
    """Return the measurements of a body, JSON by default. Raises BadInput for an empty body."""
    media = (content_type or "application/json").partition(";")[0].strip().lower()
    reader = READERS.get(media)
    if reader is None:
        raise UnsupportedMedia(f"Measurements are read as {', '.join(READERS)}; this is {media!r}.")
    upload = reader(body, max_rows, read_table)
    if not len(upload):
        raise BadInput("The body has no measurement.")
    return upload


def _json(body: bytes, max_rows: int, _: TableReader) -> Upload:
    """Read a list of objects that are already in the API's form."""
    if (count := list_length(body)) > (most := min(max_rows, MAX_JSON_ROWS)):
        raise TooLarge(f"At most {most:,} rows are accepted at once in JSON; this list has {count:,}. Send Parquet.")
    rows = decode_plain(body)
    if not isinstance(rows, list):
        raise BadInput("Send a JSON list of measurements, also for a single one.")
    errors = [FieldError((k,), "a measurement is an object") for k, row in enumerate(rows) if not isinstance(row, dict)]
    if errors:
        refused = cell_errors(errors, "list")
        release(errors)
        release(rows)
        raise refused
    return Upload((Objects.of(rows),))


def _csv(body: bytes, max_rows: int, _: TableReader) -> Upload:
    check_lines(body)
    names = csv_names(body)
    if _AS_TABLE.isdisjoint(map(strip_prefix, names)):
        return Upload((Objects.of(read_csv(body, max_rows=max_rows)),))
    table = text_table(body, check_column_names(names))
    if table.num_rows > max_rows:
        raise TooLarge(f"At most {max_rows:,} rows are accepted at once; this file has {table.num_rows:,}.")
    return split_by_kind(table, _TEXT)


def _parquet(body: bytes, max_rows: int, read_table: TableReader) -> Upload:
    try:
        schema = read_schema(body, PARQUET)
        names = check_column_names(schema.names)
        table = read_table(body, PARQUET, max_rows).rename_columns(names)
        return split_by_kind(table, _PARQUET, _device(schema.metadata))
    except DAMAGED as error:
        raise Malformed(f"The Parquet file cannot be read: {str(error)[:200]}") from error


def _device(metadata: Mapping[bytes, bytes] | None) -> Mapping[str, Any] | None:
    """Return the GPU specification in a file's metadata, or None."""
    specification = (metadata or {}).get(DEVICE)
    if specification is None:
        return None
    device = decode_plain(specification)
    if not isinstance(device, dict):
        where = DEVICE.decode()
        raise BadInput(f"{where} is not a GPU.", errors=[FieldError((where,), "must be a GPU's specification in JSON")])
    return device


READERS: dict[str, Callable[[bytes, int, TableReader], Upload]] = {
    "application/json": _json,
    "text/csv": _csv,
    "application/vnd.apache.parquet": _parquet,
    "application/x-parquet": _parquet,
}


_MEDIA = {".json": "application/json", ".csv": "text/csv", ".parquet": "application/vnd.apache.parquet"}
# For local files only memory is the limit.
_MAX_ROWS = 100_000_000


def read(path: Path) -> Iterator[Part]:
    """Yield the parts of each file: operators, and other rows."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    readable = [file for file in files if file.suffix in _MEDIA]
    if not readable:
        raise NotFound(f"{path} holds no measurements: a file is {', '.join(_MEDIA)}, or a folder of such files.")
    for file in readable:
        upload = read_measurements(file.read_bytes(), _MEDIA[file.suffix], max_rows=_MAX_ROWS)
        # Reported once per file, even if it has no measured row.
        yield Part(file.name, Objects.of(()), None, upload.skipped, upload.ignored)
        for sent in upload.parts:
            yield Part(file.name, sent, None, device=upload.device)


IMPORTERS = {"measurements": PartsImporter("measurements", read)}
