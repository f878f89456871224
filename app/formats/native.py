"""Read gpucast's own measurement format, as in POST /measurements: JSON, CSV or Parquet, a file or a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from app.errors import NotFound
from app.formats.base import Part, PartsImporter
from app.formats.bodies import read_measurements
from app.wire.measurements.upload import Objects

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
