"""The error model of whole answers (app.bands.error_model): fitted to first contacts, checked on sources left out.

The components are estimated from the first contacts of all other sources: their maximum likelihood under log-normal
priors around what the study of residuals found, the operators' own errors beside them. The cells are what this version
says of all other sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import minimize

from app.bands.band import Band, normal_quantile
from app.bands.coverage import COVERAGE
from app.bands.error_model import COMPONENTS, JITTER, MOST_ROWS, Cell, ErrorModel, Levels, widened
from app.services.serving.loads import LOADS
from app.tables.arrays import Bools, Floats, Ints
from evaluation.first_contact.ledger import ledger
from evaluation.first_contact.question import Row
from evaluation.study import grouped

PRIORS = Path(__file__).with_name("error_priors.json")
_FIT: Mapping[str, Any] = msgspec.json.decode(PRIORS.read_bytes())
# Standard deviation, in log space, of the priors of sqrt(v); cells that the priors of e and of no skew are worth.
_PRIOR_DEVIATION, _PRIOR_CELLS = _FIT["deviation"], _FIT["cells"]
# Figures of the error model by those of questions, an energy's by its power; others are no whole answers.
FIGURES = {"static": "step", "energy": "energy", **{figure: figure for figure in _FIT["figures"]}}
# Huber's bend; iterations of the fit, and its least cells; least rows of a cell that show their scatter.
_BEND, _STEPS, _LEAST_CELLS, _LEAST_LOADS = 1.5, 15, 5, 3
# Standard deviation of a normal error whose median absolute one is 1.
_OF_MEDIAN = 1.0 / normal_quantile(0.75)
_DEVIATIONS = normal_quantile(0.5 + COVERAGE / 2.0)
_PENALTY = 2.0 / (1.0 - COVERAGE)


class Priors(NamedTuple):
    """Square roots of the variances by component, and of loads of one deployment."""

    v: Mapping[str, float]
    e: float


def priors() -> Mapping[str, Priors]:
    """Return the priors of each figure."""
    figures = _FIT["figures"].items()
    return {figure: Priors({name: row[name] for name in COMPONENTS}, row["e"]) for figure, row in figures}


class Cells(NamedTuple):
    """Deployments of one figure.

    levels, rows  of each, and the number of its rows
    ybar, within  Huber mean and variance of its rows' errors
    own           deviation of its operators' errors
    """

    levels: Sequence[Levels]
    ybar: Floats
    rows: Floats
    own: Floats
    within: Floats

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Cells:
        """Return the cells of rows, those of each source its own."""
        groups = grouped(rows, lambda row: (row["levels"], row["source"]))
        each = [np.array([row["error"] for row in some]) for some in groups.values()]
        return cls(
            [levels for levels, _ in groups],
            np.array([_huber(errors) for errors in each]),
            np.array([len(errors) for errors in each], dtype=np.float64),
            np.array([np.mean([0.5 * (row["below"] + row["above"]) for row in some]) for some in groups.values()])
            / _DEVIATIONS,
            np.array([_deviation(errors) for errors in each]) ** 2,
        )

    def as_cells(self) -> list[Cell]:
        """Return them as the error model takes them."""
        return list(zip(map(tuple, self.levels), self.ybar.tolist(), self.rows.astype(int).tolist(), strict=True))

    def codes(self) -> Ints:
        """Return codes of their levels, int [n, components]."""
        table = np.array([each.of_components() for each in self.levels], dtype=object)
        return np.stack([np.unique(column.astype(str), return_inverse=True)[1] for column in table.T], axis=1)

    def seen(self, figures: int) -> dict[str, float]:
        """Return how many levels of each component were seen; one figure is one of `figures`."""
        counts = {name: float(column.max() + 1) for name, column in zip(COMPONENTS, self.codes().T, strict=True)}
        return counts | {"figure": float(figures), "e": float(len(self.ybar))}


def estimate(cells: Cells, prior: Priors) -> tuple[dict[str, float], dict[str, float]]:
    """Return the components of largest posterior density on cells, and the deviation of loads of one, by stack.

    The priors' where there are too few cells; "" is any other stack.
    """
    e = loads_of(cells, prior.e)
    if len(cells.ybar) < _LEAST_CELLS:
        return dict(prior.v), e
    codes = cells.codes()
    same = (codes[:, None, :] == codes[None, :, :]).astype(np.float64)
    start = np.log([prior.v[name] for name in COMPONENTS])
    of_loads = np.array([e.get(levels.of_loads, e[""]) for levels in cells.levels]) ** 2
    noise = np.diag(of_loads / np.minimum(cells.rows, MOST_ROWS) + cells.own**2 + JITTER)

    def loss(roots: Floats) -> float:
        lower = np.linalg.cholesky(same @ np.exp(2.0 * roots) + noise)
        whitened = np.linalg.solve(lower, cells.ybar)
        fit = 0.5 * float(whitened @ whitened) + float(np.log(np.diag(lower)).sum())
        return fit + 0.5 * float((((roots - start) / _PRIOR_DEVIATION) ** 2).sum())

    roots = np.exp(minimize(loss, start, method="L-BFGS-B", options={"maxiter": _STEPS}).x)
    return dict(zip(COMPONENTS, roots.tolist(), strict=True)), e


def skew_of(sources: Iterable[Cells]) -> float:
    """Return what deployments were off by above what was predicted over what they were below, by a few of no skew more.

    A source counts as the root of its deployments.
    """
    above = below = cells = 0.0
    for of in sources:
        weight = len(of.ybar) ** -0.5
        above += weight * float(np.maximum(of.ybar, 0.0).sum())
        below += weight * float(np.maximum(-of.ybar, 0.0).sum())
        cells += weight * len(of.ybar)
    even = 0.5 * _PRIOR_CELLS * (above + below) / max(cells, JITTER)
    return (above + even) / (below + even) if above + below > 0.0 else 1.0


def loads_of(cells: Cells, prior: float) -> dict[str, float]:
    """Return the deviation of loads of one deployment by stack, the median of their scatter within cells."""
    several = cells.rows >= _LEAST_LOADS
    kinds = np.array([levels.of_loads for levels in cells.levels], dtype=object)

    def deviation(of: Bools, least: float) -> float:
        typical = float(np.median(cells.within[of])) if of.any() else 0.0
        squares = _PRIOR_CELLS * least**2 + int(of.sum()) * typical
        return float(np.sqrt(squares / (_PRIOR_CELLS + int(of.sum()))))

    every = deviation(several, prior)
    of_kinds = {kind: deviation(several & (kinds == kind), every) for kind in sorted(set(kinds.tolist()))}
    return {"": every, **of_kinds}


def first_contacts(answered: Sequence[Row]) -> list[Row]:
    """Return the rows of the ledger's whole answers, with the levels and the own band of this version's answers.

    Rows that are asked no more, as their source was read better since, are left out. A source none of whose cases has
    the name of today keeps its own levels.
    """
    known = {(row["source"], row["case"], row["asked"], row["figure"]): row for row in answered}
    known |= {(row["source"], f"{row['study']} {row['case']}", row["asked"], row["figure"]): row for row in answered}
    rows = list[Row]()
    for about, contacts in ledger():
        placed = [(each, _placed(about["source"], each, known)) for each in contacts if _is_whole(each)]
        nameless = not any(place for _, place in placed)
        for contact, place in placed:
            if place is not None or nameless:
                shown = {"case": contact["case"], "source": about["source"], "error": contact["error"]}
                figure, shipped = _figure(contact), Band(contact["below"], contact["above"])
                rows.append({**(place or _by_name(contact)), **shown, "figure": figure, "shipped": shipped})
    return with_power(rows)


def _is_whole(contact: Row) -> bool:
    return contact["error"] is not None and contact["figure"] in FIGURES


def _figure(contact: Row) -> str:
    return "network" if contact["architecture"] == "convnet" else FIGURES[contact["figure"]]


def _placed(source: str, contact: Row, known: Mapping[tuple[str, str, str, str], Row]) -> Row | None:
    """Return this version's answer to a contact; of an energy that of its power."""
    figure = _figure(contact)
    return known.get((source, contact["case"], contact["asked"], "power" if figure == "energy" else figure))


