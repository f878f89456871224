"""How far whole answers are off: an error model with a memory of first contacts.

y = ln(measured / predicted) of a step, a served load, an energy or a memory. Cells are deployments: ybar is the Huber
mean of their n loads. Errors of two cells are correlated by the levels that they share,

    cov(i, j) = sum of v[c] over the components c where both have the same level, + e^2 / min(n, 8) where i = j

v, and e by stack and kind of load, are those of first contacts (evaluation/first_contact), before anybody had looked at
the errors. The cells that were measured leave an answer the mean mu = k' S^-1 ybar and the variance s^2 = sum of v -
k' S^-1 k + e^2 (the best linear unbiased prediction). No answer is moved by what was released, so mu^2, as far as that
was found to hold for others (MEAN_PART), is part of its expected square, on its side; uploads move it (`learned`). The
half-width at COVERAGE is q times its root, and the operators' own in quadrature. q is Student's t quantile with the
degrees of freedom of all components together (Welch and Satterthwaite): one that was seen at few levels is known badly.
What nothing here describes takes time more often than it saves any, so the half-widths above and below have the ratio
skew^sqrt(u): `skew` is what first contacts were off by above over below, u the part of the variance that cells leave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from app.bands.band import Band, Width, normal_quantile
from app.bands.coverage import COVERAGE
from app.coefficients import Coefficients
from app.config import SEED_DATA
from app.tables.arrays import Floats, Ints

FILE = SEED_DATA / "error_model.json"
# Part of mu^2 that counts; rows of a cell that count; and a variance that keeps the matrix positive definite.
MEAN_PART = Coefficients("bands").number("mean_part")
MOST_ROWS, JITTER = 8.0, 1e-9
_LEVELS_CACHED = 8192
# Half-widths that a stack adds which is timed as another one.
_OTHER_STACK = Coefficients("bands").by_name("other_stack")
_Z = normal_quantile(0.5 + COVERAGE / 2.0)
# What the quantile of Student's t adds to it, over the degrees of freedom and their square (Cornish and Fisher).
_TAILS = (_Z**3 + _Z) / 4.0, (5.0 * _Z**5 + 16.0 * _Z**3 + 3.0 * _Z) / 96.0


class Levels(NamedTuple):
    """What the error of a whole answer is shared by; "" where that is not known.

    stack         the serving, training or framework stack
    architecture  dense, experts, latent, sparse, hybrid, convnet, diffusion or graph
    generation, gpu  architecture of the GPU, and its id in the catalogue
    model         layers and width of a transformer, parameters of other networks
    format        number format of weights and products
    version       the stack's release
    devices       one, many (of one machine) or nodes
    load          closed, open, burst or trace of a served load; "" of a step
    split         parallelism but for the number of devices
    """

    stack: str = ""
    architecture: str = ""
    generation: str = ""
    gpu: str = ""
    model: str = ""
    format: str = ""
    version: str = ""
    devices: str = ""
    load: str = ""
    split: str = ""

    @property
    def of_loads(self) -> str:
        """The stack and the kind of load, by which loads of one deployment scatter."""
        return f"{self.stack} {self.load}".strip()

    def of_components(self) -> tuple[str, ...]:
        """Return the levels of COMPONENTS."""
        return ("", *self[:-1], "|".join(self))


# The figure is what all answers of one kind share; a deployment is all levels together.
COMPONENTS = ("figure", *Levels._fields[:-1], "deployment")
_OF_A_GPU = ("generation", "gpu", "deployment")
# Uploads that would narrow an answer, by the levels that they do not share with it.
_TO_MEASURE: Mapping[str, Sequence[str]] = {
    "this model on this GPU, at another size or load": (),
    "another model of this architecture on this GPU": ("model",),
    "this model on a GPU of another architecture": ("generation", "gpu"),
}
# Levels of a measured deployment, the mean of its errors, and the number of its loads.
Cell: TypeAlias = tuple[Sequence[str], float, int]


class Part(NamedTuple):
    """What is left of a component: its half-width in log space at COVERAGE, and whether its level was measured."""

    component: str
    level: str
    half_width: float
    known: bool


class Uncertainty(NamedTuple):
    """Expected square of an answer's error in log space without its operators' own.

    levels   of the answer
    squares  float64 [components + 1], by component, and of one load of a deployment (e^2); they add up
    known    whether a cell has the level of each
    total    their sum
    spread   sum of their squares, each over its degrees of freedom
    mean     what of `total` counts on one side alone: above, or below where it is negative
    skew     the half-width above over that below
    """

    levels: Levels
    squares: Floats
    known: tuple[bool, ...]
    total: float
    spread: float
    mean: float
    skew: float

    def band(self, own: Band[float]) -> Band[float]:
        """Return the band of an answer whose operators' own band is this one."""
        return _band(self.total, self.spread, self.mean, self.skew, own, max)

    def parts(self, own: Band[float], *, interpolated: bool) -> list[Part]:
        """Return what the wider side's half-width is made of, widest first; their squares add up to its square."""
        band = self.band(own)
        half_width, side = max((band.above, own.above), (band.below, own.below))
        squares = np.append((side / _Z) ** 2, self.squares)
        scale = half_width / max(float(np.sqrt(squares.sum())), JITTER)
        names, known = ("operators", *COMPONENTS, "sizes"), (interpolated, *self.known)
        levels = ("", "", *self.levels, "")
        parts = map(Part, names, levels, (scale * np.sqrt(squares)).tolist(), known)
        return sorted(parts, key=lambda part: -part.half_width)

    def with_more(self, component: str, square: float) -> Uncertainty:
        """Return it with more of a component, whose variance is known well."""
        squares = self.squares.copy()
        squares[COMPONENTS.index(component)] += square
        return self._replace(squares=squares, total=self.total + square)

    def amplified(self, elasticity: float) -> Uncertainty:
        """Return that of a figure which changes by so many percent where the answer's does by one."""
        square = elasticity**2
        total, spread, mean = square * self.total, square**2 * self.spread, square * self.mean
        return self._replace(squares=square * self.squares, total=total, spread=spread, mean=mean)

    def narrowed(self, left: float) -> Uncertainty:
        """Return what remains where uploads leave this part of the variance; that of one load stays."""
        squares = np.append(left * self.squares[:-1], self.squares[-1])
        total, spread, skew = float(squares.sum()), left**2 * self.spread, self.skew ** (left**0.5)
        return self._replace(squares=squares, total=total, spread=spread, mean=left * self.mean, skew=skew)


