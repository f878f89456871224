"""What the error model holds on sources left out in turn, and on deployments that are known; and the artefact of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from app import __version__
from app.bands.band import Band, width_at
from app.bands.error_model import FILE, Cell, ErrorModel
from app.engine.snapshot import Snapshot
from evaluation.first_contact.answers import answers
from evaluation.first_contact.error_model import (
    Cells,
    Held,
    bands_of,
    estimate,
    first_contacts,
    priors,
    skew_of,
    with_levels,
)
from evaluation.first_contact.question import ASKED, Row, Source
from evaluation.render import Report, Table, commit, markdown
from evaluation.study import Progress, grouped

# Of each source: errors and what intervals held that were asked first, what the error model holds with the source left
# out, and what this version's answers and intervals, which know the source, are.
_OF_SOURCES = {
    "figure": "",
    "source": "",
    "error at first, %": ".0f",
    "held then, %": ".0f",
    "held, %": ".0f",
    "half-width": ".2f",
    "score": ".2f",
    "error now, %": ".0f",
    "held known, %": ".0f",
    "half-width known": ".2f",
    "rows": "d",
    "cells": "d",
}
_NOT_ASKED = (np.nan, np.nan, np.nan)
MARKER, RELIABILITY = "bands: error-model --write", "reliability: error-model --write"
_MANY, _COVERAGES = 30, (0.5, 0.8, 0.95)
_COLUMNS = {"held, %": ".0f", "half-width": ".2f", "score": ".2f"}


class Variant(NamedTuple):
    """Intervals of one kind on a source left out: that of the version that was asked first, or of an error model."""

    figure: str
    source: str
    name: str
    held: Held


# Variants: what is fitted, what is known, whether few levels widen, and whether the side above is wider.
SHIPPED, CHOSEN = "as shipped then", "fitted, known cells, Student, skew"
_MODELS = {
    "priors": (False, False, False, False),
    "priors, known cells": (False, True, False, False),
    "fitted": (True, False, False, False),
    "fitted, known cells": (True, True, False, False),
    "fitted, known cells, Student": (True, True, True, False),
    CHOSEN: (True, True, True, True),
}


class _Fit(NamedTuple):
    """Components by the priors and as fitted, known cells, how many levels were seen, and to which side errors lean."""

    prior: tuple[dict[str, float], dict[str, float]]
    fitted: tuple[dict[str, float], dict[str, float]]
    cells: Sequence[Cell]
    seen: Mapping[str, float]
    skew: float

    @classmethod
    def of(cls, figure: str, contacts: Sequence[Row], known: Sequence[Row]) -> _Fit:
        prior, of = priors()[figure], Cells.of(contacts)
        cells = Cells.of(known).as_cells() if known else []
        seen = of.seen(len(priors())) if contacts else {}
        skew = skew_of(Cells.of(rows) for rows in grouped(contacts, lambda row: row["source"]).values())
        return cls((dict(prior.v), {"": prior.e}), estimate(of, prior), cells, seen, skew)


def _model(fit: _Fit, fits: bool, knows: bool, few: bool, leans: bool) -> ErrorModel:
    known, seen = fit.cells if knows else (), fit.seen if few else {}
    return ErrorModel(*(fit.fitted if fits else fit.prior), seen, known, skew=fit.skew if leans else 1.0)


def left_out(contacts: Sequence[Row], answered: Sequence[Row], fresh: set[str]) -> Iterator[tuple[Variant, list[Row]]]:
    """Yield what variants hold on each fresh source, left out of all else, and the rows with their `band` by it."""
    users = [row for row in answered if row["asked"] == ASKED]
    for (figure, source), rows in grouped(contacts, lambda row: (row["figure"], row["source"])).items():
        tested = [row for row in rows if row["asked"] == ASKED]
        if source not in fresh or not tested:
            continue
        others, known = (
            [row for row in of if row["figure"] == figure and row["source"] != source] for of in (contacts, users)
        )
        fit, errors = _Fit.of(figure, others, known), np.array([row["error"] for row in tested])
        bands = {name: bands_of(_model(fit, *of), tested) for name, of in _MODELS.items()}
        bands[SHIPPED] = Band(
            *(np.array([getattr(row["shipped"], side) for row in tested]) for side in ("below", "above"))
        )
        cells = len({row["levels"] for row in tested})
        for name, band in bands.items():
            sides = zip(tested, band.below, band.above, strict=True)
            placed: list[Row] = [{**row, "band": Band(below, above)} for row, below, above in sides]
            yield Variant(figure, source, name, Held.of(errors, band, cells)), placed


def evaluate(
    snapshot: Snapshot, folder: Path, sources: Sequence[Source], kept: Path | None, progress: Progress, *, write: bool
) -> Report:
    """Return what variants hold; `kept` is a file that keeps this version's answers, `write` replaces the artefact."""
    answered = with_levels(answers(snapshot, folder, sources, kept, progress))
    contacts, old = first_contacts(answered), {source.recorded_in for source in sources}
    results = list(left_out(contacts, answered, {row["source"] for row in contacts} - old))
    tested = [row for variant, rows in results if variant.name == CHOSEN for row in rows]
    users = [row for row in answered if row["asked"] == ASKED]
    fits = {
        figure: _Fit.of(figure, *([row for row in of if row["figure"] == figure] for of in (contacts, users)))
        for figure in priors()
    }
    known = list[Row]()
    for figure, rows in grouped(users, lambda row: row["figure"]).items():
        band = bands_of(_model(fits[figure], *_MODELS[CHOSEN]), rows)
        known += ({**row, "band": Band(*sides)} for row, *sides in zip(rows, band.below, band.above, strict=True))
    report = _report([variant for variant, _ in results], tested, known)
    if write:
        FILE.write_bytes(_artefact(fits, report.body) + b"\n")
    return report


