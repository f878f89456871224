"""Programmatic dependent launch: a kernel is set up while the one before it ends, which saves a part of its time.

TensorRT-LLM launches its kernels so from Hopper on (app.ops.stacks.launches_early). Operators were measured one after
another without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.graphs.run import Run
from app.tables.gpus import GpuTable
from app.tables.predictions import Predictions

_ARCHITECTURES = ("hopper", "blackwell")
# Seconds of each kernel that are saved: the best of 0 to 1.25 in steps of 0.25 on InferenceX's closed loops under
# TensorRT-LLM; without each of the three models 0.5 or 0.75 is. Of a short kernel half of its time is left.
_SAVED_S, _LEAST = 0.75e-6, 0.5


def with_early_launches(answer: Predictions, run: Run, gpus: GpuTable, targets: Sequence[int]) -> Predictions:
    """Return predictions of a step's rows on GPU rows `targets`, GPU by GPU, less what early launches save there."""
    on = [bool(gpus.architectures) and gpus.architectures[target].startswith(_ARCHITECTURES) for target in targets]
    if not run.early_launch or not any(on):
        return answer
    early = np.repeat(on, len(answer.latency_s) // len(targets))
    ratio = np.where(early, np.maximum(1.0 - _SAVED_S / answer.latency_s, _LEAST), 1.0)
    return replace(answer, latency_s=answer.latency_s * ratio, low_s=answer.low_s * ratio, high_s=answer.high_s * ratio)
