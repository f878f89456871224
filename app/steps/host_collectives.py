"""Collectives of Intel's GPUs under the first vLLM that ran there: the host waits for each, and launches the next.

oneCCL of 2024 took 0.6 ms of a step per all-reduce on two devices and 1.0 ms on four, of messages of 8 kB to 512 kB
alike. Fitted to Llama-2-7b on Max 1550 in LLM-Inference-Bench (BSD-3), at batch 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.graphs.run import Run
from app.predictors.priors import IS_COLLECTIVE
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import Predictions

# Seconds, and seconds per device of the group.
_WAIT_S, _DEVICE_S = 0.2e-3, 0.2e-3
# Hosts may be that many times as fast, or as slow.
_SPREAD = 1.6


def with_host_collectives(
    answer: Predictions, table: OpTable, run: Run, gpus: GpuTable, targets: Sequence[int]
) -> Predictions:
    """Return predictions of the rows on GPU rows `targets`, GPU by GPU, with what the host adds to collectives."""
    on = [gpus.ids[target].startswith("intel-") for target in targets]
    rows = IS_COLLECTIVE[table.kind]
    if not run.first_engine or not any(on) or not rows.any():
        return answer
    wait = np.where(rows, _WAIT_S + _DEVICE_S * np.nan_to_num(table.column("devices")), 0.0)
    added = (np.array(on)[:, None] * wait).ravel()
    return replace(
        answer,
        latency_s=answer.latency_s + added,
        low_s=answer.low_s + added / _SPREAD,
        high_s=answer.high_s + added * _SPREAD,
    )
