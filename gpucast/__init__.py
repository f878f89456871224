"""Predictions in this process: the JSON of POST /predict, /compare and /plan as dictionaries, without a service.

Notebooks show them as tables with a picture; `to_pandas()` returns their rows as a DataFrame.

Nothing is started or stored: answers are those of a fresh installation before its database brings measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from app.errors import BadInput, GpucastError, NotFound
from gpucast.answers import Answer

if TYPE_CHECKING:  # imported at use: it takes a second
    from app.engine.snapshot import Snapshot

__all__ = ["Answer", "BadInput", "GpucastError", "NotFound", "compare", "plan", "predict"]


def predict(request: Mapping[str, Any]) -> Answer:
    """Return the answer of POST /predict.

    Raises GpucastError: BadInput for wrong fields, which `errors` lists, and NotFound for an unknown GPU.
    """
    from app.services.dispatch import predict_workload  # noqa: PLC0415
    from app.wire.predict_body import read_request  # noqa: PLC0415

    return _answer(request, read_request, predict_workload)


def compare(request: Mapping[str, Any]) -> Answer:
    """Return the answer of POST /compare. Raises as `predict`."""
    from app.services.compare.request import read_compare  # noqa: PLC0415
    from app.services.compare.served_compare import answer_compare  # noqa: PLC0415

    return _answer(request, read_compare, answer_compare)


def plan(request: Mapping[str, Any]) -> Answer:
    """Return the answer of POST /plan. Raises as `predict`."""
    from app.services.compare.job_plan import answer_plan  # noqa: PLC0415
    from app.services.compare.request import read_plan  # noqa: PLC0415

    return _answer(request, read_plan, answer_plan)


def _answer(request: Mapping[str, Any], read: Callable[[bytes], Any], answer: Callable[..., msgspec.Struct]) -> Answer:
    from app.config import Settings  # noqa: PLC0415
    from app.predictors.auto.predictor import Auto  # noqa: PLC0415

    try:
        parsed = read(msgspec.json.encode(request))
    except TypeError as error:
        raise BadInput(f"The request cannot be written as JSON: {error}.") from None
    if parsed.save:
        raise BadInput.at(("save",), "a running service keeps answers: send the request to it", end=".")
    snapshot = _snapshot(frozenset({parsed.predictor, Auto.name}))
    answered = answer(snapshot, parsed, max_rows=Settings.from_env().max_batch_rows)
    return Answer(answered, request["workload"])


@cache
def _snapshot(predictors: Collection[str]) -> Snapshot:
    """Return what answers, with the artefacts of `predictors`."""
    from app.bootstrap.warm import shipped_snapshot  # noqa: PLC0415

    return shipped_snapshot(only=predictors)
