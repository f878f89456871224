"""Decode bytes into typed structs, and report every wrong field.

msgspec is fast and stops at the first error. Valid bodies cost nothing more. A refused body is checked again: each
wrong place is recorded and replaced from a valid example, until the rest is valid. Of a long body only the first error
is reported, so that its end is not read.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, TypeVar

import msgspec

from app.errors import MAX_ERRORS, BadInput, FieldError, Malformed
from app.wire.json_text import EXPLAINED_BYTES, PART_BYTES, Path, check_json_text, decode_in_parts, every_value
from app.wire.names import did_you_mean, field_hint, renamed_dtypes, with_own_dtypes

T = TypeVar("T")

_PLACE = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
# The key of a map's value, which msgspec does not name.
_SOME_KEY = "..."
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$", re.DOTALL)
_BAD_CHOICE = re.compile(r"^Invalid enum value (.*)$", re.DOTALL)
_BAD_TYPE = re.compile(r"^Expected `([a-z| ]+)`, got `([a-z]+)`$")
_BAD_NUMBER = re.compile(r"^Expected `(?:int|float)` (?:[<>]=? |that's a multiple of )")
# JSON's types in words; None is left out of what a field accepts unless nothing else is left.
_WORDS = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
    "object": "an object", "null": "null",
}  # fmt: skip
_TYPES = {int: "int", float: "float", str: "str", bool: "bool", list: "array", dict: "object", type(None): "null"}
_MOST_SHOWN = 60
_GROUPS = r"[ ,_']"
_GROUPED = re.compile(rf"\d{{1,3}}(?:{_GROUPS}\d{{3}})+")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")
_WITH_UNIT = re.compile(r"\d+(?:\.\d+)? ?[A-Za-zµ/]{1,12}")
UNKNOWN_FIELD = "unknown field"


def decode(decoder: msgspec.json.Decoder[T], body: bytes, *, example: Mapping[str, Any]) -> T:
    """Return one struct from JSON. Raises Malformed (400), or BadInput (422) that lists every wrong field.

    `example` is a valid instance in plain containers, used to repair one wrong field and find the next.
    """
    check_json_text(body)
    try:
        return decode_long(decoder, body)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError) as error:
        if (renamed := with_own_dtypes(body)) != body:
            return decode(decoder, renamed, example=example)
        if len(body) > EXPLAINED_BYTES:
            raise _first_error(error, decoder.type) from None
        raw = _decode_leniently(body, error)
    errors = field_errors(raw, decoder.type, example=example)
    if not errors and (place := _not_finite(raw)) is not None:  # in an object of any fields
        errors = [FieldError(place, "must be a finite number")]
    if not errors:  # Python accepts it, the standard does not: a lone surrogate, for example
        raise Malformed("The body is not valid JSON in UTF-8.")
    raise BadInput.of(errors)


def decode_long(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return one struct from valid JSON, of which long parts are in a field of any type, such as a workload or a graph.

    A long body is decoded in parts, between which other threads work. Raises as the decoder, or OverflowError.
    """
    return decoder.decode(body) if len(body) <= PART_BYTES else msgspec.convert(decode_in_parts(body), decoder.type)


