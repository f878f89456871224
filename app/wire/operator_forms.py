"""JSON structs of deep-learning operators, generated from OPS: rows, columns and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union

from msgspec import UNSET, Meta, Struct, defstruct, structs

from app.ops import OP_CODE, OPS
from app.ops.base import Dim, Op
from app.stacks.facts import Host
from app.stacks.release import software_columns
from app.tables.ops import DTYPES
from app.warning_codes import CodedWarning
from app.wire.examples import EXAMPLES
from app.wire.field_facts import WHOLE, about
from app.wire.kernel_workload import DeviceLink, GivenRate, Name
from app.wire.names import did_you_mean, operator_hint
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

# Fields that every operator has. Requests spell some of the columns of app.ops.base.COMMON differently.
PHASES = ("forward", "backward")
RUN_STATES = ("sustained", "burst")
_SOFTWARE_HELP = "software stack, pytorch-2.1 or vllm-0.24 for example"


class Field(NamedTuple):
    """A field as requests spell it, and the dimension that it sets.

    `number` converts text to the numbers of its columns and raises ValueError for invalid text; `words` are the valid
    texts if enumerable.
    """

    name: str
    dim: Dim
    help: str
    words: tuple[str, ...] = ()
    number: Callable[[str], float | tuple[float, ...]] | None = None

    @property
    def required(self) -> bool:
        """Whether a row must have it."""
        return self.dim.default is None


# Request name of columns that requests spell differently.
REQUEST_NAMES = {"backward": "phase", "burst": "run_state", "eager": "software"}


class Form(NamedTuple):
    """How requests write an operator: its code in OPS, its fields in column order, and its default dtype."""

    code: int
    op: Op
    fields: tuple[Field, ...]
    default_dtype: str | None

    @property
    def names(self) -> str:
        """Names of its fields, for messages."""
        return ", ".join([*(field.name for field in self.fields), "dtype"])


def _code_lookup(words: tuple[str, ...]) -> Callable[[str], float]:
    codes = {word: float(code) for code, word in enumerate(words)}

    def number(word: str) -> float:
        if word not in codes:
            near = did_you_mean(word, words)
            raise ValueError(f"invalid value {word[:100]!r}{near}; valid: {', '.join(words)}")
        return codes[word]

    return number


def _field(dim: Dim) -> Field:
    if dim.name == "backward":
        return Field(
            REQUEST_NAMES[dim.name],
            dim,
            "backward: the gradients of all inputs and weights",
            PHASES,
            _code_lookup(PHASES),
        )
    if dim.name == "burst":
        help_ = "sustained: a busy card; burst: a cool one"
        return Field(REQUEST_NAMES[dim.name], dim, help_, RUN_STATES, _code_lookup(RUN_STATES))
    if dim.name == "eager":
        return Field(REQUEST_NAMES[dim.name], dim, _SOFTWARE_HELP, number=software_columns)
    if dim.choices:
        return Field(dim.name, dim, dim.help, dim.choices, _code_lookup(dim.choices))
    return Field(dim.name, dim, f"{dim.help}: {dim.words}" if dim.words else dim.help, number=dim.read)


FORMS = {op.name: Form(OP_CODE[op.name], op, tuple(_field(dim) for dim in op.dims), op.default_dtype) for op in OPS[1:]}
OP_NAMES = ", ".join(FORMS)


def unknown_op(name: object) -> str:
    """Return the message for an unknown operator."""
    hint = operator_hint(name) or did_you_mean(str(name), FORMS)
    unknown = f"unknown operator {str(name)[:100]!r}{hint}"
    return f"{unknown}; for anything else send memory with its bytes; known: {OP_NAMES}"


def _cell(field: Field) -> Any:
    """Return the type of the field in one row."""
    dim = field.dim
    cell: Any
    if field.words:
        cell = Literal[field.words]
    elif field.number is not None:
        cell = Name
    elif dim.whole:  # 4096.0 is a whole number too
        whole = Meta(ge=dim.least, le=dim.most, **WHOLE)
        cell = Annotated[float, whole]
    else:
        cell = Annotated[float, Meta(ge=dim.least, le=dim.most)]
    return cell | _pair(cell) if dim.pair else cell


def _pair(cell: Any) -> Any:
    """Return the type of two cells. msgspec 0.22 fails on `tuple[cell, cell]` during garbage collection."""
    return Annotated[list[cell], Meta(min_length=2, max_length=2)]


def _described(kind: Any, words: str) -> Any:
    return Annotated[kind, about(words)]


def _row_form(name: str, form: Form) -> type[Struct]:
    """Return the struct of one row: fields in the order of its columns, then the dtype."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for field in form.fields:
        cell = _cell(field)
        if field.required:
            fields.append((field.name, _described(cell, field.help)))
        else:
            fields.append((field.name, _described(cell | None, field.help), None))
    dtype: Any = _described(Literal[form.op.dtypes], "Number format of weights and activations")
    fields.append(("dtype", dtype) if form.default_dtype is None else ("dtype", dtype, form.default_dtype))
    title = "".join(part.capitalize() for part in name.split("_")) + "Operator"
    settings: dict[str, Any] = {"forbid_unknown_fields": True, "kw_only": True, "frozen": True}
    return defstruct(title, fields, tag_field="op", tag=name, module=__name__, **settings)


