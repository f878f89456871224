"""Conformal intervals: quantiles of log residuals per group of evidence.

A residual is log(measured / predicted) of a row whose GPU, size or kernel was held out of training, so the quantiles of
a group hold for predictions from such evidence. Groups without residuals use prior widths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np

from app.bands.band import width_at
from app.bands.groups import (
    CODES,
    NAMES,
    NO_EVIDENCE,
    RELATED,
    groups_of_siblings,
    of_other_gpus,
    of_siblings,
    prior_offsets,
)
from app.coefficients import Coefficients
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Ints

# Least held-out residuals of a group; fewer do not show a tail of ten percent.
LEAST_RESIDUALS = 10
# Most held-out GPUs whose residuals are taken as symmetric: they do not show the sign of the error on another GPU.
FEW_GPUS = 3
# Part of that widening which siblings get.
SIBLINGS_PART = Coefficients("bands").number("siblings_part")


@dataclass(frozen=True, eq=False)
class Intervals:
    """Residual quantiles per group, by its code (app.bands.groups).

    residuals  group -> sorted float64 array of log(measured / predicted); a group without one has its prior width
    units      how many of them are independent, per group
    gpus       of how many GPUs they are, per group of answers for a GPU that was held out as a whole
    """

    residuals: Mapping[int, Floats]
    units: Mapping[int, int]
    gpus: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def prior(cls) -> Self:
        """Intervals without residuals: prior widths only."""
        return cls({}, {})

    @classmethod
    def from_residuals(cls, residual: Floats, group: Ints, kernel: Ints) -> Self:
        """Intervals of held-out log residuals, their groups and their kernels' labels, [m] each.

        Rows of an unmeasured kernel err together, so in these groups a kernel counts as one unit.
        """
        residuals = {int(code): np.sort(residual[group == code]) for code in np.unique(group)}
        units = {
            code: len(np.unique(kernel[group == code])) if code in (RELATED, NO_EVIDENCE) else len(held_out)
            for code, held_out in residuals.items()
        }
        return cls(residuals, units)

    def pooled(self, other: Self) -> Self:
        """These and those of GPUs that were added: residuals of a group in both are drawn from each by its units.

        Of operators and dtypes that are here only groups of answers on measured GPUs are pooled: how far GPUs that
        nobody measured differ is known of more of them than of those added. Other operators and dtypes are taken.
        """
        known = {_cell_of(group) for group in self.residuals}
        new = [group for group in other.residuals if _cell_of(group) not in known]
        residuals = {**self.residuals, **{group: other.residuals[group] for group in new}}
        units = {**self.units, **{group: other.units[group] for group in new}}
        gpus = {**self.gpus, **{group: other.gpus[group] for group in new if group in other.gpus}}
        for group in self.residuals.keys() & other.residuals.keys():
            if not of_other_gpus(group):
                residuals[group] = _drawn_from([(one.residuals[group], one.units[group]) for one in (self, other)])
                units[group] = self.units[group] + other.units[group]
        return type(self)(residuals, units, gpus)

    def state(self) -> dict[str, Any]:
        """As a plain container of arrays, groups by name."""
        parts = {"residuals": self.residuals, "units": self.units, "gpus": self.gpus}
        return {part: {NAMES[code]: of for code, of in groups.items()} for part, groups in parts.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`; KeyError names a group that does not exist."""
        residuals, units, gpus = (
            {CODES[name]: of for name, of in state[part].items()} for part in ("residuals", "units", "gpus")
        )
        return cls(residuals, units, gpus)

    def with_lent_siblings(self) -> Self:
        """These, where a dtype that was trained on one GPU per architecture takes the siblings' residuals of others.

        Those of the same operators in all other dtypes together: how far siblings differ is a matter of their clocks
        and versions first, of the dtype second. A dtype without rows of its own keeps its prior width.
        """
        residuals, units, gpus = dict(self.residuals), dict(self.units), dict(self.gpus)
        for seen, sibling, others in groups_of_siblings():
            lenders = [code for code in others if len(self.residuals.get(code, ())) >= LEAST_RESIDUALS]
            if seen in self.residuals and sibling not in self.residuals and lenders:
                residuals[sibling] = np.sort(np.concatenate([self.residuals[code] for code in lenders]))
                units[sibling] = len(residuals[sibling])
                gpus[sibling] = min(self.gpus.get(code, FEW_GPUS) for code in lenders)
        return type(self)(residuals, units, gpus)

    @cached_property
    def last_log_offsets(self) -> Callable[[float], Floats]:
        """`log_offsets`, cached for the last coverages."""
        return lru_cache(maxsize=32)(self.with_lent_siblings().log_offsets)

    def log_offsets(self, coverage: float) -> Floats:
        """Offsets to add to log latency, float64 [2, groups]: low and high at `coverage` in (0, 1).

        Each side is the split-conformal quantile of its tail, the ceil((k + 1) p)-th of k independent residuals
        (Vovk et al. 2005); the median always lies inside. Rows of a GPU err together: in groups for GPUs other than the
        g of the residuals, each tail shrinks by the factor 1 - 1 / (g + 1), the chance that the next of g + 1 GPUs is
        not the most extreme, for siblings by SIBLINGS_PART of that, and with at most FEW_GPUS both sides use the
        residuals of both signs. Coverages over (k - 1) / (k + 1), which k residuals do not show, extend their extremes
        by the ratio of normal quantiles.
        """
        offsets = prior_offsets(coverage)
        upper = 0.5 + coverage / 2.0
        for code, residual in self.residuals.items():
            units = self.units[code]
            if len(residual) >= LEAST_RESIDUALS:
                level, either = min(np.ceil((units + 1) * upper) / units, 1.0), residual
                if code in self.gpus:
                    part = SIBLINGS_PART if of_siblings(code) else 1.0
                    level += part * (1.0 - level) / (self.gpus[code] + 1)
                    if self.gpus[code] <= FEW_GPUS:
                        either = np.sort(np.concatenate([residual, -residual]))
                m = len(either)
                rank = int(np.ceil(level * m)) - 1
                most = (len(residual) - 1) / (len(residual) + 1)
                scale = width_at(max(coverage, most)) / width_at(most)
                offsets[:, code] = scale * min(either[m - 1 - rank], 0.0), scale * max(either[rank], 0.0)
        return offsets