def decode_plain(body: bytes) -> Any:
    """Return any JSON document in plain containers. NaN and Infinity pass; the reader of the field refuses them."""
    check_json_text(body)
    try:
        return decode_in_parts(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if len(body) > EXPLAINED_BYTES:
            raise _first_error(error, object) from None
        raw = _decode_leniently(body, error)
    try:
        msgspec.json.encode(raw)
    except UnicodeEncodeError:
        raise Malformed("The body is not valid JSON in UTF-8.") from None
    return raw


def convert(raw: object, form: type[T], *, example: Mapping[str, Any], loc: Path = ()) -> T:
    """Return one struct from plain containers. Raises BadInput that lists every wrong field under `loc`."""
    try:
        return msgspec.convert(raw, form)
    except msgspec.ValidationError:
        if (renamed := renamed_dtypes(raw)) != raw:
            return convert(renamed, form, example=example, loc=loc)
        errors = field_errors(raw, form, example=example, loc=loc)
        raise BadInput.of(errors) from None


def convert_quickly(raw: object, form: type[T]) -> T:
    """Return one struct from plain containers, of a long body. Raises BadInput with its first wrong field."""
    try:
        return msgspec.convert(raw, form)
    except (msgspec.ValidationError, OverflowError) as error:
        if (renamed := renamed_dtypes(raw)) != raw:
            return convert_quickly(renamed, form)
        raise _first_error(error, form) from None


def field_errors(raw: object, form: Any, *, example: Mapping[str, Any], loc: Path = ()) -> list[FieldError]:
    """Return every wrong field of `raw` in the order found, at most MAX_ERRORS; empty if it is valid."""
    repaired = copy.deepcopy(raw)
    errors: list[FieldError] = []
    while len(errors) < MAX_ERRORS:
        try:
            msgspec.convert(repaired, form)
            break
        except UnicodeEncodeError:  # a lone surrogate in a field's name: the enclosing document is not valid JSON
            break
        except msgspec.ValidationError as error:
            path, message = _split(str(error))
            path, message = _point_at_field(_with_key(path, message, repaired), message)
            if message == UNKNOWN_FIELD:
                message += field_hint(str(path[-1])) or did_you_mean(
                    str(path[-1]), _names_at(form, path[:-1], repaired)
                )
            if any(error.loc == loc + path for error in errors):  # the repair took it out and has nothing to put there
                break
            errors.append(FieldError(loc + path, _improve_message(message, path, repaired, form)))
            if not _repair(repaired, path, example):
                break
    return errors


def _first_error(error: Exception, form: Any) -> BadInput:
    """Return the error that ended the decoding of a long body."""
    if not isinstance(error, msgspec.ValidationError | OverflowError):
        return Malformed(f"The body is not valid JSON: {error}.", reason=str(error))
    path, message = _split(str(error))
    path, message = _point_at_field(_with_key(path, message, None), message)
    if message == UNKNOWN_FIELD:
        message += field_hint(str(path[-1]))
    errors = [FieldError(path, _improve_message(message, path, None, form))]
    return BadInput.of(errors)


def _decode_leniently(body: bytes, error: Exception) -> Any:
    """Return the body as Python decodes it: NaN and Infinity pass, so that the field that has one can be named."""
    try:
        return json.loads(body.decode("utf-8-sig"))
    except ValueError:
        raise Malformed(f"The body is not valid JSON: {error}.", reason=str(error)) from None


def _not_finite(raw: Any) -> Path | None:
    """Return the path of a NaN or infinity, or None."""
    wrong = (path for path, value in every_value(raw) if isinstance(value, float) and not isfinite(value))
    return next(wrong, None)


def _split(text: str) -> tuple[Path, str]:
    """Split a msgspec message "Expected ... - at `$.a[0].b`" into (path, message)."""
    message, _, place = text.rpartition(" - at `$")
    if not message:
        return (), text
    places = _PLACE.findall(place.removesuffix("`"))
    return tuple(name or (index if index == _SOME_KEY else int(index)) for name, index in places), message


def _with_key(path: Path, message: str, raw: Any) -> Path:
    """Return the path with the first key whose value has the wrong type in place of _SOME_KEY; else without it."""
    if _SOME_KEY not in path:
        return path
    at, wrong = path.index(_SOME_KEY), _BAD_TYPE.match(message)
    values = _get(raw, path[:at])
    keys = (
        [key for key, value in values.items() if wrong and _TYPES.get(type(value)) == wrong[2]]
        if isinstance(values, dict)
        else []
    )
    return _with_key((*path[:at], *keys[:1], *path[at + 1 :]), message, raw)


def _point_at_field(path: Path, message: str) -> tuple[Path, str]:
    """Point at the unknown or missing field itself, not at the enclosing object."""
    if unknown := _UNKNOWN.match(message):
        return (*path, unknown[1]), UNKNOWN_FIELD
    if missing := _MISSING.match(message):
        return (*path, missing[1]), "required field is missing"
    return path, message


def _improve_message(message: str, path: Path, raw: Any, form: Any) -> str:
    """Return the message with the valid choices added, and numbers described in plain terms."""
    value = _get(raw, path)
    if isinstance(value, float) and not abs(value) < float("inf"):
        return f"must be a finite number, got {value}"
    if choice := _BAD_CHOICE.match(message):
        valid = _choices(form, path, raw)
        return f"invalid value {choice[1]}{did_you_mean(str(value), valid)}" + (
            f"; valid: {', '.join(valid)}" if valid else ""
        )
    if wrong := _BAD_TYPE.match(message):
        return _wrong_type(wrong[1], wrong[2], value)
    given = f", got {value}" if _BAD_NUMBER.match(message) and isinstance(value, int | float) else ""
    return (
        message.replace("Expected", "expected", 1)
        .replace("`float` that's a multiple of 1.0", "a whole number")
        .replace("`float`", "a number")
        .replace("`int`", "a whole number")
        + given
        + _as_share(path, value)
    )


def _wrong_type(accepted: str, got: str, value: Any) -> str:
    """Return what a field accepts and what it was given, in words, with the value given where it is short."""
    names = [name for name in accepted.split(" | ") if name != "null"] or ["null"]
    expected = " or ".join(_WORDS.get(name, name) for name in names)
    shown = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, str | bool | int | float) else ""
    given = f" {shown[:_MOST_SHOWN]}" if shown else ""
    mend = _as_number(value) if got == "str" and {"int", "float"} & {*names} else ""
    return f"expected {expected}, got {_WORDS.get(got, got)}{given}{mend}"


