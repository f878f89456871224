"""The fields of all operators as a table of the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from app.ops.base import COMMON, Op


def fields_table(ops: Sequence[Op]) -> str:
    """Return a Markdown table: every field, the operators that have it, what it means, and its default."""
    having: dict[tuple[str, str, str], list[str]] = {}
    for op in ops:
        for dim in op.dims:
            if dim not in COMMON:
                having.setdefault((dim.name, dim.help, _default(dim.default, dim.choices)), []).append(f"`{op.name}`")
    rows = [
        f"| `{name}` | {', '.join(names)} | {help_} | {default} |" for (name, help_, default), names in having.items()
    ]
    return "\n".join(["| field | operators | meaning | default |", "|---|---|---|---|", *rows])


def _default(value: float | None, choices: tuple[str, ...]) -> str:
    """How a row reads that leaves the field out; required fields have none, and of NaN the help says it."""
    if value is None or value != value:  # noqa: PLR0124  NaN
        return "required" if value is None else ""
    return choices[int(value)] if choices else f"{value:.15g}"
