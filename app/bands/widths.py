"""Half-widths that are set by hand, in log space at 80 %, and bands of these; values and sources are coefficients."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from app.bands.band import Band
from app.coefficients import Coefficients

_BANDS = Coefficients("bands")

# Part of a step's half-widths, which rows err by together, that is left in training with fused attention, and in
# ConvNets.
TRAINING_PART, CONVNET_PART = _BANDS.number("training_part"), _BANDS.number("convnet_part")
# Waits for a host.
HOST_WAIT = Band.symmetric(_BANDS.number("host_wait"))
INPUT_COPY = Band.symmetric(_BANDS.number("input_copy"))
HOST_COLLECTIVE = Band.symmetric(_BANDS.number("host_collective"))
# A host that launches each operator is as fast as assumed, or slower; less so where its version says how fast.
EAGER_HOST = Band(0.0, _BANDS.number("eager_host"))
EAGER_HOST_OF_VERSION = Band(0.0, _BANDS.number("eager_host_of_version"))
# What a served load's host and scheduler add to its steps: to the time per output token and to first token, by stack.
_SERVED_TOKEN, _SERVED_FIRST = _BANDS.by_name("served_token"), _BANDS.by_name("served_first")
# Time per output token of other loads of a deployment that was measured.
SHIFTED_LOAD = Band.symmetric(_BANDS.number("shifted_load"))
# Power of a GPU without measurements of its own.
POWER = Band.symmetric(_BANDS.number("power"))
# Margins of a load's limits before its own intervals are known, in standard deviations in log space.
LIMIT_MARGINS = _BANDS.by_name("limit_margins")


class Served(NamedTuple):
    """Bands of a served load: of the time per output token, and of the time to first token."""

    token: Band[float]
    first: Band[float]


def _served(name: str) -> Served:
    widths = _BANDS.by_name(name)
    return Served(Band.symmetric(widths["token"]), Band.symmetric(widths["first"]))


def served_by(stack: str) -> Served:
    """Return what a stack's host and scheduler add to its steps: of a stack without its own, the widest of all."""
    widths = (of.get(stack, max(of.values())) for of in (_SERVED_TOKEN, _SERVED_FIRST))
    return Served(*map(Band.symmetric, widths))


# A load that was measured with the same version of its stack.
MEASURED_LOAD = _served("measured_load")
# Another version of a stack, or another stack, than was measured.
OTHER = {"version": _served("other_version"), "stack": _served("other_stack")}
# What these add to a time to first token beside what they add to every step.
OTHER_FIRST = {name: Band.symmetric(sqrt(of.first.above**2 - of.token.above**2)) for name, of in OTHER.items()}
