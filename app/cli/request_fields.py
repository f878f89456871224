"""Parts of requests on the command line: JSON files, and NAME=VALUE fields."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.errors import BadInput

_PAIRS = {
    "--set": "FIELD=VALUE, like batch=8",
    "--measured": "GPU=MS, like nvidia-l4=0.52",
    "--price": "GPU=USD, like nvidia-l4=0.8",
    "--power": "GPU=W, like nvidia-l4=72",
}
_TRUTHS = {"true": True, "false": False}


def read_file(file: Path) -> bytes:
    """Return the bytes of a file; - is standard input. Raises BadInput."""
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}.") from error


def read_json(file: Path) -> Any:
    """Return the JSON of a file; - is standard input."""
    from app.wire.decoding import decode_plain

    return decode_plain(read_file(file))


def pair(text: str, option: str) -> tuple[str, str]:
    """Split NAME=VALUE at the last =, since a GPU's name may contain one."""
    name, separator, value = text.rpartition("=") if option == "--measured" else text.partition("=")
    if not separator or not name:
        raise BadInput(f"{option} {text}: {text!r} has no =; send {_PAIRS.get(option, 'NAME=VALUE')}.")
    return name, value


def value_of(text: str) -> Any:
    """Return the text as a number or truth value if it is one, else unchanged."""
    if text in _TRUTHS:
        return _TRUTHS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def put_fields(workload: dict[str, Any], fields: Sequence[str]) -> None:
    """Set every FIELD=VALUE; dots separate the names of nested fields."""
    for item in fields:
        name, value = pair(item, "--set")
        _put(workload, name.split("."), value_of(value))


def _put(holder: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = holder.setdefault(name, {})
        if not isinstance(inner, dict):
            raise BadInput(f"--set {'.'.join(path)}: {name} is not an object.")
        holder = inner
    holder[path[-1]] = value