def with_power(rows: Sequence[Row]) -> list[Row]:
    """Return rows where those of energy give way to those of power, which it is beside the time of the same case."""
    times = {(row["source"], row["case"]): row for row in rows if "case" in row and row["figure"] != "energy"}
    kept = [row for row in rows if row["figure"] != "energy"]
    for row in rows:
        if row["figure"] == "energy" and (time := times.get((row["source"], _timed(row["case"])))) is not None:
            power = {"figure": "power", "error": row["error"] - time["error"], "below": 0.0, "above": 0.0}
            if "shipped" in row:
                whole, of_time = row["shipped"], time["shipped"]
                squares = (whole.below**2 - of_time.below**2, whole.above**2 - of_time.above**2)
                power["shipped"] = Band(*(max(square, 0.0) ** 0.5 for square in squares))
            kept.append({**row, **power})
    return kept


def _timed(case: str) -> str:
    """Return the case of a time, from that of the energy that it takes."""
    return (
        case.replace("energy of a token", "time between tokens")
        .replace("energy of images", "text-to-image")
        .replace("energy of videos", "text-to-video")
    )


def _by_name(contact: Row) -> Row:
    """Return the levels of a contact that this version cannot be asked about, and as own band a part of its own."""
    version = f"{contact['stack']} {contact['version']}".strip()
    devices = "nodes" if contact["nodes"] > 1 else "many" if contact["devices"] > 1 else "one"
    levels = Levels(
        contact["stack"], contact["architecture"], "", contact["gpu"], contact["model"], contact["dtype"], version,
        devices, LOADS.get(contact["load"], ""), contact["split"],
    )  # fmt: skip
    return {
        "levels": levels,
        "asked": contact["asked"],
        "below": 0.5 * contact["below"],
        "above": 0.5 * contact["above"],
    }


