"""The request form of every deep-learning operator, built from its family in OPS: fields, ranges, words, defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union

from msgspec import Meta, Struct, defstruct

from app.ops import OP_CODE, OPS
from app.ops.base import Dim, Op
from app.ops.stacks import is_eager
from app.wire.kernel_workload import Name

# Fields that every operator has, as requests spell them beside the column of app.ops.base.COMMON that they fill.
PHASES = ("forward", "backward")
RUN_STATES = ("sustained", "burst")
_SOFTWARE_HELP = "software stack, pytorch-2.1 or vllm-0.24 for example"
# Bytes move alike in every format, so operators of these groups may leave the dtype out.
_DTYPE_OF_GROUP = {"collective": "bf16", "memory": "fp32"}


class Field(NamedTuple):
    """A field as requests spell it, and the dim that it fills.

    A word becomes a number by `number`, which raises ValueError on a word that is none; `words` are the valid ones
    where they can be listed.
    """

    name: str
    dim: Dim
    help: str
    words: tuple[str, ...] = ()
    number: Callable[[str], float] | None = None

    @property
    def required(self) -> bool:
        """Whether a row may not leave it out."""
        return self.dim.default is None


# What requests call a column that they spell in another way.
SPELLED = {"backward": "phase", "burst": "run_state", "eager": "software"}


class Form(NamedTuple):
    """How requests write an operator: its code in OPS, its fields in the order of its columns, and its dtypes."""

    code: int
    op: Op
    fields: tuple[Field, ...]
    default_dtype: str | None

    @property
    def names(self) -> str:
        """Its fields, for messages."""
        return ", ".join([*(field.name for field in self.fields), "dtype"])


def _code_in(words: tuple[str, ...]) -> Callable[[str], float]:
    codes = {word: float(code) for code, word in enumerate(words)}

    def number(word: str) -> float:
        if word not in codes:
            raise ValueError(f"invalid value {word[:100]!r}; valid: {', '.join(words)}")
        return codes[word]

    return number


def _field(dim: Dim) -> Field:
    if dim.name == "backward":
        return Field(
            SPELLED[dim.name], dim, "backward: the gradients of all inputs and weights", PHASES, _code_in(PHASES)
        )
    if dim.name == "burst":
        help_ = "sustained: a busy card; burst: a cool one"
        return Field(SPELLED[dim.name], dim, help_, RUN_STATES, _code_in(RUN_STATES))
    if dim.name == "eager":
        return Field(SPELLED[dim.name], dim, _SOFTWARE_HELP, number=is_eager)
    if dim.choices:
        return Field(dim.name, dim, dim.help, dim.choices, _code_in(dim.choices))
    return Field(dim.name, dim, f"{dim.help}: {dim.words}" if dim.words else dim.help, number=dim.read)


FORMS = {
    op.name: Form(OP_CODE[op.name], op, tuple(_field(dim) for dim in op.dims), _DTYPE_OF_GROUP.get(op.group))
    for op in OPS[1:]
}
OP_NAMES = ", ".join(FORMS)


def unknown_op(name: object) -> str:
    """What to send instead of an operator that is not known."""
    return f"unknown operator {str(name)[:100]!r}; for anything else send memory with its bytes; known: {OP_NAMES}"


def _cell(field: Field) -> Any:
    """Type of the field in one row."""
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
    """Two of them; not `tuple[cell, cell]`, over which msgspec 0.22 breaks when garbage is collected meanwhile."""
    return Annotated[list[cell], Meta(min_length=2, max_length=2)]


def _described(kind: Any, words: str) -> Any:
    return Annotated[kind, Meta(description=words)]


def _row_form(name: str, form: Form) -> type[Struct]:
    """The struct of one row: fields in the order of its columns, then the dtype."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for field in form.fields:
        cell = _cell(field)
        if field.required:
            fields.append((field.name, _described(cell, field.help)))
        else:
            fields.append((field.name, _described(cell | None, field.help), None))
    dtype: Any = Literal[form.op.dtypes]
    fields.append(("dtype", dtype) if form.default_dtype is None else ("dtype", dtype, form.default_dtype))
    title = "".join(part.capitalize() for part in name.split("_")) + "Operator"
    settings: dict[str, Any] = {"forbid_unknown_fields": True, "kw_only": True, "frozen": True}
    return defstruct(title, fields, tag_field="op", tag=name, module=__name__, **settings)


ROW_FORMS = {name: _row_form(name, form) for name, form in FORMS.items()}
FORM_OF: Mapping[type, Form] = {ROW_FORMS[name]: form for name, form in FORMS.items()}
Operator: Any = Union[tuple(ROW_FORMS.values())]  # noqa: UP007  built from a tuple


def _columns_of(fields: list[Field]) -> Any:
    """Type of a field in columns: one cell for all rows, or a list with null where a row has none."""
    cell: Any = str if fields[0].number is not None else float
    inner: Any = cell | _pair(float) if any(field.dim.pair for field in fields) else cell
    return _described(cell | list[inner | None] | None, fields[0].help)


def _column_fields() -> list[tuple[str, Any, Any]]:
    """Every field of every operator, as columns."""
    same: dict[str, list[Field]] = {}
    for form in FORMS.values():
        for field in form.fields:
            same.setdefault(field.name, []).append(field)
    return [(name, _columns_of(fields), None) for name, fields in same.items()]


COLUMN_FIELDS = _column_fields()
COLUMN_NAMES = ("op", "gpu", "dtype", *(name for name, _, _ in COLUMN_FIELDS))
PAIR_FIELDS = {field.name for form in FORMS.values() for field in form.fields if field.dim.pair}
# Columns whose cells are words; those of the others are numbers.
WORD_FIELDS = {"op", "gpu", "dtype"} | {
    field.name for form in FORMS.values() for field in form.fields if field.number is not None
}
