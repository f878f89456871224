"""What a user of a served model sees, from its prefill and decode steps; the definitions go with the numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import structs

from app.errors import BadInput, FieldError
from app.graphs.run import Mode
from app.graphs.serving import DEFINITIONS, decode_contexts, serving
from app.tables.arrays import Floats
from app.wire.network_form import ModelWorkload
from app.wire.prediction_form import ServingFigures


def serving_figures(asked: ModelWorkload, step_s: Callable[[ModelWorkload], Floats]) -> list[ServingFigures]:
    """One per GPU; `step_s` gives the seconds of a step on each, [g]. Prompts are `sequence` tokens long."""
    if asked.mode == "training":
        raise _refused("belongs to inference, prefill and decode, not to training")
    prompt, output = int(asked.sequence or 1), int(asked.output_tokens or 1)

    def step(mode: Mode, sequence: int) -> Floats:
        try:
            return step_s(structs.replace(asked, mode=mode, sequence=sequence, output_tokens=None))
        except BadInput as error:
            raise _refused(f"this network cannot serve so many tokens: {error.detail}") from error

    prefill = step("prefill", prompt)
    contexts = decode_contexts(prompt, output)
    decode = np.array([step("decode", context) for context in contexts]).reshape(-1, len(prefill))
    found = serving(prefill, decode, contexts, batch=int(asked.batch), output=output)
    times = [seconds * 1e3 for seconds in (found.ttft_s, found.tpot_s, found.request_s)]
    columns = zip(*(part.tolist() for part in (*times, *found[len(times) :])), strict=True)
    return [ServingFigures(*(*figures, dict(DEFINITIONS))) for figures in columns]


def _refused(message: str) -> BadInput:
    return BadInput(message, errors=[FieldError(("workload", "output_tokens"), message)])
