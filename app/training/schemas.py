"""Schemas of payloads: what a trained version relies on, and whether this version of the code has it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from app.bands.groups import CODES
from app.ops import OP_CODE
from app.predictors import BY_NAME
from app.predictors.schema import Layout, Schema
from app.tables.ops import DTYPES
from app.training.operator_validation import SPLITS

# What predictors' arrays held in 0.1.0, whose artefacts have no schema: per predictor the layout of any state, of one
# that knows operators, and of each operator that it may know.
LAYOUTS_0_1_0 = Path(__file__).parent / "layouts_0_1_0.json"
_NOTHING: Mapping[str, Any] = {"axes": {}, "codes": {}}


def _splits() -> Layout:
    """Of the held-out answers that a version of operators keeps."""
    return Layout(codes={"splits of held-out answers": SPLITS})


def schema_of(payload: Mapping[str, Any]) -> Schema:
    """The schema of a payload that this version of the code made."""
    operators, dtypes = _learned(payload)
    predictor: Any = BY_NAME[payload["predictor"]]
    layout: Layout = predictor.layout(operators)
    return Schema(operators, dtypes, _groups(payload), layout.joined(_splits()))


def schema_of_0_1_0(payload: Mapping[str, Any]) -> Schema:
    """The schema of a payload that 0.1.0 made; its interval groups are by name already."""
    operators, dtypes = _learned(payload)
    frozen = json.loads(LAYOUTS_0_1_0.read_bytes())[payload["predictor"]]
    layout = _layout(frozen["all"])
    if operators:
        layout = layout.joined(_layout(frozen["any operator"]))
    for op in operators:
        layout = layout.joined(_layout(frozen["operator"].get(op, _NOTHING)))
    return Schema(operators, dtypes, _groups(payload), layout)


def differences(payload: Mapping[str, Any], without: Collection[str] = ()) -> Iterator[str]:
    """What a payload relies on and this version of the code lacks or means otherwise, in words.

    `without`: operators whose part of the payload is not to be used.
    """
    schema = Schema.from_state(payload["schema"]).without(without)
    predictor: Any = BY_NAME[payload["predictor"]]
    layout: Layout = predictor.layout([name for name in schema.operators if name in OP_CODE])
    yield from schema.differences(Schema(tuple(OP_CODE), DTYPES, tuple(CODES), layout.joined(_splits())))


def _learned(payload: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    predictor: Any = BY_NAME[payload["predictor"]]
    cells = predictor.learned_cells(payload["state"])
    return tuple(sorted({op for op, _ in cells})), tuple(sorted({dtype for _, dtype in cells}))


def _groups(payload: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(payload["intervals"]["residuals"]))


def _layout(frozen: Mapping[str, Any]) -> Layout:
    return Layout(*({name: tuple(names) for name, names in frozen[part].items()} for part in ("axes", "codes")))
