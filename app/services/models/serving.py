"""Serving figures of a model from its prefill and decode steps, with their definitions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import structs

from app.errors import BadInput, FieldError
from app.networks.run import Mode
from app.networks.serving import DEFINITIONS, decode_contexts, serving
from app.tables.arrays import Floats
from app.wire.network_form import ModelWorkload
from app.wire.prediction_form import ServingFigures


def serving_figures(workload: ModelWorkload, step_s: Callable[[ModelWorkload], Floats]) -> list[ServingFigures]:
    """Return one per GPU. `step_s` returns the seconds of a step on each, [g]. Prompts have `sequence` tokens."""
    if workload.mode == "training":
        raise _refused("is only valid in modes inference, prefill and decode, not in training")
    prompt, output = int(workload.sequence or 1), int(workload.output_tokens or 1)

    def step(mode: Mode, sequence: int) -> Floats:
        try:
            return step_s(structs.replace(workload, mode=mode, sequence=sequence, output_tokens=None))
        except BadInput as error:
            raise _refused(f"this network cannot serve so many tokens: {error.detail}") from error

    prefill = step("prefill", prompt)
    contexts = decode_contexts(prompt, output)
    decode = np.array([step("decode", context) for context in contexts]).reshape(-1, len(prefill))
    figures = serving(prefill, decode, contexts, batch=int(workload.batch), output=output)
    times = [seconds * 1e3 for seconds in (figures.ttft_s, figures.tpot_s, figures.request_s)]
    columns = zip(*(part.tolist() for part in (*times, *figures[len(times) :])), strict=True)
    return [ServingFigures(*(*row, dict(DEFINITIONS))) for row in columns]


def _refused(message: str) -> BadInput:
    return BadInput(message, errors=[FieldError(("workload", "output_tokens"), message)])
