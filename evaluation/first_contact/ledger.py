"""The ledger: a Parquet file per source with the errors of the first version that was asked, written once.

Columns: `case`; `asked`, as a user asks or with the settings of launch scripts; those of Levels; `error`, ln(measured
over predicted); `below` and `above`, the interval's half-widths in log space at 80 %; `reason`, if there is no answer.
The file's metadata has the source, its origin, what is assumed, and the version and commit that answered, and when.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import log
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from app.config import CHECKOUT
from app.engine.snapshot import Snapshot
from app.errors import BadInput, GpucastError, NotFound
from app.services.compare.compare import compare
from app.services.compare.request import read_compare
from app.services.dispatch import predict_workload
from app.wire.predict_body import read_request
from evaluation.first_contact.question import Levels, Question, Source
from evaluation.first_contact.reading import READINGS, Figure, NoFigure

LEDGER = CHECKOUT / "evaluation" / "first_contact"
_MOST_ROWS = 100_000
_AT_ONCE, _TIMEOUT_S, _BLOCK = 4, 120.0, 500
_SCHEMA = pa.schema(
    [("case", pa.string()), ("asked", pa.string())]
    + [(name, pa.int32() if name in {"devices", "nodes"} else pa.string()) for name in Levels._fields]
    + [(name, pa.float32()) for name in ("error", "below", "above")]
    + [("reason", pa.string())]
)
# Answers a request's JSON to a route. Raises NoFigure with the reason of a refusal.
Ask = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


def ask_shipped(snapshot: Snapshot) -> Ask:
    """Return what answers from this checkout's predictors."""

    def ask(route: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        text = msgspec.json.encode(body)
        try:
            if route == "/compare":
                answer: Any = compare(snapshot, read_compare(text), max_rows=_MOST_ROWS)
            else:
                answer = predict_workload(snapshot, read_request(text), max_rows=_MOST_ROWS, advise=False)
        except GpucastError as error:
            raise NoFigure(str(error.detail)) from error
        decoded: Mapping[str, Any] = msgspec.json.decode(msgspec.json.encode(answer))
        return decoded

    return ask


def ask_service(client: httpx.Client) -> Ask:
    """Return what asks a running service, of any version."""

    def ask(route: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        response = client.post(route, content=msgspec.json.encode(body), timeout=_TIMEOUT_S)
        answer: Mapping[str, Any] = response.json()
        if response.status_code != httpx.codes.OK:
            raise NoFigure(str(answer.get("detail", answer))[:300])
        return answer

    return ask


def path_of(source: Source | str) -> Path:
    """Return the ledger's file of a source."""
    name = source if isinstance(source, str) else source.recorded_in or source.name
    return LEDGER / f"{name}.parquet"


def record(source: Source, folder: Path, ask: Ask, version: Mapping[str, str], progress: Callable[[str], None]) -> Path:
    """Write the first contact of a source. Raises BadInput where the ledger has it: it is never replaced."""
    path = path_of(source)
    if path.exists():
        raise BadInput(f"{source.name} has its first contact in {path.name}, which is never replaced.")
    rows = answers_of(source, folder, ask, progress)
    about = {"source": source.name, "origin": source.origin, "assumptions": list(source.assumptions), **version}
    about["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    table = pa.Table.from_pylist(rows, schema=_SCHEMA.with_metadata({"first_contact": json.dumps(about)}))
    pq.write_table(table, path, compression="zstd")
    return path


def answers_of(source: Source, folder: Path, ask: Ask, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the ledger's rows of a source. Raises NotFound where the folder lacks it."""
    questions = list(source.questions(folder))
    rows: list[dict[str, Any]] = []
    known: dict[bytes, Mapping[str, Any]] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for start in range(0, len(questions), _BLOCK):
            block = questions[start : start + _BLOCK]
            rows += pool.map(lambda question: _row(question, ask, known), block)
            progress(f"{source.name}: {len(rows)} of {len(questions)}")
    return rows


def _row(question: Question, ask: Ask, known: dict[bytes, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the ledger's row of a question; `known` has the answers of equal requests."""
    row = {"case": question.case, "asked": question.asked, **question.levels._asdict()}
    if not question.parts:
        return row | {"reason": question.reason}
    read = READINGS[question.reading]
    figure = Figure(0.0, 0.0, 0.0)
    try:
        for times, body in question.parts:
            key = msgspec.json.encode(body)
            if key not in known:
                known[key] = ask(read.route, body)
            figure = figure.plus(times, read.figure(known[key]))
    except NoFigure as refusal:
        return row | {"reason": str(refusal)}
    return row | {
        "error": log(question.measured / figure.predicted),
        "below": log(figure.predicted / figure.low),
        "above": log(figure.high / figure.predicted),
    }


def ledger(sources: Sequence[str] = ()) -> Iterator[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """Yield what is known of each source of the ledger, and its rows. Raises NotFound for a source without a file."""
    for path in [path_of(name) for name in sources] or sorted(LEDGER.glob("*.parquet")):
        if not path.is_file():
            raise NotFound(f"No first contact with {path.stem}: gpucast evaluate first-contact records it.")
        table = pq.read_table(path)
        yield json.loads(table.schema.metadata[b"first_contact"]), table.to_pylist()
