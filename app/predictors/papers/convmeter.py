"""`convmeter` and `convmeter_ols`: ConvMeter's linear model of networks and blocks (Beringer et al., ICPP 2024).

The time of a pass is a linear combination of metrics (section 3):

    forward, backward   c1 b F + c2 b I + c3 b O + c4                        (equations 2 and 3)
    update, N = 1       c1 L
    update, N > 1       c1 L + c2 W + c3 N
    backward_update     the sum of backward and update: seven coefficients where N > 1
    step                forward plus backward_update (equation 1): the same terms

b images per device; F, I, O FLOPs, inputs and outputs of one image; L layers, W weights, N devices. `PAPER` has exactly
these terms. `FULL` adds the weights to every pass (they are read once per pass), a constant to the update (which
replaces uncounted layers), and launched operators and depthwise FLOPs to the other passes (0 if uncounted).

Coefficients are per GPU, dtype, pass, memory layout, compilation, and one or several devices. `convmeter` fits
non-negative ones to relative errors; `convmeter_ols` uses plain least squares as the paper does, and does not support
rows with negative predictions. They are kept in units of the GPU: FLOPs over its FP32 rate (tensor rates follow
kernels, not networks), bytes over its bandwidth. A GPU that was not measured has the mean of those that were: as many
times its own roofs. A pass that was not measured there is the sum of its parts (equation 1).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from app.bands.groups import S_UNTRAINED
from app.ops.network import BACKWARD, BACKWARD_UPDATE, FORWARD, NETWORK, PASSES, STEP, UPDATE
from app.predictors.base import Capabilities
from app.predictors.papers.base import LAYOUT, Cell, CellPredictor, KnownGpus, of_each_gpu
from app.predictors.schema import Layout
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.measurements import OperatorRuns
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OpTable

TERMS = ("flops", "inputs", "outputs", "one", "layers", "weights", "devices", "depthwise", "operators")
_FLOPS, _INPUTS, _OUTPUTS, _ONE, _LAYERS, _WEIGHTS, _DEVICES, _DEPTHWISE, _OPERATORS = range(len(TERMS))
_OF_IMAGES = ("flops", "inputs", "outputs", "depthwise")
_CONVOLUTIONS = (_FLOPS, _INPUTS, _OUTPUTS, _ONE)
_EXCHANGE = (_LAYERS, _WEIGHTS, _DEVICES)
# Terms of a pass on one device and on several.
Terms = Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]]
PAPER: Terms = {
    FORWARD: (_CONVOLUTIONS, _CONVOLUTIONS),
    BACKWARD: (_CONVOLUTIONS, _CONVOLUTIONS),
    UPDATE: ((_LAYERS,), _EXCHANGE),
    BACKWARD_UPDATE: ((*_CONVOLUTIONS, _LAYERS), (*_CONVOLUTIONS, *_EXCHANGE)),
    STEP: ((*_CONVOLUTIONS, _LAYERS), (*_CONVOLUTIONS, *_EXCHANGE)),
}
_ALL = (*_CONVOLUTIONS, _WEIGHTS, _DEPTHWISE, _OPERATORS)
_ALL_EXCHANGED = (*_CONVOLUTIONS, *_EXCHANGE, _DEPTHWISE, _OPERATORS)
FULL: Terms = {
    FORWARD: (_ALL, _ALL),
    BACKWARD: (_ALL, _ALL),
    UPDATE: ((_ONE, _LAYERS, _WEIGHTS), (_ONE, *_EXCHANGE)),
    BACKWARD_UPDATE: ((*_ALL, _LAYERS), _ALL_EXCHANGED),
    STEP: ((*_ALL, _LAYERS), _ALL_EXCHANGED),
}


def terms(table: OpTable) -> Floats:
    """Return the metrics of TERMS for every row, float64 [n, 9]; those per image are multiplied by the batch."""
    batch, ones = table.column("batch"), np.ones(len(table))
    columns = [ones if name == "one" else table.column(name) for name in TERMS]
    return np.stack([batch * c if name in _OF_IMAGES else c for name, c in zip(TERMS, columns, strict=True)], axis=1)


def least_squares(figures: Floats, latency_s: Floats) -> Floats:
    """Return coefficients [t] by least squares in seconds over rows [n, t], as in the paper; they may be negative."""
    scale = _scale(figures)
    coefficients: Floats = np.linalg.lstsq(figures / scale, latency_s, rcond=None)[0] / scale
    return coefficients


def relative_non_negative(figures: Floats, latency_s: Floats) -> Floats:
    """Return non-negative coefficients [t] by least squares of relative errors over rows [n, t].

    Times are then non-negative, and short networks count as much as long ones (Lawson and Hanson 1974).
    """
    from scipy.optimize import nnls  # noqa: PLC0415  (serving never fits)

    scale = _scale(figures)
    coefficients: Floats = nnls(figures / scale / latency_s[:, None], np.ones(len(latency_s)))[0] / scale
    return coefficients


def _scale(figures: Floats) -> Floats:
    """Return the largest value of every term, which conditions the solution; 1 for terms that are all 0."""
    most = figures.max(axis=0)
    return np.where(most > 0, most, 1.0)


class Method(NamedTuple):
    """Terms of each pass, and the fit of coefficients [t] to metrics [n, t] and seconds [n]."""

    terms: Terms
    fit: Callable[[Floats, Floats], Floats]


PLAIN = Method(PAPER, least_squares)
NON_NEGATIVE = Method(FULL, relative_non_negative)


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
        unlimited = np.full(len(TERMS), np.inf)
        return cls(gpus, np.zeros((len(gpus), len(TERMS))), -unlimited, unlimited)

    def predict(self, figures: Floats, dtype: str, gpus: GpuTable, j: Ints) -> tuple[Floats, Ints]:
        """Return seconds and situations of rows with these metrics [n, 9] on GPU rows `j`."""
        known = self.gpus.find(gpus, j)
        coefficients = np.where((known >= 0)[:, None], self.coefficients[known], self.coefficients.mean(axis=0))
        outside: Bools = np.logical_or.reduce((figures < self.least) | (figures > self.most), axis=1)
        seconds = (coefficients * figures / units(dtype, gpus, j)).sum(axis=1)
        return seconds, self.gpus.situations(gpus, j, outside)

    def joined(self, newer: Planes) -> Self:
        """Return these planes with those of `newer` added; `newer` wins for common GPUs."""
        gpus, keep = self.gpus.joined(newer.gpus)
        coefficients = np.concatenate([self.coefficients[keep], newer.coefficients])
        return type(self)(gpus, coefficients, np.minimum(self.least, newer.least), np.maximum(self.most, newer.most))

    def state(self) -> dict[str, Any]:
        """Return GPUs, coefficients and ranges."""
        span = np.stack([self.least, self.most])
        return {"gpus": self.gpus.state(), "coefficients": self.coefficients, "range": span}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`; versions of before the last of TERMS know fewer of them."""
        planes = cls.blank(KnownGpus.from_state(state["gpus"]))
        t = state["coefficients"].shape[1]
        planes.coefficients[:, :t] = state["coefficients"]
        planes.least[:t], planes.most[:t] = state["range"]
        return planes


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
    distinct, of = np.unique(keys, axis=0, return_inverse=True)
    for code, key in enumerate(distinct):
        yield Setting(int(key[0]), *map(bool, key[1:])), np.flatnonzero(of.ravel() == code)


