"""Answers as CSV: a line per GPU, nested fields as columns with dots, lists in one cell."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec


def as_csv(items: Iterable[msgspec.Struct]) -> str:
    """Return a header of all fields of any item, and a line per item; absent and unknown figures are empty."""
    rows = [dict(_flat(msgspec.to_builtins(item))) for item in items]
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return all column names in the order of the fields; a nested object has the columns of any row that has it."""
    names = dict.fromkeys(name for row in rows for name in row)
    inner = {name: [other for other in names if other.startswith(f"{name}.")] for name in names}
    return list(dict.fromkeys(column for name in names for column in inner[name] or [name]))


def _flat(item: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in item.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif isinstance(value, list) and not all(isinstance(item, str) for item in value):
            yield f"{before}{name}", msgspec.json.encode(value).decode()
        else:
            yield f"{before}{name}", "; ".join(value) if isinstance(value, list) else value
