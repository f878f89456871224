"""Fit the times of a stack's host to measured loads, by random search, with groups of them held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.services.serving.deployment import Deployment
from app.services.serving.engines import Engine, with_host
from app.services.serving.load_figures import LoadFigures, load_figures
from app.stacks.facts import HostTimes
from app.stacks.release import host_times_of
from app.tables.arrays import Floats

_FITTED = Coefficients("serving")

_SEED, _DRAWS, _FOLDS = 0, 220, 5
# Loads that every draw is tried on, evenly spaced, and the best draws, which are tried on all.
_TRIED, _FINALISTS = 60, 40
# Of errors of the time to first token against those of the time per output token.
_TTFT_WEIGHT = _FITTED.number("ttft_weight")
# Greatest error that counts, in log space: what is further off has another cause.
_MOST = _FITTED.number("largest_error")
# Least and most of each time, drawn uniformly in log space between; with `_NONE` of the draws at zero.
_RANGES = ((2e-5, 1.5e-3), (3e-6, 4e-5), (5e-3, 0.1), (5e-4, 2e-2), (2e-7, 1e-5), (1.0, 1.5))
_LATENT = (2e-2, 0.2)
_NONE = 0.15


class MeasuredLoad(NamedTuple):
    """A load on an engine whose host's times may be changed, and its measured means, seconds."""

    deployment: Deployment
    engine: Engine
    ttft_s: float
    tpot_s: float

    def figures(self, host: HostTimes) -> LoadFigures:
        """Return the figures of the load with these times of the host."""
        run = self.deployment.run
        own = host_times_of(host, run.release, latent=self.deployment.latent, devices=run.parallelism.devices)
        return load_figures(self.deployment, with_host(self.engine, own))

    def log_errors(self, host: HostTimes) -> tuple[float, float] | None:
        """Return ln(predicted / measured) of the times per output token and to first token; None: saturated."""
        figures = self.figures(host)
        if figures.tpot is None or figures.ttft is None:
            return None
        return float(np.log(figures.tpot.mean / self.tpot_s)), float(np.log(figures.ttft.mean / self.ttft_s))

    def error(self, host: HostTimes) -> float:
        """Return what a fit makes small: errors of the means in log space, the first token's at half of its weight."""
        both = self.log_errors(host)
        if both is None:
            return _MOST * (1.0 + _TTFT_WEIGHT)
        token, first = (min(abs(one), _MOST) for one in both)
        return float(token + _TTFT_WEIGHT * first)


class HostSearch(NamedTuple):
    """Drawn times of a stack's host, and their errors on n measured loads, float64 [draws, n]; known ones first."""

    draws: list[HostTimes]
    errors: Floats

    def best(self) -> HostTimes:
        """Return the times that fit all loads best."""
        return self.draws[int(self.errors.mean(axis=1).argmin())]

    def without(self, groups: Sequence[str], folds: int = _FOLDS) -> list[HostTimes | None]:
        """Return, for each load, the times that fit best without its group, and others of the same fold.

        None where no load is left.
        """
        names = sorted(set(groups))
        shuffled = np.random.default_rng(_SEED).permutation(len(names))
        fold_of = {names[place]: k % folds for k, place in enumerate(shuffled.tolist())}
        fold = np.array([fold_of[group] for group in groups])
        others = {k: self.errors[:, fold != k] for k in set(fold.tolist())}
        best = {k: self._replace(errors=errors).best() if errors.shape[1] else None for k, errors in others.items()}
        return [best[k] for k in fold.tolist()]


def search_host(
    loads: Sequence[MeasuredLoad],
    known: Sequence[HostTimes] = (),
    progress: Callable[[str], None] = lambda line: None,
) -> HostSearch:
    """Return the errors of drawn times, and of `known` ones, on the loads of one stack."""
    # Where all models have latent attention, or none, request_s has what it takes.
    apart = len({load.deployment.latent for load in loads}) > 1
    draws = [host if apart else host._replace(latent_s=0.0) for host in _draws()]
    if len(loads) > _TRIED:
        tried = loads[:: -(-len(loads) // _TRIED)]
        best = _errors(tried, draws, progress).mean(axis=1).argsort(kind="stable")
        draws = [draws[k] for k in best[:_FINALISTS].tolist()]
    draws = [*known, *draws]
    return HostSearch(draws, _errors(loads, draws, progress))


def _errors(loads: Sequence[MeasuredLoad], draws: Sequence[HostTimes], progress: Callable[[str], None]) -> Floats:
    errors = np.empty((len(draws), len(loads)))
    for k, host in enumerate(draws):
        errors[k] = [load.error(host) for load in loads]
        if k % 20 == 19:
            progress(f"{k + 1} of {len(draws)} draws on {len(loads)} loads")
    return errors


def _draws() -> list[HostTimes]:
    """Return the draws, no time at all among them; the same whatever is fitted."""
    generator, latent = np.random.default_rng(_SEED), np.random.default_rng([_SEED, 1])
    draws = [HostTimes()]
    low, high = np.array(_RANGES).T
    for _ in range(_DRAWS):
        at, none = generator.random((2, len(low)))
        common = np.where(none < _NONE, HostTimes()[: len(low)], low * (high / low) ** at)
        more = _LATENT[0] * (_LATENT[1] / _LATENT[0]) ** latent.random()
        draws.append(HostTimes(*common.tolist())._replace(latent_s=float(more)))
    return draws