class ConvMeter(CellPredictor):
    """Time linear in ConvMeter's figures: coefficients of at least zero, relative errors."""

    name = "convmeter"
    can = Capabilities(("networks",), ("networks",), needs_training=True)
    model = Planes
    learns_from = "networks measured on one GPU"
    method: ClassVar[Method] = NON_NEGATIVE

    def models_of(self, run: OperatorRuns, gpus: GpuTable) -> Iterator[tuple[str, Planes]]:
        """Yield the planes that can be fitted to networks in one dtype, a setting each."""
        if run.op != NETWORK.name:
            return
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

    def answer(self, cell: Cell, gpus: GpuTable) -> tuple[Floats, Ints] | None:
        """Return seconds and situations of networks; NaN for an unmeasured setting."""
        if cell.op is not NETWORK:
            return None
        seconds, situation = np.full(len(cell.ops), np.nan), np.full(len(cell.ops), S_UNTRAINED)
        figures = terms(cell.ops)
        for setting, rows in settings(cell.ops):
            answered = self._answer(setting, figures[rows], cell.dtype, gpus, cell.gpu[rows])
            if answered is not None:
                seconds[rows], situation[rows] = answered
        return np.where(seconds > 0, seconds, np.nan), situation

    def _answer(
        self, setting: Setting, figures: Floats, dtype: str, gpus: GpuTable, j: Ints
    ) -> tuple[Floats, Ints] | None:
        """Return seconds, which may be negative, and situations; None for an unmeasured setting."""
        planes: Planes | None = self.cells_.get(setting.key(dtype))
        if planes is not None:
            return planes.predict(figures, dtype, gpus, j)
        parts = [
            self._answer(setting._replace(what=part, many=setting.many and part in _TOGETHER), figures, dtype, gpus, j)
            for part in _PARTS.get(setting.what, ())
        ]
        known = [part for part in parts if part is not None]
        if not parts or len(known) < len(parts):
            return None
        seconds, situations = (np.stack(of) for of in zip(*known, strict=True))
        return seconds.sum(axis=0), situations.max(axis=0)

    @staticmethod
    def learned_cells(state: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Networks in the dtypes of a state's settings."""
        return [(NETWORK.name, key.split(" ")[0]) for key in state]

    @staticmethod
    def layout(operators: Collection[str]) -> Layout:
        """Of a state that knows networks."""
        return LAYOUT.joined(Layout({"terms": TERMS}))


class PlainConvMeter(ConvMeter):
    """The same with the paper's terms and fit."""

    name = "convmeter_ols"
    method = PLAIN
