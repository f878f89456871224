"""Bodies of measurements: operators in columns where a file has the column `op`, rows as objects otherwise."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import BadInput
from app.services.measurements import operator_uploads, tabular
from app.services.measurements.ingest import Sent
from app.services.measurements.operator_uploads import csv_names, own_name
from app.services.measurements.tabular import READERS, media_of, read_rows

__all__ = ["READERS", "read_measurements"]


def read_measurements(body: bytes, content_type: str | None, *, max_rows: int) -> Sent:
    """Measurements of a body by its media type; JSON where none is named. Empty bodies are refused."""
    reader = READERS.get(media_of(content_type))
    if reader is tabular.read_csv and _holds_operators(csv_names(body)):
        sent = operator_uploads.read_csv(body, max_rows=max_rows)
    elif reader is tabular.read_parquet and _holds_operators(_parquet_names(body)):
        sent = operator_uploads.read_parquet(body, max_rows=max_rows)
    else:
        return read_rows(body, content_type, max_rows=max_rows)
    if not len(sent):
        raise BadInput("There is no measurement in the body.")
    return sent


def _holds_operators(names: list[str]) -> bool:
    return any(own_name(name) == "op" for name in names)


def _parquet_names(body: bytes) -> list[str]:
    """Names of a Parquet file's columns; empty where it cannot be read, which its reader then says."""
    try:
        names: list[str] = pq.read_schema(pa.BufferReader(body)).names
    except (pa.ArrowException, OSError, ValueError):
        return []
    return names
