"""Import files of benchmark results, whose format is found from their content: measurements of kind `serving`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from app.errors import BadInput, FieldError, NotFound
from app.formats.base import Imported, Importer, Row, SkippedRow
from app.formats.serving.point import BenchmarkPoint, LeftOut
from app.formats.serving.reader import ToolReader
from app.formats.serving.rows import DeploymentOptions, describe, to_row
from app.formats.serving.tools import READERS

_SUFFIXES = (".json", ".jsonl")


class PlacedPoint(NamedTuple):
    """A point, the tool that measured it, and its place: the file, and the number of the record if it has several."""

    where: str
    tool: str
    point: BenchmarkPoint


def read_files(paths: Sequence[Path]) -> tuple[list[PlacedPoint], list[SkippedRow]]:
    """Return the points of files and of folders with all below them, and the results that are left out.

    Raises NotFound for a folder without such files, BadInput for a file that is not JSON.
    """
    points, skipped = list[PlacedPoint](), list[SkippedRow]()
    for path in paths:
        for file in _files(path):
            for entry in _points(file, file.relative_to(path).as_posix() if path.is_dir() else file.name):
                if isinstance(entry, PlacedPoint):
                    points.append(entry)
                else:
                    skipped.append(entry)
    return points, skipped


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
    if not files:
        raise NotFound(f"{path} holds no results: they are {' or '.join(_SUFFIXES)} files.")
    return files


def _points(file: Path, name: str) -> Iterator[PlacedPoint | SkippedRow]:
    """Yield the points of a file; what is of no known format is one entry, however many records it has."""
    documents = _documents(file)
    known = [(document, reader) for document in documents if (reader := reader_of(document)) is not None]
    if not known:
        tools = ", ".join(dict.fromkeys(reader.tool for reader in READERS))
        yield SkippedRow(name, f"no result of {tools}")
        return
    records = [(record, reader) for document, reader in known for record in reader.records(document)]
    for number, (record, reader) in enumerate(records, 1):
        where = name if len(records) == 1 else f"{name}:{number}"
        try:
            yield PlacedPoint(where, reader.tool, reader.read(record))
        except LeftOut as reason:
            yield SkippedRow(where, str(reason))
    if len(known) < len(documents):
        yield SkippedRow(name, f"{len(documents) - len(known)} records are no results")


def reader_of(document: Any) -> ToolReader | None:
    """Return the reader whose format a JSON value has; None if it has none."""
    if not isinstance(document, Mapping):
        return None
    return next((reader for reader in READERS if reader.matches(document)), None)


def _documents(file: Path) -> list[Any]:
    """Return the JSON values of a file: one, those of a list, or one a line."""
    try:
        content = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read: {error}.") from error
    try:
        # Tools write Infinity for the rate of requests that are sent at once, which strict JSON has not.
        whole = json.loads(content)
    except (ValueError, RecursionError):
        return _lines(file, content)
    return whole if isinstance(whole, list) else [whole]


def _lines(file: Path, content: str) -> list[Any]:
    documents = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            documents.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{file}: line {number} is not JSON: {str(error)[:100]}.") from error
    return documents


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
    points, skipped = read_files(paths)
    rows, places, notes = list[Row](), list[str](), list[str]()
    for where, tool, point in points:
        try:
            rows.append(to_row(point, tool, options))
        except BadInput as error:
            skipped.append(SkippedRow(where, error.detail))
            continue
        places.append(where)
        notes.append(f"{where}, {tool}: {describe(point)}")
    if not rows:
        first = {skip.reason: skip.where for skip in reversed(skipped)}
        reasons = [FieldError((place,), reason) for reason, place in reversed(first.items())]
        raise BadInput("No result can be stored: each is left out.", errors=reasons)
    return Imported(tuple(rows), tuple(places), {}, tuple(skipped), tuple(notes))


IMPORTERS = {"serving": ServingImporter("serving")}
