"""JSON structs of deep-learning operators in POST /predict and POST /predict/batch: rows, columns and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Struct, defstruct

from app.tables.ops import DTYPES
from app.warning_codes import CodedWarning
from app.wire.field_facts import about
from app.wire.operators.row_forms import COLUMN_FIELDS, FORMS, Operator
from app.wire.prediction_form import (
    AnsweredBy,
    Answerer,
    BaseRequest,
    Coverage,
    GpuId,
    SavedId,
    SkippedGpus,
    WarningCodes,
    Warnings,
)

_STRICT: dict[str, Any] = {"forbid_unknown_fields": True, "kw_only": True, "frozen": True}

RowTimes: TypeAlias = Annotated[list[float], about("Predicted times row for row, milliseconds")]
LowEnds: TypeAlias = Annotated[list[float], about("Lower end of the interval, milliseconds")]
HighEnds: TypeAlias = Annotated[list[float], about("Upper end of the interval, milliseconds")]
Bounds: TypeAlias = Annotated[list[str], about("Limiting resource: compute, memory, launch or communication")]


class OperatorsWorkload(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Deep-learning operators that run one after another. Their times add up."""

    kind: Annotated[Literal["operators"], about("Kind of the workload")]
    operators: Annotated[list[Operator], about("Operators that run one after another", min_length=1)]


class OperatorsRequest(BaseRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Operators on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    workload: Annotated[OperatorsWorkload, about("What runs: a kernel, operators, a model or a graph")]


_OPS = about("The operator's name", extra_json_schema={"enum": list(FORMS)})
_DTYPE = about(f"one of {', '.join(DTYPES)}")
_OPERATOR: tuple[str, Any] = ("op", Annotated[str, _OPS])
_DTYPES: tuple[str, Any, Any] = ("dtype", Annotated[str | list[str | None] | None, _DTYPE], None)

OperatorTableWorkload = defstruct(
    "OperatorTableWorkload",
    [("kind", Annotated[Literal["operator_table"], about("Kind of the workload")]), _OPERATOR, _DTYPES, *COLUMN_FIELDS],
    namespace={"__doc__": "One operator in columns: each field one value for all rows, or a list of one per row."},
    module=__name__,
    **_STRICT,
)
OperatorBatch = defstruct(
    "OperatorBatch",
    [
        ("op", Annotated[str | list[str], about("the operator of all rows, or one per row")]),
        ("gpu", Annotated[str | list[str | None] | None, about("instead of the parameter `gpu`")], None),
        _DTYPES,
        *COLUMN_FIELDS,
    ],
    namespace={"__doc__": "Operator rows in columns: each field one value for all rows, or a list of one per row."},
    module=__name__,
    **_STRICT,
)


class OperatorTableRequest(BaseRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Columns of one operator on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    workload: Annotated[OperatorTableWorkload, about("What runs: a kernel, operators, a model or a graph")]  # type: ignore[valid-type]


class TablePrediction(Struct, frozen=True):
    """The answer for one GPU, one entry per row: milliseconds for all `count` repetitions of a row together."""

    gpu: GpuId
    latency_ms: RowTimes
    low_ms: LowEnds
    high_ms: HighEnds
    bound: Bounds
    coverage: Coverage
    predictor: Answerer
    warnings: Warnings
    warning_codes: WarningCodes


class TableResponse(Struct, frozen=True, omit_defaults=True):
    """One entry per GPU, in request order."""

    predictions: Annotated[list[TablePrediction], about("One entry per GPU, in request order")]
    skipped: SkippedGpus = []
    id: SavedId = UNSET


class BatchResponse(Struct, frozen=True):
    """The answer, one entry per row. `predictors`, `warnings` and their codes are per GPU."""

    latency_ms: RowTimes
    low_ms: LowEnds
    high_ms: HighEnds
    bound: Bounds
    coverage: Coverage
    predictors: Annotated[dict[str, AnsweredBy], about("Per GPU, the predictor that answered")]
    warnings: Annotated[dict[str, list[str]], about("Caveats of this answer")]
    warning_codes: Annotated[dict[str, list[CodedWarning]], about("The warnings with their codes, which are stable")]


OPERATORS_EXAMPLE: dict[str, Any] = {
    "gpu": "nvidia-l4",
    "workload": {
        "kind": "operators",
        "operators": [
            {"op": "linear", "m": 4096, "n": 3840, "k": 1280, "dtype": "fp32", "count": 36},
            {"op": "bmm", "b": 80, "m": 1024, "n": 1024, "k": 64, "dtype": "fp32"},
            {"op": "softmax", "b": 81920, "h": 1024, "dtype": "fp32"},
        ],
    },
    "predictor": "auto",
    "coverage": 0.8,
    "detail": False,
}
OPERATOR_TABLE_EXAMPLE: dict[str, Any] = {
    "gpus": ["nvidia-l4", "h100-sxm5-80gb"],
    "workload": {
        "kind": "operator_table",
        "op": "linear",
        "dtype": "bf16",
        "m": [1, 128, 4096],
        "n": 3840,
        "k": [1280, 1280, 5120],
    },
    "predictor": "auto",
    "coverage": 0.8,
    "detail": False,
}
BATCH_EXAMPLE: dict[str, Any] = {
    "op": ["linear", "softmax"],
    "dtype": "bf16",
    "m": [4096, None],
    "n": [3840, None],
    "k": [1280, None],
    "b": [None, 81920],
    "h": [None, 1024],
}
