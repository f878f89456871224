"""Fit the times of a stack's host to measured closed loops, by random search, with deployments held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from app.evaluation.serving.outcomes import Ready
from app.serving.stacks import HostTimes
from app.tables.arrays import Floats

_SEED, _DRAWS, _FOLDS = 0, 220, 5
# Of errors of the time to first token against those of the time per output token.
_TTFT_WEIGHT = 0.5
# Greatest error that counts, in log space: what is further off has another cause.
_MOST = 0.5
# Least and most of each time, drawn uniformly in log space between; with `_NONE` of the draws at zero.
_RANGES = ((2e-5, 1.5e-3), (3e-6, 4e-5), (5e-3, 0.1), (5e-4, 2e-2), (2e-7, 1e-5), (1.0, 1.5))
_NONE = 0.15


class Fit(NamedTuple):
    """Times of a stack's host: from all deployments, and from those other than each."""

    host: HostTimes
    without: dict[str, HostTimes]


def fit_host(ready: Sequence[Ready], progress: Callable[[str], None] = lambda line: None) -> Fit:
    """Return the times of the host that fit these cases of one stack best, and without each deployment.

    Deployments are held out in _FOLDS groups. The error is that of the mean time per output token, and of the mean time
    to first token at half of its weight: absolute, in log space.
    """
    draws = _draws()
    errors = np.empty((len(draws), len(ready)))
    for k, host in enumerate(draws):
        errors[k] = [_error(one, host) for one in ready]
        if k % 20 == 19:
            progress(f"{k + 1} of {len(draws)} draws")
    names = sorted({one.case.deployment for one in ready})
    shuffled = np.random.default_rng(_SEED).permutation(len(names))
    fold_of = {names[place]: k % _FOLDS for k, place in enumerate(shuffled.tolist())}
    fold = np.array([fold_of[one.case.deployment] for one in ready])
    best = [draws[_best(errors[:, fold != k])] for k in range(_FOLDS)]
    return Fit(draws[_best(errors)], {name: best[fold_of[name]] for name in names})


def _best(errors: Floats) -> int:
    return int(errors.mean(axis=1).argmin()) if errors.shape[1] else 0


def _draws() -> list[HostTimes]:
    generator = np.random.default_rng(_SEED)
    draws = [HostTimes()]
    low, high = np.array(_RANGES).T
    for _ in range(_DRAWS):
        at, none = generator.random((2, len(low)))
        draws.append(HostTimes(*np.where(none < _NONE, HostTimes(), low * (high / low) ** at).tolist()))
    return draws


def _error(one: Ready, host: HostTimes) -> float:
    found, measured = one.figures(host), one.case.measured
    if found.tpot is None or found.ttft is None:
        return _MOST * (1.0 + _TTFT_WEIGHT)
    pairs = (found.tpot.mean / measured.tpot_ms, found.ttft.mean / measured.ttft_ms)
    token, first = (min(abs(np.log(1e3 * ratio)), _MOST) for ratio in pairs)
    return float(token + _TTFT_WEIGHT * first)
