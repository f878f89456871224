"""Text typed into controls, as values of an API request."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

from app.dashboard.forms import FormField, Path
from app.errors import BadInput, FieldError, Malformed
from app.wire.decoding import decode_plain

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def put(workload: dict[str, Any], path: Path, value: Any) -> None:
    """Set the value at its path, creating objects and lists on the way."""
    if path[0] == "operators":
        workload.setdefault("operators", [{}])[0][path[2]] = value
        return
    for name in path[:-1]:
        workload = workload.setdefault(str(name), {})
    workload[str(path[-1])] = value


def value_of(field: FormField, text: str) -> Any:
    """Return the JSON value of a control. Raises BadInput for what no value can be read from."""
    if field.control == "number":
        return number_of(text)
    if field.control == "check":
        return True
    if field.control == "json":
        return json_of(field.name, ("workload", *field.path), text)
    if field.control == "pairs":
        pairs = pairs_of(("workload", *field.path), text)
        return [{"gpu": gpu, "latency_ms": ms} for gpu, ms in pairs.items()] if field.name == "measured" else pairs
    parts = [number_of(part) for part in text.strip("[]").split(",")]
    numbers = field.control == "text" and not any(isinstance(part, str) for part in parts)
    if numbers and field.path[0] == "operators":  # a size, or [height, width]
        return parts if len(parts) > 1 else parts[0]
    return text


def number_of(text: str) -> int | float | str:
    """Return the number as JSON; other text unchanged, for the API to refuse with a reason."""
    try:
        value = float(text)
    except ValueError:
        return text
    if not isfinite(value):
        return text
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def json_of(name: str, loc: Path, text: str) -> Any:
    """Return the value of JSON text. Raises BadInput that names the control."""
    try:
        return decode_plain(text.encode("utf-8", "surrogatepass"))
    except BadInput as error:
        message = f"not valid JSON: {(isinstance(error, Malformed) and error.reason) or error.detail.removesuffix('.')}"
        if name == "config" and _REPOSITORY.fullmatch(text):
            message = f"{text!r} is a name on Hugging Face: paste the text of its config.json"
        raise BadInput(message, errors=[FieldError(loc, message)]) from None


def pairs_of(loc: Path, text: str) -> dict[str, Any]:
    """Return the numbers of lines of a name and a number. Raises BadInput that names the line."""
    pairs: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, _, figure = line.strip().replace("\t", " ").rpartition(" ")
        value = number_of(figure)
        if not name or isinstance(value, str):
            plain = f"{name or figure} {_plain_number(figure) if name else '0.8'}".strip()
            message = f"line {number}: expected a name, a space and a number, such as {plain[:60]!r}, not {line[:60]!r}"
            raise BadInput(message, errors=[FieldError(loc, message)])
        pairs[name.strip()] = value
    return pairs


def _plain_number(figure: str) -> str:
    """Return the number in a figure with a currency, a unit or a decimal comma; an example where it has none."""
    plain = re.search(r"\d+(?:[.,]\d+)?", figure)
    return plain[0].replace(",", ".") if plain else "0.8"
