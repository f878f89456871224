"""What this version answers to all questions of whole workloads: errors, the operators' own bands, and levels.

The engine that answers has no error model, so intervals are those of operators and waits alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from app.bands.error_model import COMPONENTS, ErrorModel, Levels, error_models
from app.engine.snapshot import Snapshot
from app.errors import NotFound
from evaluation.first_contact.error_model import FIGURES
from evaluation.first_contact.ledger import Ask, ask_shipped
from evaluation.first_contact.question import Question, Row, Source
from evaluation.first_contact.reading import READINGS, Figure, NoFigure
from evaluation.study import Progress

_AT_ONCE, _BLOCK = 4, 500


def answers(
    snapshot: Snapshot, folder: Path, sources: Sequence[Source], kept: Path | None, progress: Progress
) -> list[Row]:
    """Return a row for each answered question of the sources whose data are at hand; `kept` is a file that keeps them.

    Columns: source, case, asked, figure, error, below and above (own band), and the fields of Levels.
    """
    if kept is not None and kept.is_file():
        rows: list[Row] = pq.read_table(kept).to_pylist()
        return rows
    rows, ask, known = [], ask_shipped(_without_error_model(snapshot)), dict[bytes, Mapping[str, Any]]()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for source in sources:
            try:
                questions = [each for each in source.questions(folder) if _is_whole(each)]
            except NotFound as missing:
                progress(missing.detail)
                continue
            for start in range(0, len(questions), _BLOCK):
                answered = pool.map(lambda each: _answer(each, ask, known), questions[start : start + _BLOCK])
                rows += [
                    {"source": source.recorded_in or source.name, "study": source.name, **row}
                    for row in answered
                    if row
                ]
                progress(f"{source.name}: {start} of {len(questions)}")
    if kept is not None:
        pq.write_table(pa.Table.from_pylist(rows), kept)
    return rows


def _is_whole(question: Question) -> bool:
    """Whether a question is one of a whole answer: of memory all that a device holds, not a part."""
    figure = question.levels.figure
    return bool(question.parts) and figure in FIGURES and (figure != "memory" or question.reading == "memory")


def _without_error_model(snapshot: Snapshot) -> Snapshot:
    none = ErrorModel(dict.fromkeys(COMPONENTS, 0.0), {"": 0.0}, {})
    return Snapshot.of(replace(snapshot.engine, error_models=dict.fromkeys(error_models(), none)))


def _answer(question: Question, ask: Ask, known: dict[bytes, Mapping[str, Any]]) -> Row | None:
    """Return the row of a question; None without an answer. `known` has the answers of equal requests."""

    def answer(route: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        key = route.encode() + msgspec.json.encode(body)
        if key not in known:
            known[key] = ask(route, body)
        return known[key]

    read = READINGS[question.reading]
    whole, time = Figure(0.0, 0.0, 0.0), Figure(0.0, 0.0, 0.0)
    try:
        for times, body in question.parts:
            step = {name: value for name, value in body.items() if name != "rank_by"} | {"detail": True}
            answered = answer("/predict", step)
            own = READINGS["latency"].figure(answered) if read.route != "/predict" else None
            part = read.figure(answered if own is None else answer(read.route, body))
            whole, time = whole.plus(times, part), time.plus(times, own or part)
    except NoFigure:
        return None
    levels, of_time = _levels(answered, question.reading), question.levels.figure != "memory"
    figure = FIGURES[question.levels.figure]
    return {
        "case": question.case,
        "asked": question.asked,
        "figure": "network" if levels.architecture == "convnet" and figure != "diffusion" else figure,
        "error": log(question.measured / whole.predicted),
        "below": log(time.predicted / time.low) if of_time else 0.0,
        "above": log(time.high / time.predicted) if of_time else 0.0,
        **levels._asdict(),
    }


def _levels(answer: Mapping[str, Any], reading: str) -> Levels:
    """Return the levels of an answer, which its widths name; of a sum the last part's, which most of it is."""
    (row,) = answer["predictions"]
    served = row.get("serving", {}).get(f"{reading.partition(' ')[0]}_ms")
    parts = row["width"] if served is None else served["width"]
    named = {part["component"]: part["level"] for part in parts}
    return Levels(*(named["deployment" if name == "split" else name] for name in Levels._fields))
