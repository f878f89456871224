"""What a GPU is told by its siblings: other GPUs of its make, whose kernels it runs.

The physics say how a sibling's figures change a time; what they miss of an operator on the teacher they miss here. So
the teacher's model is asked about the operator on the teacher itself, where it was learned: asked here, a few SMs more
move an operator across the questions of its trees, to answers for other operators, and a GPU that is better in every
figure would come out slower.

A kernel that gets far less of the DRAM than streaming does waits for something else, which more bandwidth does not
shorten: of the seconds that the teacher is said to spend on the DRAM, those beyond what streaming takes go by SMs and
clock. Likewise where the tensor units are cut and the teacher's are not: what keeps these from their rate, board power
above all, does not keep slower ones from theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.predictors.auto.operators.physics.analytic_model import Devices, compute_s
from app.predictors.auto.operators.physics.operator_features import Traits
from app.predictors.auto.operators.physics.physics_fit import COMPUTE, DRAM
from app.predictors.intervals.groups import S_SIBLING
from app.predictors.priors import BY_KIND, IN_TURN_SHARE, IS_COLLECTIVE
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable


def edges(gpus: GpuTable) -> Floats:
    """Logarithm of the bytes of DRAM bandwidth per SM and clock, [gpus]."""
    clocks = gpus.column("sm_count") * gpus.column("boost_clock_hz")
    edge: Floats = np.log(gpus.column("memory_bandwidth_bytes_per_s") / clocks)
    return edge


def teachers_of(gpus: GpuTable, member: Ints, situation: Ints, homes: Sequence[str | None]) -> tuple[Ints, Floats]:
    """GPU row on which each model is asked, -1 the GPU's own, int [..., gpus, members]; and `edge`, [..., gpus].

    `member` [..., gpus, members] are numbers of models, -1 none; `homes` the GPU that each is of, None of several.
    """
    rows = {gpu: row for row, gpu in enumerate(gpus.ids)}
    home = np.array([*(-1 if gpu is None else rows.get(gpu, -1) for gpu in homes), -1], dtype=np.intp)  # last: none
    teacher = np.where((situation == S_SIBLING)[..., None], home[member], -1)
    told, own = teacher >= 0, edges(gpus)
    over = np.where(told, own[:, None] - own[teacher], 0.0)
    edge: Floats = np.exp(over.sum(axis=-1) / np.maximum(told.sum(axis=-1), 1))
    return teacher, edge


@compiled
def dram_scale(kind: int, in_turn: bool, factors: Floats, correction: float, edge: float) -> float:
    """What the DRAM's seconds are multiplied by on a GPU of this `edge` over a teacher that was so far off the physics.

    `correction` is the logarithm of how far, under `factors`; `in_turn` as of layers whose weights come in turn. What
    collectives wait for is no DRAM.
    """
    if edge == 1.0 or IS_COLLECTIVE[kind]:
        return 1.0
    streamed = IN_TURN_SHARE if in_turn else BY_KIND[kind, 1]
    part = min(streamed / (factors[DRAM] * np.exp(correction)), 1.0)
    return float(part + (1.0 - part) * edge)


@compiled
def busier(devices: Devices, dtype: int, gpu: int, teacher: int) -> bool:
    """Whether the tensor units of a GPU are cut, and its teacher's are not as much."""
    return bool(devices.cuts[dtype, gpu] > devices.cuts[dtype, teacher])


@compiled
def cut_s(traits: Traits, row: int, devices: Devices, gpu: int, only: int, told: tuple[Floats, float]) -> float:
    """Seconds of the FLOPs of a row where the GPU is `busier` than its teacher.

    `only`: the tile of its kernels. `told`: factors, and the logarithm of what the teacher's model corrects.
    """
    factors, correction = told
    return float(compute_s(traits, row, devices, gpu, only, factors[COMPUTE] * np.exp(correction)))