ROW_FORMS = {name: _row_form(name, form) for name, form in FORMS.items()}
FORM_BY_TYPE: Mapping[type, Form] = {ROW_FORMS[name]: form for name, form in FORMS.items()}
Operator: Any = Union[tuple(ROW_FORMS.values())]  # noqa: UP007  built from a tuple


def _column_type(fields: Mapping[str, Field]) -> Any:
    """Return the type of a field in columns: one cell for all rows, or a list with null where a row has none.

    `fields`: those of this name by operator.
    """
    cell: Any = str if any(field.number is not None for field in fields.values()) else float
    inner: Any = cell | _pair(float) if any(field.dim.pair for field in fields.values()) else cell
    return _described(cell | list[inner | None] | None, _column_meaning(fields))


def _column_meaning(fields: Mapping[str, Field]) -> str:
    """Return the meaning of a field; where operators differ in it, that of each."""
    operators: dict[str, list[str]] = {}
    for name, field in fields.items():
        operators.setdefault(field.help, []).append(name)
    if len(operators) == 1:
        return next(iter(operators))
    return "; ".join(f"of {', '.join(names)}: {meaning}" for meaning, names in operators.items())


def _column_fields() -> list[tuple[str, Any, Any]]:
    """Return every field of every operator, as columns."""
    same: dict[str, dict[str, Field]] = {}
    for form in FORMS.values():
        for field in form.fields:
            same.setdefault(field.name, {})[form.op.name] = field
    return [(name, _column_type(fields), None) for name, fields in same.items()]


COLUMN_FIELDS = _column_fields()
COLUMN_NAMES = ("op", "gpu", "dtype", *(name for name, _, _ in COLUMN_FIELDS))
PAIR_FIELDS = {field.name for form in FORMS.values() for field in form.fields if field.dim.pair}
# Columns whose cells are text; the others are numbers.
WORD_FIELDS = {"op", "gpu", "dtype"} | {
    field.name for form in FORMS.values() for field in form.fields if field.number is not None
}


_STRICT: dict[str, Any] = {"forbid_unknown_fields": True, "kw_only": True, "frozen": True}

RowTimes: TypeAlias = Annotated[list[float], about("Predicted times row for row, milliseconds")]
LowEnds: TypeAlias = Annotated[list[float], about("Lower end of the interval, milliseconds")]
HighEnds: TypeAlias = Annotated[list[float], about("Upper end of the interval, milliseconds")]
Bounds: TypeAlias = Annotated[list[str], about("Limiting resource: compute, memory, launch or communication")]


LaunchHost: TypeAlias = Annotated[Host, about("Host that launches eager operators, by how quick it is")]
_AROUND: list[tuple[str, Any, Any]] = [
    ("network_bytes_per_s", GivenRate, None),
    ("link", DeviceLink, None),
    ("host", LaunchHost, "datacenter"),
]


class OperatorsWorkload(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Deep-learning operators that run one after another. Their times add up."""

    kind: Annotated[Literal["operators"], about("Kind of the workload")]
    operators: Annotated[list[Operator], about("Operators that run one after another", min_length=1)]
    nodes: Annotated[
        Annotated[float, Meta(ge=1, le=1e6, **WHOLE)] | None, about("Machines of collectives that name none")
    ] = None
    network_bytes_per_s: GivenRate = None
    link: DeviceLink = None
    host: LaunchHost = "datacenter"
    implementation: Annotated[
        Literal["nccl", "rccl"] | None, about("Library of collectives; absent: that of the GPU's vendor")
    ] = None

    @property
    def placed(self) -> list[Any]:
        """The operators, collectives on the workload's nodes where they name none."""
        return [
            structs.replace(each, nodes=self.nodes) if getattr(each, "nodes", 1.0) is None else each
            for each in self.operators
        ]


class OperatorsRequest(BaseRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Operators on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    workload: Annotated[OperatorsWorkload, about("The operators")]


_OPS = about("The operator's name", extra_json_schema={"enum": list(FORMS)})
_DTYPE = about(f"one of {', '.join(DTYPES)}")
_OPERATOR: tuple[str, Any] = ("op", Annotated[str, _OPS])
_DTYPES: tuple[str, Any, Any] = ("dtype", Annotated[str | list[str | None] | None, _DTYPE], None)

OperatorTableWorkload = defstruct(
    "OperatorTableWorkload",
    [
        ("kind", Annotated[Literal["operator_table"], about("Kind of the workload")]),
        _OPERATOR,
        _DTYPES,
        *COLUMN_FIELDS,
        *_AROUND,
    ],
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

    workload: Annotated[OperatorTableWorkload, about("The operator, in columns")]  # type: ignore[valid-type]


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
    warnings: Annotated[dict[str, list[str]], about("Per GPU, caveats of its rows")]
    warning_codes: Annotated[dict[str, list[CodedWarning]], about("Per GPU, the warnings with their codes")]


OPERATORS_EXAMPLE: dict[str, Any] = EXAMPLES["operators"]
OPERATOR_TABLE_EXAMPLE: dict[str, Any] = EXAMPLES["operator_table"]
BATCH_EXAMPLE: dict[str, Any] = EXAMPLES["batch"]