def _cell_of(group: int) -> str:
    """Return the operator and dtype of a group, without its situation."""
    return NAMES[group].rpartition("/")[0]


def _drawn_from(parts: Sequence[tuple[Floats, int]]) -> Floats:
    """Return as many sorted residuals as the longest part has, of all parts by the units that stand behind each."""
    every = np.concatenate([residual for residual, _ in parts])
    weight = np.concatenate([np.full(len(residual), units / len(residual)) for residual, units in parts])
    order = np.argsort(every)
    ranks = np.cumsum(weight[order]) - 0.5 * weight[order]
    places = np.linspace(ranks[0], ranks[-1], max(len(residual) for residual, _ in parts))
    drawn: Floats = np.interp(places, ranks, every[order])
    return drawn


@compiled
def ends_of(latency: float, low_offset: float, high_offset: float, stretch: float, limit: float) -> tuple[float, float]:
    """Return the ends of a time's interval from offsets in log space; the lower one is at least the hardware limit."""
    return max(latency * np.exp(stretch * low_offset), limit), latency * np.exp(stretch * high_offset)


def residual_ends(middle: float, residuals: Floats, coverage: float) -> tuple[float, float]:
    """Return the ends of an interval from log residuals of its own figure; the middle lies inside."""
    low, high = np.exp(np.quantile(residuals, (0.5 - coverage / 2, 0.5 + coverage / 2)))
    return middle * min(float(low), 1.0), middle * max(float(high), 1.0)
