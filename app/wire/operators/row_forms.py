"""Request structs of every deep-learning operator, generated from OPS: fields, ranges, choices, defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union

from msgspec import Meta, Struct, defstruct

from app.ops import OP_CODE, OPS
from app.ops.base import Dim, Op
from app.stacks.release import software_columns
from app.wire.field_facts import about
from app.wire.kernel_workload import Name
from app.wire.near_names import did_you_mean
from app.wire.usual_names import operator_hint

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
        whole = Meta(ge=dim.least, le=dim.most, multiple_of=1.0, extra_json_schema={"type": "integer"})
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


def _column_type(fields: list[Field]) -> Any:
    """Return the type of a field in columns: one cell for all rows, or a list with null where a row has none."""
    cell: Any = str if fields[0].number is not None else float
    inner: Any = cell | _pair(float) if any(field.dim.pair for field in fields) else cell
    return _described(cell | list[inner | None] | None, fields[0].help)


def _column_fields() -> list[tuple[str, Any, Any]]:
    """Return every field of every operator, as columns."""
    same: dict[str, list[Field]] = {}
    for form in FORMS.values():
        for field in form.fields:
            same.setdefault(field.name, []).append(field)
    return [(name, _column_type(fields), None) for name, fields in same.items()]


COLUMN_FIELDS = _column_fields()
COLUMN_NAMES = ("op", "gpu", "dtype", *(name for name, _, _ in COLUMN_FIELDS))
PAIR_FIELDS = {field.name for form in FORMS.values() for field in form.fields if field.dim.pair}
# Columns whose cells are text; the others are numbers.
WORD_FIELDS = {"op", "gpu", "dtype"} | {
    field.name for form in FORMS.values() for field in form.fields if field.number is not None
}