class Narrowed(NamedTuple):
    """What an upload would leave of the wider side's half-width in log space at COVERAGE."""

    measure: str
    half_width: float


class Learned(NamedTuple):
    """What uploads teach of n answers: their shifts in log space, and the part of their variance that they leave."""

    shift: Floats
    left: Floats


def widened(own: Band[Floats], by: Sequence[Uncertainty], left: Floats | float = 1.0) -> Band[Floats]:
    """Return the band of answers whose operators' own band is `own`, [g c], on g GPUs whose uncertainties are `by`.

    left  [g c], part of their variance that uploads leave
    """
    each = len(own.below) // len(by)
    columns = zip(*((one.total, one.spread, one.mean, one.skew, one.squares[-1]) for one in by), strict=True)
    total, spread, mean, skew, of_load = (np.repeat(column, each) for column in columns)
    total, spread, skew = left * (total - of_load) + of_load, left**2 * spread, skew ** np.sqrt(left)
    return _band(total, spread, left * mean, skew, own, np.maximum)


def _band(
    total: Width, spread: Width, mean: Width, skew: Width, own: Band[Width], most: Callable[[Width, float], Width]
) -> Band[Width]:
    """Return the band of answers whose operators' own is `own`; `most` is the larger of numbers or arrays."""
    below = _half_width(total - most(mean, 0.0), spread, own.below, most)
    above = _half_width(total - most(-mean, 0.0), spread, own.above, most)
    share = 2.0 / (1.0 + skew)
    return Band(share * below, skew * share * above)


