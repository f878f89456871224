"""Read files of benchmark results, whose format is found from their content."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from app.errors import BadInput, NotFound
from app.formats.base import Skipped
from app.formats.serving import (
    genai_perf,
    guidellm,
    inference_perf,
    inferencex,
    own,
    sglang,
    vllm,
)
from app.formats.serving.point import BenchmarkPoint, LeftOut, Reader

# In order of trial: the formats of the first have names that no other has.
READERS: tuple[Reader, ...] = (
    own.READER,
    guidellm.READER,
    inference_perf.READER,
    genai_perf.READER,
    inferencex.READER,
    sglang.READER,
    vllm.READER,
)
_SUFFIXES = (".json", ".jsonl")


class Found(NamedTuple):
    """A point, the tool that measured it, and its place: the file, and the number of the record if it has several."""

    where: str
    tool: str
    point: BenchmarkPoint


def read_files(paths: Sequence[Path]) -> tuple[list[Found], list[Skipped]]:
    """Return the points of files and of folders with all below them, and the results that are left out.

    Raises NotFound for a folder without such files, BadInput for a file that is not JSON.
    """
    found, skipped = list[Found](), list[Skipped]()
    for path in paths:
        for file in _files(path):
            for one in _points(file, file.relative_to(path).as_posix() if path.is_dir() else file.name):
                (found if isinstance(one, Found) else skipped).append(one)  # type: ignore[arg-type]
    return found, skipped


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
    if not files:
        raise NotFound(f"{path} holds no results: they are {' or '.join(_SUFFIXES)} files.")
    return files


def _points(file: Path, name: str) -> Iterator[Found | Skipped]:
    """Yield the points of a file; what is of no known format is one entry, however many records it has."""
    documents = _documents(file)
    known = [(document, reader) for document in documents if (reader := reader_of(document)) is not None]
    if not known:
        tools = ", ".join(dict.fromkeys(reader.tool for reader in READERS))
        yield Skipped(name, f"no result of {tools}")
        return
    records = [(record, reader) for document, reader in known for record in reader.records(document)]
    for number, (record, reader) in enumerate(records, 1):
        where = name if len(records) == 1 else f"{name}:{number}"
        try:
            yield Found(where, reader.tool, reader.read(record))
        except LeftOut as reason:
            yield Skipped(where, str(reason))
    if len(known) < len(documents):
        yield Skipped(name, f"{len(documents) - len(known)} records are no results")


def reader_of(document: Any) -> Reader | None:
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
