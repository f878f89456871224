"""Facts of a field, described once, on its struct: meaning, unit, range, choices and default.

The OpenAPI document, command-line options, columns of tables and forms follow from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import NODEFAULT, Meta, Struct, inspect

Kind: TypeAlias = Literal["whole", "number", "text", "flag", "list", "object"]


_KINDS: Mapping[type[inspect.Type], Kind | None] = {
    inspect.BoolType: "flag",
    inspect.IntType: "whole",
    inspect.FloatType: "number",
    inspect.ListType: "list",
    inspect.DictType: "object",
    inspect.StructType: "object",
    inspect.NoneType: None,
    inspect.Metadata: None,
    inspect.UnionType: None,
}


# Limits of whole numbers, also if a client writes them as 4.0.
WHOLE: Mapping[str, Any] = {"multiple_of": 1.0, "extra_json_schema": {"type": "integer"}}


def about(meaning: str, *, unit: str | None = None, **limits: Any) -> Meta:
    """Return the `Meta` of a field: its meaning in one phrase, the unit that it is written in, and msgspec's limits."""
    return Meta(description=meaning, extra=None if unit is None else {"unit": unit}, **limits)


class FieldFacts(NamedTuple):
    """What a struct says of one field.

    kind     the kind of its values: whole numbers, numbers, texts, flags, lists or objects
    unit     None: it has none
    choices  the texts that it may be; empty: any
    default  None: it may be left out, or must be given
    """

    name: str
    meaning: str
    kind: Kind
    unit: str | None
    choices: tuple[str, ...]
    default: Any


def field_facts(struct: type[Struct]) -> dict[str, FieldFacts]:
    """Return the facts of every field of a struct, by name."""
    described = inspect.type_info(struct)
    assert isinstance(described, inspect.StructType)
    return {field.encode_name: _facts(field) for field in described.fields}


def _facts(field: inspect.Field) -> FieldFacts:
    parts = list(_parts(field.type))
    notes = [part for part in parts if isinstance(part, inspect.Metadata)]
    meanings = (note.extra_json_schema.get("description") for note in notes if note.extra_json_schema)
    units = (note.extra.get("unit") for note in notes if note.extra)
    literals = [part for part in parts if isinstance(part, inspect.LiteralType)]
    return FieldFacts(
        field.encode_name,
        next(filter(None, meanings), ""),
        next(kind for part in parts if (kind := _kind(part)) is not None),
        next(filter(None, units), None),
        tuple(str(value) for literal in literals for value in literal.values),
        None if field.default is NODEFAULT else field.default,
    )


def _parts(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield a type, and those that it is made of."""
    yield kind
    if isinstance(kind, inspect.Metadata):
        yield from _parts(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for option in kind.types:
            yield from _parts(option)


def _kind(kind: inspect.Type) -> Kind | None:
    """Return the kind of a type's values; None of null, and of types that others make up."""
    whole = isinstance(kind, inspect.FloatType) and kind.multiple_of == 1.0
    whole |= isinstance(kind, inspect.LiteralType) and isinstance(kind.values[0], int)
    return "whole" if whole else _KINDS.get(type(kind), "text")
