"""gpucast's own form, as POST /measurements takes it: JSON, CSV or Parquet, one file or a folder of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from app.errors import NotFound
from app.services.measurements.files import read_measurements
from app.services.measurements.importers.base import Part, PartsImporter
from app.wire.measurements.upload import Objects

_MEDIA = {".json": "application/json", ".csv": "text/csv", ".parquet": "application/vnd.apache.parquet"}
# A file on the own disk: only memory limits it.
_MAX_ROWS = 100_000_000


def read(path: Path) -> Iterator[Part]:
    """The parts of each file: operators, and other rows."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = [file for file in files if file.suffix in _MEDIA]
    if not found:
        raise NotFound(f"{path} holds no measurements: a file is {', '.join(_MEDIA)}, or a folder of such files.")
    for file in found:
        upload = read_measurements(file.read_bytes(), _MEDIA[file.suffix], max_rows=_MAX_ROWS)
        # What was left out and ignored is told once, also of a file without any measured row.
        yield Part(file.name, Objects.of(()), None, upload.skipped, upload.ignored)
        for sent in upload.parts:
            yield Part(file.name, sent, None, device=upload.device)


IMPORTER = PartsImporter("measurements", read)
