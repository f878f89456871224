"""Bytes to typed structs, with every wrong field named.

msgspec is quick and stops at the first error. The happy path costs nothing more; a refused body is looked at
again: each wrong place is noted, mended from a valid example, and the rest is checked until nothing is left.
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
from app.wire.json_text import Path, every_value, refuse_unsound

T = TypeVar("T")

_PLACE = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$", re.DOTALL)
_BAD_CHOICE = re.compile(r"^Invalid enum value (.*)$", re.DOTALL)


def decode(decoder: msgspec.json.Decoder[T], body: bytes, *, example: Mapping[str, Any]) -> T:
    """One struct from JSON; raises Malformed (400) or BadInput (422) that lists every wrong field.

    `example` is a valid instance in plain containers, used to look past one wrong field at the next.
    """
    refuse_unsound(body)
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raw = _plain(body, error)
    errors = field_errors(raw, decoder.type, example=example)
    if not errors and (place := _not_finite(raw)) is not None:  # in an object of any fields
        errors = [FieldError(place, "must be a finite number")]
    if not errors:  # JSON to Python and not to the standard: a lone surrogate, say
        raise Malformed("The body is not valid JSON in UTF-8.")
    raise BadInput(summary(errors), errors=errors)


def plain(body: bytes) -> Any:
    """Any JSON document as plain containers; NaN and Infinity pass, for the reader of the field to refuse."""
    refuse_unsound(body)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raw = _plain(body, error)
    try:
        msgspec.json.encode(raw)
    except UnicodeEncodeError:
        raise Malformed("The body is not valid JSON in UTF-8.") from None
    return raw


def convert(raw: object, form: type[T], *, example: Mapping[str, Any], loc: Path = ()) -> T:
    """One struct from plain containers; raises BadInput that lists every wrong field under `loc`."""
    try:
        return msgspec.convert(raw, form)
    except msgspec.ValidationError:
        errors = field_errors(raw, form, example=example, loc=loc)
        raise BadInput(summary(errors), errors=errors) from None


def summary(errors: list[FieldError]) -> str:
    """The first wrong field in one sentence, and how many more there are."""
    first = errors[0]
    where = ".".join(str(part) for part in first.loc) or "body"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{where}: {first.msg}{more}"


def field_errors(raw: object, form: Any, *, example: Mapping[str, Any], loc: Path = ()) -> list[FieldError]:
    """Every wrong field of `raw`, at most MAX_ERRORS, in the order found; empty when it is valid."""
    mended = copy.deepcopy(raw)
    errors: list[FieldError] = []
    while len(errors) < MAX_ERRORS:
        try:
            msgspec.convert(mended, form)
            break
        except UnicodeEncodeError:  # a lone surrogate in a field's name: what holds it is no JSON
            break
        except msgspec.ValidationError as error:
            path, message = _split(str(error))
            path, message = _pointed(path, message)
            if any(error.loc == loc + path for error in errors):  # it was taken out: nothing is known to put there
                break
            errors.append(FieldError(loc + path, _helped(message, path, mended, form)))
            if not _mend(mended, path, example):
                break
    return errors


def _plain(body: bytes, error: Exception) -> Any:
    """The body as Python sees it: NaN and Infinity pass here, so that the field holding one can be named."""
    try:
        return json.loads(body.decode("utf-8-sig"))
    except ValueError:
        raise Malformed(f"The body is not valid JSON: {error}.") from None


def _not_finite(raw: Any) -> Path | None:
    """Where a NaN or infinity is."""
    wrong = (path for path, value in every_value(raw) if isinstance(value, float) and not isfinite(value))
    return next(wrong, None)


def _split(text: str) -> tuple[Path, str]:
    """A msgspec message into (path, message): "Expected ... - at `$.a[0].b`"."""
    message, _, place = text.rpartition(" - at `$")
    if not message:
        return (), text
    found = _PLACE.findall(place.removesuffix("`").replace("[...]", ""))  # some value of a map: msgspec names no key
    return tuple(name or int(index) for name, index in found), message


def _pointed(path: Path, message: str) -> tuple[Path, str]:
    """Point at the unknown or missing field itself, not at the object around it."""
    if unknown := _UNKNOWN.match(message):
        return (*path, unknown[1]), "unknown field"
    if missing := _MISSING.match(message):
        return (*path, missing[1]), "required field is missing"
    return path, message


def _helped(message: str, path: Path, raw: Any, form: Any) -> str:
    """Add the valid choices to a refused one, and plain words for a number that is none."""
    value = _get(raw, path)
    if isinstance(value, float) and not abs(value) < float("inf"):
        return f"must be a finite number, got {value}"
    if choice := _BAD_CHOICE.match(message):
        valid = _choices(form, path, raw)
        return f"invalid value {choice[1]}" + (f"; valid: {', '.join(valid)}" if valid else "")
    return (
        message.replace("Expected", "expected", 1)
        .replace("`float` that's a multiple of 1.0", "a whole number")
        .replace("`float`", "a number")
    )


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
    """The literals that the field of `raw` at `path` accepts."""
    found = [msgspec.inspect.type_info(form)]
    for depth, part in enumerate(path):
        inner: list[msgspec.inspect.Type] = []
        holder = _get(raw, path[:depth])
        for option in found:
            if isinstance(option, msgspec.inspect.StructType):
                if option.tag_field and isinstance(holder, dict) and holder.get(option.tag_field) != option.tag:
                    continue
                inner += [kind for field in option.fields if field.encode_name == part for kind in _types(field.type)]
            elif isinstance(option, msgspec.inspect.ListType):
                inner += _types(option.item_type)
        found = inner
    literals = [option for option in found if isinstance(option, msgspec.inspect.LiteralType)]
    return list(dict.fromkeys(str(value) for option in literals for value in option.values))


def _mend(raw: Any, path: Path, example: Any) -> bool:
    """Put the example's value at `path`, or take the field out; False where neither can be."""
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
