"""Loads of the ML.ENERGY leaderboard: so many requests in flight on H100, with the energy of a token.

Models, formats, splits and prompts are those that the scorecard assumes (evaluation.scorecard.sources.ml_energy).
Lengths are about the most uneven ones that can be asked, as those of chats are more uneven still.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from app.wire.serving_form import ServingLoad, ServingParallelism, ServingWorkload
from evaluation.scorecard.case import Row
from evaluation.scorecard.sources import ml_energy
from evaluation.serving.cases import Case, Measured

ML_ENERGY = "ml_energy"
_FILE = "whole_models/ml_energy.parquet"
# Spread of lengths, and their mean, of the longest.
_SPREAD = 0.99
_MEAN = 1.0 - 0.5 * _SPREAD


def read_ml_energy(folder: Path) -> list[Case]:
    """Return the loads of language models whose configuration is known; none without the file."""
    path = folder / _FILE
    return [case for row in pq.read_table(path).to_pylist() for case in _cases(row)] if path.is_file() else []


def _cases(row: Row) -> Iterator[Case]:
    if row["median_itl_ms"] is None:  # images and videos
        return
    time, *energy = ml_energy.cases([row])
    if not time.parts:
        return
    step, prompt = (part.workload for part in energy[0].parts)
    split = step["parallelism"]
    workload = ServingWorkload(
        kind="serving",
        config=dict(step["config"]),
        dtype=step["dtype"],
        kv_dtype=step["kv_dtype"],
        software=step["software"],
        parallelism=ServingParallelism(**split),
        input_tokens=round(prompt["sequence"] / _MEAN),
        output_tokens=max(round(row["avg_output_len"] / _MEAN), 2),
        length_spread=_SPREAD,
        load=ServingLoad(concurrency=step["batch"]),
        method="closed_form",
    )
    measured = Measured(tpot_ms=row["median_itl_ms"], energy_j=row["energy_per_token_joules"])
    deployment = f"{time.model}|{row['num_gpus']}|{split['tensor']}|{split['expert']}"
    yield Case(ML_ENERGY, time.model, time.gpu, step["dtype"], "vllm", deployment, workload, measured)
