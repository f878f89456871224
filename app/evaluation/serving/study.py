"""`gpucast evaluate serving`: all measured loads of a data folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from app.engine.engine import Engine
from app.evaluation.serving.host_fit import Fit, fit_host
from app.evaluation.serving.outcomes import Outcome, Ready, outcomes, ready_cases
from app.evaluation.serving.read_others import read_others
from app.evaluation.serving.read_points import INFERENCEX, read_closed_loops

Progress = Callable[[str], None]


class Study(NamedTuple):
    """Outcomes of all loads, and the times of each stack's host that fit best; empty where nothing was fitted."""

    outcomes: list[Outcome]
    fits: dict[str, Fit]


def evaluate_serving(folder: Path, engine: Engine, *, fit: bool, progress: Progress = lambda line: None) -> Study:
    """Return the study of a data folder; `fit` also fits the times of the host, with deployments held out (minutes)."""
    cases = [*read_closed_loops(folder), *read_others(folder)]
    progress(f"{len(cases)} loads on {len({case.deployment for case in cases})} deployments")
    ready = ready_cases(engine, cases)
    fits = _fits(ready, progress) if fit else {}
    without = {name: host for one in fits.values() for name, host in one.without.items()}
    return Study(outcomes(engine, ready, without, progress), fits)


def _fits(ready: list[Ready], progress: Progress) -> dict[str, Fit]:
    learned = [one for one in ready if one.case.source == INFERENCEX]
    fits = {}
    for stack in sorted({one.case.stack for one in learned}):
        progress(f"{stack}: fitting the times of its host")
        fits[stack] = fit_host([one for one in learned if one.case.stack == stack], progress)
    return fits
