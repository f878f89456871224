"""Sibling transfer: corrections of a GPU without measurements, from donors of the same architecture key.

The physics model how a time scales between siblings, and the residual of an operator is assumed to be the same on both.
So the donor's model is evaluated on the features that the operator has on the donor, where the model was trained. With
the features on the queried GPU, a few more SMs would move the operator across thresholds of the trees to leaves of
other operators, and a GPU that is better in every figure could be predicted slower.

A kernel that gets far less DRAM bandwidth than streaming does waits for something else, which more bandwidth does not
shorten. So of the DRAM seconds on the donor, the part beyond streaming time scales with SMs and clock instead. The same
holds if the tensor peak of the GPU is reduced and the donor's is not: what limits the donor's tensor units, mostly
board power, does not limit slower ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.bands.groups import S_SIBLING
from app.predictors.physics.physics_fit import DRAM
from app.predictors.priors import BY_KIND, IN_TURN_SHARE, IS_COLLECTIVE
from app.runtime.compiled import compiled_per_row
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable


def donors_of(gpus: GpuTable, member: Ints, situation: Ints, homes: Sequence[str | None]) -> tuple[Ints, Floats]:
    """Return the donor of each model, a GPU row, int [..., gpus, members], and the bandwidth ratio, [..., gpus].

    A donor of -1 means that the model is evaluated on the queried GPU itself. The bandwidth ratio is that GPU's DRAM
    bandwidth per SM and clock over the geometric mean of its donors', 1 without donors. `member` [..., gpus, members]
    holds indices of models, -1 for none; `homes` the GPU on which each model was trained, None for several.
    """
    rows = {gpu: row for row, gpu in enumerate(gpus.ids)}
    home = np.array([*(-1 if gpu is None else rows.get(gpu, -1) for gpu in homes), -1], dtype=np.intp)  # last: none
    donor = np.where((situation == S_SIBLING)[..., None], home[member], -1)
    clocks, has_donor = gpus.column("sm_count") * gpus.column("boost_clock_hz"), donor >= 0
    own = np.log(gpus.column("memory_bandwidth_bytes_per_s") / clocks)
    over = np.where(has_donor, own[:, None] - own[donor], 0.0)
    bandwidth_ratio: Floats = np.exp(over.sum(axis=-1) / np.maximum(has_donor.sum(axis=-1), 1))
    return donor, bandwidth_ratio


@compiled_per_row
def dram_scale(kind: int, in_turn: bool, factors: Floats, correction: float, bandwidth_ratio: float) -> float:
    """Return the factor on the DRAM term of a GPU whose bandwidth ratio to its donor is `bandwidth_ratio`.

    `correction`: log(measured / physics under `factors`) on the donor. `in_turn`: whether the weights of other layers
    pass through the L2 before the operator runs again. 1 for collectives, which do not wait for DRAM.
    """
    if bandwidth_ratio == 1.0 or IS_COLLECTIVE[kind]:
        return 1.0
    streamed = IN_TURN_SHARE if in_turn else BY_KIND[kind, 1]
    part = min(streamed / (factors[DRAM] * np.exp(correction)), 1.0)
    return float(part + (1.0 - part) * bandwidth_ratio)
