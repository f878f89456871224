"""Import results of serving benchmarks: measurements of kind `serving`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.errors import BadInput, FieldError
from app.formats.base import Imported, Importer, Row, Skipped
from app.formats.serving.files import read_files
from app.formats.serving.rows import DeploymentOptions, describe, to_row


@dataclass(frozen=True, slots=True)
class ServingImporter:
    """Importer of benchmark results: like Importer, for files of a deployment that the user describes."""

    name: str

    def with_options(self, paths: Sequence[Path], options: DeploymentOptions) -> Importer:
        """Return the importer of these files and folders."""
        return Importer(self.name, lambda _: read(paths, options))


def read(paths: Sequence[Path], options: DeploymentOptions) -> Imported:
    """Return the measurements of files and folders.

    A result of which neither its file nor the options say enough is left out with the option that it needs. Raises
    BadInput if each one is left out.
    """
    found, skipped = read_files(paths)
    rows, where, notes = list[Row](), list[str](), list[str]()
    for one in found:
        try:
            rows.append(to_row(one.point, one.tool, options))
        except BadInput as error:
            skipped.append(Skipped(one.where, error.detail))
            continue
        where.append(one.where)
        notes.append(f"{one.where}, {one.tool}: {describe(one.point)}")
    if not rows:
        first = {skip.reason: skip.where for skip in reversed(skipped)}
        reasons = [FieldError((place,), reason) for reason, place in reversed(first.items())]
        raise BadInput("No result can be stored: each is left out.", errors=reasons)
    return Imported(tuple(rows), tuple(where), {}, tuple(skipped), tuple(notes))


IMPORTERS = {"serving": ServingImporter("serving")}