def with_levels(rows: Sequence[Row]) -> list[Row]:
    """Return rows of answers with their levels as one value, and those of power."""
    return with_power([{**row, "levels": Levels(*(row[name] for name in Levels._fields))} for row in rows])


def _deviation(errors: Floats) -> float:
    """Return the standard deviation by the median absolute one; of two errors by their distance."""
    if len(errors) < _LEAST_LOADS:
        return float(np.std(errors, ddof=1)) if len(errors) > 1 else 0.0
    return _OF_MEDIAN * float(np.median(np.abs(errors - np.median(errors))))


def _huber(errors: Floats) -> float:
    """Return the mean of errors clipped at a bend around their median."""
    median, deviation = float(np.median(errors)), _BEND * _deviation(errors)
    return median + float(np.clip(errors - median, -deviation, deviation).mean())


class Held(NamedTuple):
    """What intervals hold: share of errors inside, percent, mean half-width and interval score in ln; rows, cells."""

    held: float
    half_width: float
    score: float
    rows: int
    cells: int

    @classmethod
    def of(cls, errors: Floats, band: Band[Floats], cells: int) -> Held:
        """Return it for errors and the band of each."""
        outside = np.maximum(errors - band.above, 0.0) + np.maximum(-band.below - errors, 0.0)
        widths = band.below + band.above
        score = float((widths + _PENALTY * outside).mean())
        return cls(100.0 * float(np.mean(outside == 0.0)), 0.5 * float(widths.mean()), score, len(errors), cells)


def bands_of(model: ErrorModel, rows: Sequence[Row]) -> Band[Floats]:
    """Return the band of each row."""
    below, above = (np.array([row[side] for row in rows]) for side in ("below", "above"))
    return widened(Band(below, above), [model.uncertainty(row["levels"]) for row in rows])
