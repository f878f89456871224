"""Import results of serving benchmarks: measurements of kind `serving`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.errors import BadInput, FieldError
from app.services.measurements.importers.base import Imported, Importer
from app.services.measurements.importers.serving.files import read_files
from app.services.measurements.importers.serving.rows import DeploymentOptions, describe, to_row


@dataclass(frozen=True, slots=True)
class ServingImporter:
    """Importer of benchmark results: like Importer, for files of a deployment that the user describes."""

    name: str

    def with_options(self, paths: Sequence[Path], options: DeploymentOptions) -> Importer:
        """Return the importer of these files and folders."""
        return Importer(self.name, lambda _: read(paths, options))


def read(paths: Sequence[Path], options: DeploymentOptions) -> Imported:
    """Return the measurements of files and folders. Raises BadInput that names what neither they nor options say."""
    found, skipped = read_files(paths)
    if not found:
        reasons = [FieldError((skip.where,), skip.reason) for skip in skipped]
        raise BadInput("No result can be stored: each is left out.", errors=reasons)
    rows = tuple(to_row(one.point, one.tool, one.where, options) for one in found)
    notes = tuple(f"{one.where}, {one.tool}: {describe(one.point)}" for one in found)
    return Imported(rows, tuple(one.where for one in found), {}, tuple(skipped), notes)


IMPORTER = ServingImporter("serving")
