"""`gpucast evaluate serving`: all measured loads of a data folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from app.engine.engine import Engine
from app.services.serving.host_fit import search_host
from app.serving.stacks import HostTimes
from evaluation.serving.cases import Case
from evaluation.serving.outcomes import Outcome, Ready, outcomes, ready_cases
from evaluation.serving.read_ml_energy import read_ml_energy
from evaluation.serving.read_others import read_others
from evaluation.serving.read_points import INFERENCEX, read_closed_loops

Progress = Callable[[str], None]
# What is held out of a fit, in turn.
DEPLOYMENT = "deployment"
HELD_OUT: Mapping[str, Callable[[Case], str]] = {
    DEPLOYMENT: lambda case: case.deployment,
    "model": lambda case: case.model,
    "GPU": lambda case: case.gpu,
}


class Study(NamedTuple):
    """Outcomes of all loads, and the times of each stack's host that fit best; empty where nothing was fitted."""

    outcomes: list[Outcome]
    fits: dict[str, HostTimes]


def evaluate_serving(folder: Path, engine: Engine, *, fit: bool, progress: Progress = lambda line: None) -> Study:
    """Return the study of a data folder; `fit` also fits the times of the host, with parts held out (minutes)."""
    cases = [*read_closed_loops(folder), *read_others(folder), *read_ml_energy(folder)]
    progress(f"{len(cases)} loads on {len({case.deployment for case in cases})} deployments")
    ready = ready_cases(engine, cases)
    fits: dict[str, HostTimes] = {}
    held_out: dict[int, dict[str, HostTimes]] = {}
    for stack, places in _learned(ready).items() if fit else ():
        progress(f"{stack}: fitting the times of its host")
        search = search_host([ready[place].load for place in places], progress=progress)
        fits[stack] = search.best()
        for name, group in HELD_OUT.items():
            without = search.without([group(ready[place].case) for place in places])
            for place, host in zip(places, without, strict=True):
                if host is not None:
                    held_out.setdefault(place, {})[name] = host
    return Study(outcomes(engine, ready, held_out, progress), fits)


def _learned(ready: list[Ready]) -> dict[str, list[int]]:
    """Return the places of InferenceX's loads by stack."""
    found: dict[str, list[int]] = {}
    for place, one in enumerate(ready):
        if one.case.source == INFERENCEX:
            found.setdefault(one.case.stack, []).append(place)
    return dict(sorted(found.items()))
