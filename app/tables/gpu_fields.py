"""Fields of a GPU description: allowed values, and error messages."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from app.config import SEED_DATA
from app.errors import FieldError
from app.tables.gpus import PIPES, GpuSpec

PROVENANCES = ("datasheet", "measured", "inferred")
KINDS = ("gpu", "cpu")
_ID = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
_CAPABILITY = re.compile(r"\d{1,2}\.\d")
# What a terminal obeys, or turns the direction of text, and what is no character.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LONGEST_TEXT = 2000
_LONGEST_NAME = 200
_MOST_ALIASES = 64

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """A number from `low` to `high` in `unit`, an integer if `whole`."""

    low: float
    high: float
    unit: str
    whole: bool = False


# What each field is, and of numbers the range: wide enough for any device from 1985 to ten thousand times today's,
# narrow enough to detect a wrong unit.
_FIELDS = json.loads((SEED_DATA / "gpu_fields.json").read_bytes())
MEANINGS: dict[str, str] = {name: of.pop("meaning") for name, of in _FIELDS.items()}
NUMBERS = {name: Range(**of) for name, of in _FIELDS.items() if of}
_RATE = Range(1e6, 1e21, "operations per second")
_TEXTS = ("name", "vendor", "architecture", "memory_type", "link_type", "source", "note")
FIELDS = tuple(item.name for item in fields(GpuSpec))


def _number(value: object, allowed: Range) -> float | str:
    """Return the number, or an error message."""
    whole = "whole " if allowed.whole else ""
    valid = f"send a {whole}number between {allowed.low:g} and {allowed.high:g} ({allowed.unit})"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"is not a number; {valid}"
    if not allowed.low <= value <= allowed.high:  # also catches NaN, infinities and integers beyond float
        return f"{_shown(value)} is out of range; {valid}"
    if allowed.whole:
        return int(value) if value == math.floor(value) else f"{value:g} is not whole; {valid}"
    return float(value)


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) or abs(value) < 1e300 else "the integer"


def _text(value: object, longest: int) -> str:
    """Return an error message for a text, or ""."""
    if not isinstance(value, str):
        return "is not text; send a string"
    if len(value) > longest:
        return f"is too long; send at most {longest} characters"
    return "holds control characters; send plain text" if _CONTROL.search(value) else ""


class Reader:
    """Reads a description field by field; `values` holds the valid values, `errors` all errors."""

    def __init__(self, where: Loc) -> None:
        self.where = where
        self.values: dict[str, Any] = {}
        self.errors: list[FieldError] = []

    def refuse(self, msg: str, *loc: str | int) -> None:
        """Add an error at `loc` in the description."""
        self.errors.append(FieldError((*self.where, *loc), msg))

    def read(self, partial: Mapping[str, Any]) -> None:
        """Check every given field; null means not given."""
        for key, value in partial.items():
            if key not in FIELDS:
                self._unknown(key)
            elif value is not None:
                self._field(key, value)

    def _unknown(self, key: object) -> None:
        shown = str(key)[:80]
        near = difflib.get_close_matches(shown, FIELDS, 2, 0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the fields are {', '.join(FIELDS)}"
        self.refuse(f"unknown field; {hint}", shown)

    def _field(self, key: str, value: Any) -> None:
        if key in NUMBERS:
            number = _number(value, NUMBERS[key])
            if isinstance(number, str):
                self.refuse(number, key)
            else:
                self.values[key] = number
        elif key in _TEXTS:
            self._keep_text(key, value)
        else:
            getattr(self, f"_read_{key}")(value)

    def _keep_text(self, key: str, value: Any) -> None:
        wrong = _text(value, _LONGEST_TEXT if key in ("source", "note") else _LONGEST_NAME)
        if wrong:
            self.refuse(wrong, key)
        elif value.strip():
            self.values[key] = value.strip()

    def _read_id(self, value: Any) -> None:
        if not isinstance(value, str) or len(value) > 100 or not _ID.fullmatch(value):
            self.refuse("send lower-case letters and digits joined by hyphens, such as h100-sxm5-80gb", "id")
        else:
            self.values["id"] = value

    def _read_kind(self, value: Any) -> None:
        if value not in KINDS:
            self.refuse("send gpu or cpu", "kind")
        else:
            self.values["kind"] = value

    def _read_compute_capability(self, value: Any) -> None:
        if not isinstance(value, str) or not _CAPABILITY.fullmatch(value):
            self.refuse('send it as text, such as "8.9"', "compute_capability")
        else:
            self.values["compute_capability"] = value

    def _read_aliases(self, value: Any) -> None:
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) > _MOST_ALIASES:
            self.refuse(f"send a list of at most {_MOST_ALIASES} names", "aliases")
            return
        for k, alias in enumerate(value):
            wrong = _text(alias, _LONGEST_NAME) or ("" if alias.strip() else "is empty; send a name")
            if wrong:
                self.refuse(wrong, "aliases", k)
        self.values["aliases"] = tuple(value)

    def _read_peak_flops(self, value: Any) -> None:
        """Read peaks by pipe; null means that the device lacks the pipe."""
        if not isinstance(value, Mapping):
            self.refuse('send an object of rates by pipe, such as {"fp32": 14.9e12}', "peak_flops")
            return
        peaks: dict[str, float | None] = {}
        for pipe, rate in value.items():
            number = None if rate is None else _number(rate, _RATE)
            if pipe not in PIPES:
                self.refuse(f"unknown pipe; the pipes are {', '.join(PIPES)}", "peak_flops", str(pipe)[:80])
            elif isinstance(number, str):
                self.refuse(number, "peak_flops", pipe)
            else:
                peaks[pipe] = number
        self.values["peak_flops"] = peaks

    def _read_provenance(self, value: Any) -> None:
        if not isinstance(value, Mapping):
            self.refuse("send an object of field name to datasheet, measured or inferred", "provenance")
            return
        for key, word in value.items():
            if key not in FIELDS and key.removeprefix("peak_flops.") not in PIPES:
                self.refuse("not a field, nor peak_flops.<pipe>", "provenance", str(key)[:80])
            elif word not in PROVENANCES:
                self.refuse(f"send one of {', '.join(PROVENANCES)}", "provenance", key)
        self.values["provenance"] = dict(value)
