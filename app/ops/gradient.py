"""What the backward pass of an operator runs, as forward operators wherever it is such: predictors learned those.

As PyTorch's autograd does it. An operator's rule is a tuple of steps; its columns say where each column of a step
comes from, so that app.networks.training_pass gathers all steps of all rows at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# What a row must be for a step to run: anything; its input needs a gradient (the network's does not); it adds a bias;
# two rows of its block feed it; its own weights are trained; PyTorch's own kernels run it, not fused ones (Inductor's,
# Transformer Engine's, those of a loss); it is a depthwise convolution; it is none, and FED or TRAINED.
ALWAYS, FED, BIASED, OF_TWO, TRAINED, UNFUSED, DEPTHWISE, FED_NOT_DEPTHWISE, TRAINED_NOT_DEPTHWISE = range(9)
# Figures of a row beside its own columns: bytes that a launch writes; that a norm reads for its parameters' gradients;
# launches for each factor that has a gradient, and twice the launches.
DERIVED = ("written", "both_read", "of_factors", "twice")
WRITTEN, BOTH_READ, OF_FACTORS, TWICE = DERIVED


class Step(NamedTuple):
    """One thing that backward runs.

    op       operator; None: the row's own
    columns  column of the step -> column of the row, one of DERIVED, or a number; columns left out are at their
             defaults, or as they are where `op` is None
    needs    what the row must be: ALWAYS or one of those that follow it
    """

    op: str | None
    columns: Mapping[str, str | float]
    needs: int = ALWAYS


def step(op: str, *same: str, needs: int = ALWAYS, **columns: str) -> Step:
    """An operator that runs as often as the row; columns named in `same` are the row's."""
    return Step(op, {"count": "count", "burst": "burst"} | {name: name for name in same} | columns, needs)


def rowwise(*ops: str) -> tuple[Step, ...]:
    """Element-wise operators of the row's size, one after another."""
    return tuple(step(op, "b", "h") for op in ops)


# The row with `backward` 1; the row once more; the sum of a bias's gradient over rows.
ITSELF, SAME = Step(None, {"backward": 1.0}), Step(None, {})
BIAS = step("memory", bytes=WRITTEN, needs=BIASED)
# By data and by weight: products of the same size and about the same form (attention, experts).
BY_DATA_AND_WEIGHT = (SAME._replace(needs=FED), SAME._replace(needs=TRAINED), BIAS)
# Of convolutions, whose depthwise kernels backward are unlike those forward.
OF_CONVOLUTION = (
    SAME._replace(needs=FED_NOT_DEPTHWISE),
    SAME._replace(needs=TRAINED_NOT_DEPTHWISE),
    ITSELF._replace(needs=DEPTHWISE),
    BIAS,
)
