"""`convmeter` and `convmeter_ols`: ConvMeter's linear model of networks and blocks (Beringer et al., ICPP 2024).

Per GPU, dtype, pass, memory layout, compilation, and one or several devices, time is linear in the metrics of
papers.convmeter.equations. `convmeter` fits non-negative coefficients to relative errors; `convmeter_ols` uses plain
least squares as the paper does, and does not support rows with negative predictions.

Coefficients are kept in units of the GPU: FLOPs over its FP32 rate (tensor rates follow kernels, not networks), bytes
over its bandwidth. A GPU that was not measured has the mean of those that were: as many times its own roofs. A pass
that was not measured there is the sum of its parts (equation 1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from app.bands.groups import S_UNTRAINED
from app.errors import NotTrained
from app.ops.network import BACKWARD, BACKWARD_UPDATE, FORWARD, NETWORK, PASSES, STEP, UPDATE
from app.predictors.base import Capabilities
from app.predictors.papers.convmeter.equations import NON_NEGATIVE, PLAIN, TERMS, Method, terms
from app.predictors.papers.known_gpus import LAYOUT, KnownGpus
from app.predictors.papers.queries import Cell, estimate, of_each_gpu
from app.predictors.schema import Layout
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.measurements import Evidence
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OpTable
from app.tables.predictions import Estimate

_RATE, _BANDWIDTH = COLUMN_INDEX["peak_fp32_flops"], COLUMN_INDEX["memory_bandwidth_bytes_per_s"]
# Parts of a pass that was not measured as a whole.
_PARTS = {STEP: (FORWARD, BACKWARD_UPDATE), BACKWARD_UPDATE: (BACKWARD, UPDATE)}
# Passes that synchronise devices.
_TOGETHER = (UPDATE, BACKWARD_UPDATE, STEP)


class Setting(NamedTuple):
    """Rows that share coefficients: a pass on one or several devices, its memory layout and compilation."""

    what: int
    many: bool
    channels_last: bool
    compiled: bool

    def key(self, dtype: str) -> str:
        """Name in a state."""
        words = (dtype, PASSES[self.what], "many" * self.many, "channels_last" * self.channels_last)
        return " ".join(filter(None, (*words, "compiled" * self.compiled)))


@dataclass(frozen=True, slots=True, eq=False)
class Planes:
    """One setting in one dtype: a plane per GPU.

    coefficients  float64 [k, 9], of TERMS, in units of each GPU
    least, most   float64 [9], range of the figures learned from; of those that the pass does not have, or that nobody
                  counted, any
    """

    gpus: KnownGpus
    coefficients: Floats
    least: Floats
    most: Floats

    @classmethod
    def blank(cls, gpus: KnownGpus) -> Self:
        """Return planes with coefficients of 0 and unlimited range."""
        any_ = np.full(len(TERMS), np.inf)
        return cls(gpus, np.zeros((len(gpus), len(TERMS))), -any_, any_)

    def known_as(self, coefficients: Floats, limits: Floats) -> Self:
        """With coefficients [k, t] and their range [2, t]; versions of before the last of TERMS know fewer of them."""
        t = coefficients.shape[1]
        self.coefficients[:, :t] = coefficients
        self.least[:t], self.most[:t] = limits
        return self

    def predict(self, figures: Floats, dtype: str, gpus: GpuTable, j: Ints) -> tuple[Floats, Ints]:
        """Return seconds and situations of rows with these metrics [n, 9] on GPU rows `j`."""
        known = self.gpus.find(gpus, j)
        coefficients = np.where((known >= 0)[:, None], self.coefficients[known], self.coefficients.mean(axis=0))
        outside: Bools = np.logical_or.reduce((figures < self.least) | (figures > self.most), axis=1)
        seconds = (coefficients * figures / units(dtype, gpus, j)).sum(axis=1)
        return seconds, self.gpus.situations(gpus, j, outside)

    def joined(self, newer: Planes) -> Planes:
        """Return these planes with those of `newer` added; `newer` wins for common GPUs."""
        gpus, keep = self.gpus.joined(newer.gpus)
        coefficients = np.concatenate([self.coefficients[keep], newer.coefficients])
        return Planes(gpus, coefficients, np.minimum(self.least, newer.least), np.maximum(self.most, newer.most))


def units(dtype: str, gpus: GpuTable, j: Ints) -> Floats:
    """Return the units of TERMS on GPU rows `j`, float64 [n, 9]: FLOP/s, elements/s, or 1."""
    one = np.ones(len(j))
    elements = gpus.values[_BANDWIDTH, j] / DTYPE_BYTES[DTYPE_CODE[dtype]]
    rate = gpus.values[_RATE, j]
    return np.stack([rate, elements, elements, one, one, elements, one, rate, one], axis=1)


def settings(ops: OpTable) -> Iterator[tuple[Setting, Ints]]:
    """Yield the settings of a table of networks with their rows."""
    what = ops.column("pass").astype(np.intp)
    many = (ops.column("devices") > 1) & np.isin(what, _TOGETHER)
    keys = np.stack([what, many, ops.column("channels_last") != 0, ops.column("compiled") != 0], axis=1)
    found, of = np.unique(keys, axis=0, return_inverse=True)
    for code, key in enumerate(found):
        yield Setting(int(key[0]), *map(bool, key[1:])), np.flatnonzero(of.ravel() == code)


@dataclass(frozen=True, eq=False)
class ConvMeter:
    """Time linear in ConvMeter's figures: coefficients of at least zero, relative errors."""

    name: ClassVar[str] = "convmeter"
    can: ClassVar[Capabilities] = Capabilities(("networks",), ("networks",), needs_training=True)
    method: ClassVar[Method] = NON_NEGATIVE

    cells_: Mapping[str, Planes] = field(default_factory=dict)

    def fit_operators(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Self:
        """Return ConvMeter with planes fitted to the networks in `runs`; raises NotTrained if there are too few."""
        known = dict(self.cells_)
        learned = {key: planes for run in runs if run.op == NETWORK.name for key, planes in self._planes(run, gpus)}
        if not learned:
            raise NotTrained(f"'{self.name}' learns from networks measured on one GPU; there are too few.")
        for key, planes in learned.items():
            known[key] = known[key].joined(planes) if key in known else planes
        return type(self)(known)

    def _planes(self, run: OperatorRuns, gpus: GpuTable) -> Iterator[tuple[str, Planes]]:
        """Yield the planes that can be fitted to rows of one dtype."""
        for setting, rows in settings(run.rows.ops):
            part = run.take(rows)
            used = list(self.method.terms[setting.what][setting.many])
            figures = terms(part.rows.ops)[:, used]
            scaled = figures / units(run.dtype, gpus, part.rows.gpu)[:, used]
            on = {gpu: mine for gpu, mine in of_each_gpu(part) if figures[mine].any()}
            if on:
                planes = Planes.blank(KnownGpus.of(gpus, list(on)))
                planes.coefficients[:, used] = [
                    self.method.fit(scaled[mine], part.rows.latency_s[mine]) for mine in on.values()
                ]
                seen = figures[np.concatenate(list(on.values()))]
                counted = seen.any(axis=0)
                planes.least[used] = np.where(counted, seen.min(axis=0), -np.inf)
                planes.most[used] = np.where(counted, seen.max(axis=0), np.inf)
                yield setting.key(run.dtype), planes

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Return the estimates of operator row `i[q]` on GPU row `j[q]`; evidence is not used."""

        def answer(cell: Cell) -> tuple[Floats, Ints] | None:
            if cell.op is not NETWORK:
                return None
            seconds, situation = np.full(len(cell.ops), np.nan), np.full(len(cell.ops), S_UNTRAINED)
            figures = terms(cell.ops)
            for setting, rows in settings(cell.ops):
                found = self._answer(setting, figures[rows], cell.dtype, gpus, cell.gpu[rows])
                if found is not None:
                    seconds[rows], situation[rows] = found
            return np.where(seconds > 0, seconds, np.nan), situation

        return estimate(ops, gpus, i, j, answer)

    def _answer(
        self, setting: Setting, figures: Floats, dtype: str, gpus: GpuTable, j: Ints
    ) -> tuple[Floats, Ints] | None:
        """Return seconds, which may be negative, and situations; None for an unmeasured setting."""
        planes = self.cells_.get(setting.key(dtype))
        if planes is not None:
            return planes.predict(figures, dtype, gpus, j)
        parts = [
            self._answer(setting._replace(what=part, many=setting.many and part in _TOGETHER), figures, dtype, gpus, j)
            for part in _PARTS.get(setting.what, ())
        ]
        sound = [part for part in parts if part is not None]
        if not parts or len(sound) < len(parts):
            return None
        seconds, situations = (np.stack(of) for of in zip(*sound, strict=True))
        return seconds.sum(axis=0), situations.max(axis=0)

    @staticmethod
    def learned_cells(state: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Networks in the dtypes of a state's settings."""
        return [(NETWORK.name, key.split(" ")[0]) for key in state]

    @staticmethod
    def layout(operators: Collection[str]) -> Layout:
        """Of a state that knows networks."""
        return LAYOUT.joined(Layout({"terms": TERMS}))

    def state(self) -> dict[str, Any]:
        """Per setting its GPUs, coefficients and ranges."""
        return {
            key: {
                "gpus": planes.gpus.state(),
                "coefficients": planes.coefficients,
                "range": np.stack([planes.least, planes.most]),
            }
            for key, planes in self.cells_.items()
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        return cls(
            {
                key: Planes.blank(KnownGpus.from_state(of["gpus"])).known_as(of["coefficients"], of["range"])
                for key, of in state.items()
            }
        )


class PlainConvMeter(ConvMeter):
    """The same with the paper's terms and fit."""

    name: ClassVar[str] = "convmeter_ols"
    method: ClassVar[Method] = PLAIN
