"""An error model of whole answers, and what variants of it hold on first contacts, each source left out in turn.

y = ln(measured / predicted). Cells are deployments at one kind of load: ybar is the Huber mean of their n rows. Errors
of two cells are correlated by the levels that they share:

    cov(i, j) = sum of v[c] over the components c where i and j have one level, + e^2 / min(n, 8) where i = j

Of a cell that was not measured, cells of known sources (today's version on what was at hand) leave the mean
mu = k' S^-1 ybar and the variance s^2 = sum v - k' S^-1 k (the best linear unbiased prediction). No answer is shifted
by mu, so the half-width at 80 % is q sqrt(s^2 + mu^2 + e^2), and the answer's own interval in quadrature. v and e are
estimated from first contacts of the other sources: their maximum likelihood under log-normal priors around what the
study of residuals found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from app.bands.band import normal_quantile
from app.bands.coverage import COVERAGE
from app.engine.snapshot import Snapshot
from app.errors import NotFound
from app.tables.architectures import GENERATION_OF
from app.tables.arrays import Floats, Ints
from evaluation.first_contact.ledger import answers_of, ask_shipped, ledger
from evaluation.first_contact.question import Levels, Source
from evaluation.render import Report, Table
from evaluation.sources.facts import facts_of
from evaluation.study import Progress, grouped

Row = Mapping[str, Any]
# What errors are correlated by, from all answers of a figure to one deployment.
COMPONENTS = (
    "figure", "family", "architecture", "generation", "gpu", "model", "format", "version", "devices", "deployment",
)  # fmt: skip
PRIORS = Path(__file__).with_name("error_priors.json")
# Standard deviation, in log space, of the priors of sqrt(v) and e; rows of a cell that count; Huber's bend.
_PRIOR_DEVIATION, _MOST_ROWS, _BEND = 0.5, 8.0, 1.5
_STEPS, _JITTER, _LEAST_CELLS = 15, 1e-9, 5
_QUANTILE = normal_quantile(0.5 + COVERAGE / 2.0)
_PENALTY = 2.0 / (1.0 - COVERAGE)
_SUFFIX = re.compile(r"-(instruct|hf|fp8|it|chat).*$")


class Cells(NamedTuple):
    """Cells of one figure.

    levels  int [n, components], codes of their levels
    ybar, rows  float64 [n], Huber means of errors, and numbers of rows
    source  name of each cell's source
    members  rows of each cell
    """

    levels: Ints
    ybar: Floats
    rows: Floats
    source: Sequence[str]
    members: Sequence[Sequence[Row]]

    def take(self, chosen: Sequence[int]) -> Cells:
        """Return some of the cells."""
        places = np.array(chosen, dtype=int)
        return Cells(
            self.levels[places],
            self.ybar[places],
            self.rows[places],
            [self.source[k] for k in chosen],
            [self.members[k] for k in chosen],
        )


class Components(NamedTuple):
    """Variances of the components, float64 [components], and of rows of one cell."""

    v: Floats
    e2: float


def shared(one: Ints, other: Ints, v: Floats) -> Floats:
    """Return the covariance of cells with these levels, float64 [n, m]."""
    same = one[:, None, :] == other[None, :, :]
    covariance: Floats = same @ v
    return covariance


def estimate(cells: Cells, prior: Components) -> Components:
    """Return the components of largest posterior density on cells; the prior's where there are too few."""
    if len(cells.ybar) < _LEAST_CELLS:
        return prior
    same = (cells.levels[:, None, :] == cells.levels[None, :, :]).astype(float)
    start = 0.5 * np.log(np.append(prior.v, prior.e2))

    def loss(roots: Floats) -> float:
        variances = np.exp(2.0 * roots)
        noise = variances[-1] / np.minimum(cells.rows, _MOST_ROWS) + _JITTER
        lower = np.linalg.cholesky(same @ variances[:-1] + np.diag(noise))
        whitened = np.linalg.solve(lower, cells.ybar)
        fit = 0.5 * float(whitened @ whitened) + float(np.log(np.diag(lower)).sum())
        return fit + 0.5 * float((((roots - start) / _PRIOR_DEVIATION) ** 2).sum())

    variances = np.exp(2.0 * minimize(loss, start, method="L-BFGS-B", options={"maxiter": _STEPS}).x)
    return Components(variances[:-1], float(variances[-1]))


