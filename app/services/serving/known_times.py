"""How well the times of a served load are known: by the error model, by operators' bands, and near the highest rate."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import NamedTuple, TypeAlias

import numpy as np

from app.bands.band import Band
from app.bands.error_model import ErrorModel, Levels, Uncertainty
from app.engine.engine import Engine as Predictors
from app.services.models.network_answers import WidthFacts, width_facts
from app.services.serving.deployment import Deployment, served_levels
from app.services.serving.engines import REACHED, Engine, shape_of, with_factor
from app.services.serving.load_figures import decoded_shape, prompted_shape
from app.serving.steady_state import Shape, highest_rate, open_load
from app.steps.levels import is_assumed
from app.tables.gpus import GpuTable

# Of the times per token and to the first token.
Uncertainties: TypeAlias = tuple[Uncertainty, Uncertainty]
# Least half-width, in log space, over which a figure's change is taken.
_LEAST_CHANGE = 1e-6


def uncertainties(engine: Predictors, gpus: GpuTable, target: int, deployment: Deployment) -> Uncertainties:
    """Return how well a deployment's times per token and to the first token are known on the GPU in this row."""
    levels = served_levels(gpus, target, deployment)
    assumed, errors = is_assumed(deployment.run, levels), engine.error_models
    token, first = (errors[name].uncertainty(levels, assumed=assumed) for name in ("tpot", "ttft"))
    return token, first


class NearCapacity:
    """By what times more the times of open arrivals change than an engine's steps do, to either side.

    Over steps that are faster and slower by their band: the nearer the rate is to the highest one, the more sequences
    run beside one another where steps take longer, until no more have a place.
    """

    def __init__(self, engine: Engine, shape: Shape, steps: Band[float]) -> None:
        self._shape = shape
        self._below, self._above = (max(side, _LEAST_CHANGE) for side in (steps.below, steps.above))
        self._engines = [with_factor(engine, exp(deviation)) for deviation in (-self._below, 0.0, self._above)]
        self._most = [REACHED * highest_rate(each.times, each.limits, shape) for each in self._engines]

    def elasticities(self, rate: float) -> tuple[Band[float], Band[float]]:
        """Return those of the times per token and to the first token, at `rate` requests a second."""
        states = [
            open_load(each.times, each.limits, self._shape, min(rate, most))
            for each, most in zip(self._engines, self._most, strict=True)
        ]
        faster, middle, slower = np.log([(state.tpot_s, state.ttft_s) for state in states])
        below = np.maximum((middle - faster) / self._below, 1.0).tolist()
        above = np.maximum((slower - middle) / self._above, 1.0).tolist()
        return Band(below[0], above[0]), Band(below[1], above[1])


class KnownTime(NamedTuple):
    """How well a figure of a load is known: by the error model, and its operators' band.

    elasticity  by what times more the figure changes than steps do, to either side
    """

    uncertainty: Uncertainty
    own: Band[float]
    elasticity: Band[float] = Band(1.0, 1.0)

    @property
    def band(self) -> Band[float]:
        """Its band."""
        return self.uncertainty.band(self.own).amplified(self.elasticity)

    def learned(self, errors: ErrorModel, uploads: Sequence[tuple[Levels, float]]) -> KnownTime:
        """Return it as uploads leave it."""
        left = float(errors.learned(self.uncertainty.levels, self.own.filled((1,)), uploads).left[0])
        return KnownTime(self.uncertainty.narrowed(left), self.own.times(left**0.5))

    def facts(self, errors: ErrorModel, support: str) -> WidthFacts:
        """Return why its band is as wide, with operators of this support."""
        shown, of_steps = self.band, self.uncertainty.band(self.own)
        most = max(shown.below, shown.above) / max(of_steps.below, of_steps.above)
        return width_facts(errors, self.uncertainty.amplified(most), self.own.times(most), support)


def near_capacity(
    deployment: Deployment, engine: Engine, token: KnownTime, first: KnownTime
) -> tuple[KnownTime, KnownTime]:
    """Return the times of open arrivals as well known as the engine's highest rate leaves them, and its pool's."""
    shape, rate, pool = shape_of(deployment), deployment.rate_per_s, deployment.pool
    of_engine = shape if pool is None else decoded_shape(shape)
    per_token, to_first = NearCapacity(engine, of_engine, token.band).elasticities(rate / deployment.engines)
    if pool is not None and engine.pool is not None:
        _, to_first = NearCapacity(engine.pool, prompted_shape(shape), first.band).elasticities(rate / pool.engines)
    return token._replace(elasticity=per_token), first._replace(elasticity=to_first)