def _artefact(fits: Mapping[str, _Fit], validation: Mapping[str, Any]) -> bytes:
    """Return the artefact: components, levels seen and known cells of each figure, with its validation."""
    content = {
        "of": "Error model of whole answers (app.bands.error_model): square roots of variances in log space",
        "command": "gpucast evaluate error-model --data DIR --write",
        "version": __version__,
        "commit": commit(),
        "validation": {name: validation[name] for name in ("all", "sources", "reliability")},
        "figures": {
            figure: {
                "v": _rounded(fit.fitted[0]),
                "e": _rounded(fit.fitted[1]),
                "levels": fit.seen,
                "skew": round(fit.skew, 4),
                "cells": [(levels, round(ybar, 4), rows) for levels, ybar, rows in fit.cells],
            }
            for figure, fit in fits.items()
        },
    }
    text = msgspec.json.encode(content).decode()
    return text.replace('[[["', '[\n[["').replace('],[["', '],\n[["').replace('},"', '},\n"').encode()


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def _report(variants: Sequence[Variant], tested: Sequence[Row], known: Sequence[Row]) -> Report:
    """Return the tables: variants, a source weighing as the root of its cells; sources and GPUs by the chosen."""
    means = [(name, *_mean([one.held for one in of])) for name, of in grouped(variants, lambda one: one.name).items()]
    shipped = {(one.figure, one.source): one.held for one in variants if one.name == SHIPPED}
    now = {place: (_error(of), *_held(of)[:2]) for place, of in grouped(known, _place).items()}
    first = {place: _error(of) for place, of in grouped(tested, _place).items()}
    rows = [
        (*place, first[place], shipped[place].held, *one.held[:3], *now.get(place, _NOT_ASKED), *one.held[3:])
        for one in variants
        if one.name == CHOSEN and (place := (one.figure, one.source))
    ]
    gpus = grouped(tested, lambda row: row["levels"].gpu)
    of_gpus = [(gpu, *_held(of)[:3], len(of)) for gpu, of in gpus.items() if len(of) >= _MANY]
    of_known = [(figure, *_held(of)[:3], len(of)) for figure, of in grouped(known, lambda row: row["figure"]).items()]
    asked = [(100.0 * coverage, _held(tested, coverage)[0], _held(known, coverage)[0]) for coverage in _COVERAGES]
    tables = (
        Table("", {"all, weighed by the root of their cells": "", **_COLUMNS}, means),
        Table("", _OF_SOURCES, rows),
        Table("", {"GPU": "", **_COLUMNS, "rows": "d"}, of_gpus),
        Table("", {"known deployments": "", **_COLUMNS, "rows": "d"}, of_known),
        Table("", {"coverage, %": ".0f", "first contacts, %": ".0f", "known, %": ".0f"}, asked),
    )
    text = "Intervals of 80 % on first contacts, each source left out in turn; half-widths and interval scores in ln."
    names = ("all", "sources", "gpus", "known", "reliability")
    cells = {
        name: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        for name, table in zip(names, tables, strict=True)
    }
    return Report(
        blocks=[text, *tables],
        body={"study": "error-model", **cells},
        pages={MARKER: markdown(tables[1]), RELIABILITY: markdown(tables[4])},
    )


def _place(row: Row) -> tuple[str, str]:
    return row["figure"], row["source"]


def _error(rows: Sequence[Row]) -> float:
    """Return the median error of the predictions, percent of what was measured."""
    return 100.0 * float(np.median(np.abs(np.expm1(-np.array([row["error"] for row in rows])))))


def _held(rows: Sequence[Row], coverage: float = 0.8) -> Held:
    scale = width_at(coverage)
    sides = (np.array([getattr(row["band"], side) for row in rows]) for side in ("below", "above"))
    return Held.of(np.array([row["error"] for row in rows]), Band(*sides).times(scale), 0)


def _mean(held: Sequence[Held]) -> tuple[float, ...]:
    weights = np.sqrt([one.cells for one in held])
    return tuple(float(np.average([one[k] for one in held], weights=weights)) for k in range(3))