def second_moments(cells: Cells, known: Cells | None, components: Components) -> Floats:
    """Return the expected squares of the errors of rows of cells, float64 [n], given the cells of known sources."""
    alone: Floats = np.full(len(cells.ybar), float(components.v.sum()) + components.e2)
    if known is None or not len(known.ybar):
        return alone
    noise = components.e2 / np.minimum(known.rows, _MOST_ROWS) + _JITTER
    factor = cho_factor(shared(known.levels, known.levels, components.v) + np.diag(noise))
    between = shared(cells.levels, known.levels, components.v)
    mean = between @ cho_solve(factor, known.ybar)
    explained = (between * cho_solve(factor, between.T).T).sum(axis=1)
    moments: Floats = np.maximum(alone - explained, components.e2) + mean**2
    return moments


class Held(NamedTuple):
    """What intervals hold: share of errors inside, percent, mean half-width and interval score in ln; rows, cells."""

    held: float
    half_width: float
    score: float
    rows: int
    cells: int

    @classmethod
    def of(cls, errors: Floats, below: Floats, above: Floats, cells: int) -> Held:
        """Return it for errors, and half-widths below and above."""
        outside = np.maximum(errors - above, 0.0) + np.maximum(-below - errors, 0.0)
        widths = below + above
        return cls(
            100.0 * float(np.mean(outside == 0.0)),
            0.5 * float(widths.mean()),
            float((widths + _PENALTY * outside).mean()),
            len(errors),
            cells,
        )


def evaluate(snapshot: Snapshot, folder: Path, known: Sequence[Source], progress: Progress) -> Report:
    """Return what variants hold on each source of the ledger; this version is asked about `known` sources (minutes)."""
    ask, rows = ask_shipped(snapshot), list[Row]()
    for source in known:
        try:
            rows += ({**row, "source": "", "known": True} for row in answers_of(source, folder, ask, progress))
        except NotFound as missing:
            progress(missing.detail)
    for about, contacts in ledger():
        rows += ({**row, "source": about["source"], "known": False} for row in contacts)
    priors: Mapping[str, Any] = msgspec.json.decode(PRIORS.read_bytes())["figures"]
    answered = [row for row in rows if row.get("error") is not None and row["figure"] in priors]
    place = _Places(snapshot)
    held = list[tuple[str, str, str, Held]]()
    for figure, alike in grouped(answered, lambda row: row["figure"]).items():
        *roots, e = priors[figure]
        cells = _cells(alike, place)
        held += _held(figure, cells, Components(np.square(roots), e**2))
    return _report(held, {source.recorded_in for source in known})


def _held(figure: str, cells: Cells, prior: Components) -> Iterator[tuple[str, str, str, Held]]:
    """Yield the figure, the source left out, the variant and what it holds."""
    known = cells.take([k for k, source in enumerate(cells.source) if not source])
    for left_out in sorted(set(cells.source) - {""}):
        tested = cells.take([k for k, source in enumerate(cells.source) if source == left_out])
        others = cells.take([k for k, source in enumerate(cells.source) if source not in ("", left_out)])
        fitted = estimate(others, prior)
        errors, below, above = (
            np.array([r[c] for m in tested.members for r in m]) for c in ("error", "below", "above")
        )
        counts = [len(members) for members in tested.members]
        yield figure, left_out, "as shipped then", Held.of(errors, below, above, len(counts))
        variants: Mapping[str, Floats] = {
            "components of the design": second_moments(tested, None, prior),
            "and known cells": second_moments(tested, known, prior),
            "components of other contacts": second_moments(tested, None, fitted),
            "and known cells, too": second_moments(tested, known, fitted),
        }
        for name, squares in variants.items():
            half = np.hypot(_QUANTILE * np.sqrt(np.repeat(squares, counts)), 0.5 * (below + above))
            yield figure, left_out, name, Held.of(errors, half, half, len(counts))


