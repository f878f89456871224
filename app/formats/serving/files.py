"""Import files of results of LLM serving, whose format is found from their content: measurements of kind `serving`.

What the user says of the deployment completes or replaces what a file says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from app.errors import BadInput, FieldError, NotFound
from app.formats.base import Imported, Importer, Row, SkippedRow
from app.formats.serving.reader import FP4, BenchmarkPoint, LeftOut, ToolReader
from app.formats.serving.tools import READERS
from app.networks.builtin import canonical_name, find_config, names
from app.networks.run import has_formats
from app.stacks.registry import engine_in

# Tags of images as v0.11.0, 0.5.9-cu130 and 1.1.0rc2.
_TAG = re.compile(r":v?(\d+\.\d+(?:\.\d+)?)")
# What models are published under beside their name, which changes no time.
_TUNED = re.compile(r"-(instruct|chat|it|hf)$")
_LONGEST_SOURCE = 200


@dataclass(frozen=True, slots=True)
class DeploymentOptions:
    """What the user says of the deployment; it replaces what a file says.

    model   name of a built-in network, or a Hugging Face configuration
    image   container image of the engine
    fields  further fields of the workload, nested as in the API
    """

    gpu: str | None = None
    software: str | None = None
    model: str | Mapping[str, Any] | None = None
    dtype: str | None = None
    tensor: int | None = None
    image: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


def to_row(point: BenchmarkPoint, tool: str, options: DeploymentOptions) -> Row:
    """Return the measurement. Raises BadInput that names the option for what neither file nor user say."""
    image = options.image or point.image
    row: Row = {
        "gpu": _known(options.gpu or point.gpu, "GPU", "--gpu NAME"),
        "software": _software(point, image, options),
        "source": (f"{tool}, {image}" if image else tool)[:_LONGEST_SOURCE],
        "latency_ms": point.e2e_s * 1e3,
        "serving": {"ttft_ms": point.ttft_s * 1e3, "tpot_ms": point.tpot_s * 1e3},
        "runs": point.requests,
        "workload": _workload(point, options),
    }
    if point.measured_at is not None:
        row["measured_at"] = point.measured_at.isoformat()
    return row


def describe(point: BenchmarkPoint) -> str:
    """Return the point as a line: load, lengths, times and throughput."""
    load = ", ".join(f"{name} {value:.6g}" for name, value in point.load.items()) or "load of --set"
    rate = "" if point.output_tokens_per_s is None else f", {point.output_tokens_per_s:,.0f} tokens/s"
    return (
        f"{load}, {point.input_tokens:.0f} + {point.output_tokens:.0f} tokens: TTFT {point.ttft_s * 1e3:.4g} ms,"
        f" TPOT {point.tpot_s * 1e3:.4g} ms, request {point.e2e_s * 1e3:.5g} ms{rate}, {point.requests:,} requests"
    )


def _known(value: str | None, what: str, option: str) -> str:
    if value is None:
        raise BadInput(f"the {what} is unknown: add {option}")
    return value


def _software(point: BenchmarkPoint, image: str | None, options: DeploymentOptions) -> str:
    """Return the stack and its version: the user's, else those of the file and of its image's name and tag."""
    tag = _TAG.search(image or "")
    stack = options.software or point.engine or engine_in(image or "")
    option = "--software NAME-VERSION (vllm-0.19.0) or --image NAME:TAG"
    stack = _known(stack, "serving stack", option)
    if any(character.isdigit() for character in stack):
        return stack
    version = point.version or (tag[1] if tag else None)
    return f"{stack}-{_known(version, f'version of {stack}', option)}"


def _workload(point: BenchmarkPoint, options: DeploymentOptions) -> dict[str, Any]:
    """Return the workload, with the user's fields in place of the file's."""
    network = _network(point, options)
    fields = {**point.fields, **options.fields}
    fields.pop("config", None)
    split = {**point.parallelism, **fields.pop("parallelism", {})}
    if options.tensor is not None:
        split["tensor"] = options.tensor
    if "tensor" not in split:
        raise BadInput("how many GPUs share a model is unknown: add --tensor N")
    load = fields.pop("load", None) or point.load
    if not load:
        option = "--set load.concurrency=N or --set load.rate_per_s=RATE"
        raise BadInput(f"the load is unknown: add {option}")
    dtype = options.dtype or _dtype(point, network)
    spread = fields.get("length_spread", point.length_spread or 0.0)
    # Of lengths that are means, the user's spread tells the most.
    scale = 1.0 - spread / 2.0 if point.length_spread is None else 1.0
    workload = {
        "kind": "serving",
        **network,
        **({} if dtype is None else {"dtype": dtype}),
        "parallelism": split,
        "input_tokens": max(round(point.input_tokens / scale), 1),
        "output_tokens": max(round(point.output_tokens / scale), 1),
        "length_spread": spread,
        "load": dict(load),
    }
    return workload | fields


def _network(point: BenchmarkPoint, options: DeploymentOptions) -> dict[str, Any]:
    if isinstance(options.model, Mapping):
        return {"config": dict(options.model)}
    if options.model is not None:
        return {"name": canonical_name(options.model) or options.model}
    if "config" in point.fields:
        return {"config": point.fields["config"]}
    published = (point.model or "").lower()
    base = _TUNED.sub("", published)
    for name in (published, base, published.rsplit("/", 1)[-1], base.rsplit("/", 1)[-1]):
        if known := canonical_name(name):
            return {"name": known}
    what = f"the network is none that is built in: {point.model}" if published else "the network is unknown"
    raise BadInput(f"{what}; add --model CONFIG.json, or one of {', '.join(names())}")


def _dtype(point: BenchmarkPoint, network: Mapping[str, Any]) -> str | None:
    """Return the format that the file tells; None: the model's own."""
    if point.dtype != FP4:
        return point.dtype
    if has_formats(network.get("config") or find_config(network.get("name", "")) or {}):
        return None
    raise BadInput("the format of 4 bits is unknown, as the configuration has none: add --dtype NAME (nvfp4, ...)")


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
