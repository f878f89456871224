"""ConvMeter's equations (section 3): the time of a pass as a sum of coefficient x figure, and the two ways to fit it.

    forward, backward   c1 b F + c2 b I + c3 b O + c4                        (equations 2 and 3)
    update, N = 1       c1 L
    update, N > 1       c1 L + c2 W + c3 N
    backward_update     the sum of backward and update: seven coefficients where N > 1
    step                forward besides (equation 1): the same terms

b images per device; F, I, O FLOPs, inputs and outputs of one image; L layers, W weights, N devices. `PAPER` has just
these terms. `FULL` adds to every pass the weights, which are read once whatever the batch, to the update a constant,
which stands for layers where nobody counted them, and to the other passes the operators that are launched and the FLOPs
of depthwise convolutions, which are no part of a network where nobody counted them.
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
# Terms of a pass on one device and on many.
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
    """The figures of TERMS for every row, float64 [n, 9]: those of images times the batch."""
    batch, ones = table.column("batch"), np.ones(len(table))
    columns = [ones if name == "one" else table.column(name) for name in TERMS]
    return np.stack([batch * c if name in _OF_IMAGES else c for name, c in zip(TERMS, columns, strict=True)], axis=1)


def least_squares(figures: Floats, latency_s: Floats) -> Floats:
    """Coefficients [t] of the least squared error in seconds over rows [n, t], as the paper fits; may be negative."""
    scale = _scale(figures)
    found: Floats = np.linalg.lstsq(figures / scale, latency_s, rcond=None)[0] / scale
    return found


def relative_non_negative(figures: Floats, latency_s: Floats) -> Floats:
    """Coefficients [t], none negative, of the least squared relative error over rows [n, t] (Lawson and Hanson 1974).

    No time comes out negative, and a network of a millisecond counts as much as one of a second.
    """
    from scipy.optimize import nnls  # noqa: PLC0415  (serving never fits)

    scale = _scale(figures)
    found: Floats = nnls(figures / scale / latency_s[:, None], np.ones(len(latency_s)))[0] / scale
    return found


def _scale(figures: Floats) -> Floats:
    """The largest figure of every term, so that sizes do not decide what is solved; 1 where all are 0."""
    most = figures.max(axis=0)
    return np.where(most > 0, most, 1.0)


class Method(NamedTuple):
    """Which terms a pass has, and how coefficients [t] are found from figures [n, t] and seconds [n]."""

    terms: Terms
    fit: Callable[[Floats, Floats], Floats]


PLAIN = Method(PAPER, least_squares)
NON_NEGATIVE = Method(FULL, relative_non_negative)