class _Places:
    """GPUs by their ids, with their generations, and models by one name."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._catalog = snapshot.engine.catalog
        self._known: dict[str, tuple[str, str]] = {}
        self._models: Mapping[str, str] = facts_of("served_loads")["points"]

    def gpu(self, name: str) -> tuple[str, str]:
        """Return the id and the generation of a GPU; its name twice if it is unknown."""
        if name not in self._known:
            try:
                spec = self._catalog.resolve(name)
                self._known[name] = spec.id, GENERATION_OF.get(spec.architecture_key, spec.architecture)
            except NotFound:
                self._known[name] = name, name
        return self._known[name]

    def model(self, name: str) -> str:
        """Return one name of releases of the same sizes."""
        name = self._models.get(name, name).lower().replace("--", "/").rpartition("/")[2]
        return _SUFFIX.sub("", name.removeprefix("meta-"))


def _cells(rows: Sequence[Row], place: _Places) -> Cells:
    """Return the cells of rows of one figure."""
    groups = grouped(rows, lambda row: (row["source"], *_levels(row, place), row["load"]))
    levels = np.array([key[1 : 1 + len(COMPONENTS)] for key in groups], dtype=object)
    codes = [np.unique(levels[:, k].astype(str), return_inverse=True)[1] for k in range(len(COMPONENTS))]
    members = list(groups.values())
    means = [_huber(np.array([row["error"] for row in some])) for some in members]
    sizes = np.array([len(some) for some in members], dtype=float)
    return Cells(np.stack(codes, axis=1), np.array(means), sizes, [key[0] for key in groups], members)


def _levels(row: Row, place: _Places) -> tuple[str, ...]:
    """Return the levels of a row in the order of COMPONENTS."""
    gpu, generation = place.gpu(row["gpu"])
    model, devices = (
        place.model(row["model"]),
        "one" if row["devices"] == 1 else "nodes" if row["nodes"] > 1 else "many",
    )
    parts = (row[name] for name in Levels._fields if name not in ("figure", "gpu", "model", "architecture", "load"))
    deployment = "|".join(map(str, (gpu, model, *parts)))
    version = f"{row['stack']} {row['version']}"
    return ("", row["stack"], row["architecture"], generation, gpu, model, row["dtype"], version, devices, deployment)


def _huber(errors: Floats) -> float:
    """Return the mean of errors clipped at a bend around their median."""
    median = float(np.median(errors))
    deviation = _BEND * 1.4826 * float(np.median(np.abs(errors - median)))
    return median + float(np.clip(errors - median, -deviation, deviation).mean())


def _report(held: Sequence[tuple[str, str, str, Held]], known: set[str]) -> Report:
    """Return the tables: each figure and source, and all, a source weighing as the root of its cells."""
    fresh = [row for row in held if row[1] not in known]
    variants = list(dict.fromkeys(variant for _, _, variant, _ in fresh))
    columns = {"held, %": ".0f", "half-width": ".2f", "score": ".2f"}
    rows = [(figure, source, variant, *one[:3], one.rows, one.cells) for figure, source, variant, one in fresh]
    means = [(variant, *_mean([one for _, _, name, one in fresh if name == variant])) for variant in variants]
    return Report(
        blocks=[
            "Intervals of 80 % on first contacts, each source left out in turn; half-widths and interval scores in ln.",
            Table("", {"figure": "", "source": "", "intervals": "", **columns, "rows": "d", "cells": "d"}, rows),
            Table("", {"all, weighed by the root of their cells": "", **columns}, means),
        ],
        body={
            "study": "error-model",
            "cells": [
                {"figure": figure, "source": source, "intervals": variant, **one._asdict()}
                for figure, source, variant, one in fresh
            ],
        },
    )


def _mean(held: Sequence[Held]) -> tuple[float, ...]:
    weights = np.sqrt([one.cells for one in held])
    return tuple(float(np.average([one[k] for one in held], weights=weights)) for k in range(3))
