"""ConvMeter's equations (section 3): the time of a pass as a linear combination of metrics, with two fitting methods.

    forward, backward   c1 b F + c2 b I + c3 b O + c4                        (equations 2 and 3)
    update, N = 1       c1 L
    update, N > 1       c1 L + c2 W + c3 N
    backward_update     the sum of backward and update: seven coefficients where N > 1
    step                forward plus backward_update (equation 1): the same terms

b images per device; F, I, O FLOPs, inputs and outputs of one image; L layers, W weights, N devices. `PAPER` has exactly
these terms. `FULL` adds the weights to every pass (they are read once per pass), a constant to the update (which
replaces uncounted layers), and launched operators and depthwise FLOPs to the other passes (0 if uncounted).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from app.ops.network import BACKWARD, BACKWARD_UPDATE, FORWARD, STEP, UPDATE
from app.tables.arrays import Floats
from app.tables.ops import OpTable

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