def _half_width(total: Width, spread: Width, side: Width, most: Callable[[Width, float], Width]) -> Width:
    """Return the half-width of answers whose operators' own is `side`; `most` is the larger of numbers or arrays."""
    whole = total + (side / _Z) ** 2
    freedom = most(whole**2 / most(spread, JITTER**2), 1.0)
    quantile: Width = (_Z + _TAILS[0] / freedom + _TAILS[1] / freedom**2) * whole**0.5
    return quantile


class ErrorModel:
    """The errors of one figure: components, and the cells that were measured."""

    def __init__(
        self,
        v: Mapping[str, float],
        e: Mapping[str, float],
        seen: Mapping[str, float],
        cells: Sequence[Cell] = (),
        other_stack: float = 0.0,
        skew: float = 1.0,
    ) -> None:
        """Take square roots of variances (of loads by stack and kind), how many levels of each were seen, and cells.

        skew  what first contacts were off by above what was predicted, over what they were off by below
        """
        self.v = np.square([v[name] for name in COMPONENTS])
        self._other_stack, self._skew = other_stack, skew
        self._e2 = {kind: deviation**2 for kind, deviation in e.items()}
        self._degrees = np.array([seen.get(name, np.inf) for name in (*COMPONENTS, "e")], dtype=np.float64)
        self._codes: list[dict[str, int]] = [{} for _ in COMPONENTS]
        table = [
            [codes.setdefault(level, len(codes)) for codes, level in zip(self._codes, row, strict=True)]
            for row in (Levels(*cell[0]).of_components() for cell in cells)
        ]
        self._levels = np.array(table, dtype=np.intp).reshape(len(cells), len(COMPONENTS))
        self._ybar = np.array([cell[1] for cell in cells], dtype=np.float64)
        rows = np.array([cell[2] for cell in cells], dtype=np.float64)
        of_loads = np.array([self._of_loads(Levels(*cell[0]).of_loads) for cell in cells])
        covariance = self._shared(self._levels) @ self.v
        self._inverse = np.linalg.inv(covariance + np.diag(of_loads / np.minimum(rows, MOST_ROWS) + JITTER))
        self._weights = self._inverse @ self._ybar
        self._of_codes = lru_cache(_LEVELS_CACHED)(self._uncertainty)

    def _shared(self, levels: Ints) -> Floats:
        """Return which levels rows [n, components] share with the cells, float64 [n, cells, components]."""
        same: Floats = (levels[:, None, :] == self._levels[None, :, :]).astype(np.float64)
        return same

    def uncertainty(self, levels: Levels, *, assumed: bool = False) -> Uncertainty:
        """Return the uncertainty of an answer with these levels; `assumed`: its stack is timed as another one."""
        codes, of_loads = self._codes_of(levels.of_components()), self._of_loads(levels.of_loads)
        known = Uncertainty(levels, *self._of_codes(codes, of_loads))
        return known.with_more("stack", self._other_stack**2) if assumed else known

    def _of_loads(self, kind: str) -> float:
        """Return the variance of loads of one deployment."""
        return self._e2.get(kind, self._e2[""])

    def _codes_of(self, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(known.get(name, -1) for known, name in zip(self._codes, names, strict=True))

    def between_versions(self, measured: Band[float]) -> Band[float]:
        """Return the band of what was measured with another version of its stack."""
        apart = 2.0 * self.v[COMPONENTS.index("version")]
        return measured.widened(Band.symmetric(_Z * float(np.sqrt(apart))))

    def in_common(self, levels: Levels) -> float:
        """Return the variance that answers with these levels have in common on different GPUs."""
        squares = self.uncertainty(levels._replace(generation="", gpu="")).squares
        return float(sum(squares[k] for k, name in enumerate(COMPONENTS) if name not in _OF_A_GPU))

    def learned(self, levels: Levels, own: Band[Floats], uploads: Sequence[tuple[Levels, float]]) -> Learned:
        """Return what uploads, ln(measured / predicted) of a load each, teach of n answers with these levels.

        Loads of one deployment share the errors of its operators, whose band is `own`, [n], as well.
        """
        if not uploads:
            return Learned(np.zeros(len(own.below)), np.ones(len(own.below)))
        names = [each.of_components() for each in (levels, *(of for of, _ in uploads))]
        same = np.array([[[a == b for a, b in zip(one, other, strict=True)] for other in names] for one in names])
        k = self._shared(np.array([self._codes_of(each) for each in names], dtype=np.intp)) @ self.v
        mean = k @ self._weights
        # Nothing was moved by the released cells, so what is left of their mean is part of the covariance.
        known = same @ self.v - k @ self._inverse @ k.T + MEAN_PART * np.outer(mean, mean)
        known = known + same[:, :, -1] * ((0.5 * (own.below + own.above) / _Z) ** 2)[:, None, None]
        of_loads = np.diag([self._of_loads(of.of_loads) for of, _ in uploads])
        weights = np.linalg.solve(known[:, 1:, 1:] + of_loads, known[:, 1:, :1])[:, :, 0]
        explained = (weights * known[:, 0, 1:]).sum(axis=1)
        shift: Floats = (weights * [error for _, error in uploads]).sum(axis=1)
        return Learned(shift, np.maximum(1.0 - explained / known[:, 0, 0], 0.0))

    def narrowed_by(self, uncertainty: Uncertainty, own: Band[float]) -> list[Narrowed]:
        """Return what an upload of each kind would leave of an answer's half-width, the most useful first."""
        kinds = []
        for measure, other in _TO_MEASURE.items():
            upload = uncertainty.levels._replace(**dict.fromkeys(other, ""))
            left = float(self.learned(uncertainty.levels, own.filled((1,)), [(upload, 0.0)]).left[0])
            band = uncertainty.narrowed(left).band(own.times(left**0.5))
            kinds.append(Narrowed(measure, max(band.below, band.above)))
        return sorted(kinds, key=lambda kind: kind.half_width)

    def _uncertainty(self, row: tuple[int, ...], of_loads: float) -> tuple[Any, ...]:
        """Return the fields of Uncertainty after `levels` from codes of levels, -1 for one that no cell has."""
        same = self._shared(np.array([row], dtype=np.intp))[0]
        k = same @ self.v
        # A component's share of the variance that is left is its covariance with the sum: the shares add up.
        left, mean = self.v - self.v * (k @ self._inverse @ same), self.v * (self._weights @ same)
        of_mean = MEAN_PART * _adding_up(mean * mean.sum())
        squares = np.append(_adding_up(left) + of_mean, of_loads)
        known = (*(same.sum(axis=0) > 0.0).tolist(), True)
        unknown = max(float(left.sum() / max(self.v.sum(), JITTER)), 0.0)
        one_sided = float(np.copysign(of_mean.sum(), mean.sum()))
        spread = float((squares**2 / self._degrees).sum())
        return squares, known, float(squares.sum()), spread, one_sided, self._skew**unknown**0.5


def _adding_up(shares: Floats) -> Floats:
    """Return shares of at least 0 with the same sum, or 0 where that is negative."""
    positive = np.maximum(shares, 0.0)
    scaled: Floats = positive * (max(float(shares.sum()), 0.0) / max(float(positive.sum()), JITTER))
    return scaled


def reliability() -> list[tuple[float, ...]]:
    """Return what the shipped intervals held when they were fitted, percent: coverage, first contacts, known."""
    return [tuple(row.values()) for row in _content()["validation"]["reliability"]]


def sources() -> list[Mapping[str, Any]]:
    """Return what first contacts and known answers of each source were when the intervals were fitted, by column."""
    rows: list[Mapping[str, Any]] = _content()["validation"]["sources"]
    return rows


@cache
def _content() -> Mapping[str, Any]:
    content: Mapping[str, Any] = msgspec.json.decode(FILE.read_bytes())
    return content


@cache
def error_models() -> Mapping[str, ErrorModel]:
    """Return the shipped model of each figure."""
    return {
        figure: ErrorModel(
            each["v"],
            each["e"],
            each["levels"],
            each["cells"],
            _OTHER_STACK["first" if figure == "ttft" else "token"] / _Z,
            each["skew"],
        )
        for figure, each in _content()["figures"].items()
    }