def _as_number(text: Any) -> str:
    """Return what to send in place of a text that stands for a number."""
    if _is_number(text):
        return ": leave out the quotes"
    if _GROUPED.fullmatch(str(text)):
        return f": send {re.sub(_GROUPS, '', text)}"
    if share := _PERCENT.fullmatch(str(text)):
        return f": send {float(share[1]) / 100.0:g} for {share[1]} %"
    if _WITH_UNIT.fullmatch(str(text)):
        return ": send the number alone, written out, in the field's unit"
    return ""


def _is_number(text: Any) -> bool:
    try:
        return isfinite(float(text))
    except (TypeError, ValueError):
        return False


def _as_share(path: Path, value: Any) -> str:
    """Return what to send in place of a percentage."""
    if path and path[-1] == "coverage" and isinstance(value, int | float) and 1.0 < value < 100.0:
        return f": send {value / 100.0:g} for {value:g} %"
    return ""


def _get(raw: Any, path: Path) -> Any:
    for part in path:
        if isinstance(raw, dict) and isinstance(part, str):
            raw = raw.get(part)
        elif isinstance(raw, list) and isinstance(part, int) and part < len(raw):
            raw = raw[part]
        else:
            return None
    return raw


def _types(form: Any) -> Iterator[msgspec.inspect.Type]:
    if isinstance(form, msgspec.inspect.Metadata):
        yield from _types(form.type)
    elif isinstance(form, msgspec.inspect.UnionType):
        yield from (inner for option in form.types for inner in _types(option))
    else:
        yield form


def _choices(form: Any, path: Path, raw: Any) -> list[str]:
    """Return the literals that the field of `raw` at `path` accepts."""
    literals = [option for option in _types_at(form, path, raw) if isinstance(option, msgspec.inspect.LiteralType)]
    return list(dict.fromkeys(str(value) for option in literals for value in option.values))


def _names_at(form: Any, path: Path, raw: Any) -> list[str]:
    """Return the names of the fields that the object of `raw` at `path` may have."""
    tag = _get(raw, path)
    objects = [option for option in _types_at(form, path, raw) if isinstance(option, msgspec.inspect.StructType)]
    meant = [one for one in objects if one.tag_field and isinstance(tag, dict) and tag.get(one.tag_field) == one.tag]
    return list(dict.fromkeys(field.encode_name for one in meant or objects for field in one.fields))


def _types_at(form: Any, path: Path, raw: Any) -> list[msgspec.inspect.Type]:
    """Return the types that the place of `raw` at `path` accepts."""
    types = list(_types(msgspec.inspect.type_info(form)))
    for depth, part in enumerate(path):
        inner: list[msgspec.inspect.Type] = []
        holder = _get(raw, path[:depth])
        for option in types:
            if isinstance(option, msgspec.inspect.StructType):
                if option.tag_field and isinstance(holder, dict) and holder.get(option.tag_field) != option.tag:
                    continue
                inner += [kind for field in option.fields if field.encode_name == part for kind in _types(field.type)]
            elif isinstance(option, msgspec.inspect.ListType):
                inner += _types(option.item_type)
        types = inner
    return types


def _repair(raw: Any, path: Path, example: Any) -> bool:
    """Put the example's value at `path`, or remove the field. Returns False if neither is possible."""
    if not path:
        return False
    holder, last = _get(raw, path[:-1]), path[-1]
    pattern = _get(example, tuple(0 if isinstance(part, int) else part for part in path))
    if isinstance(holder, dict) and isinstance(last, str):
        if pattern is not None:
            holder[last] = copy.deepcopy(pattern)
            return True
        return holder.pop(last, None) is not None
    if isinstance(holder, list) and isinstance(last, int) and pattern is not None:
        holder[last] = copy.deepcopy(pattern)
        return True
    return False
