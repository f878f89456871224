"""Facts of a field, described once, on its struct.

Meaning, unit and range follow from there into the OpenAPI document, command-line options, columns and forms.
"""

from __future__ import annotations

from typing import Any

from msgspec import Meta


def about(meaning: str, *, unit: str | None = None, **limits: Any) -> Meta:
    """Return the `Meta` of a field: its meaning in one phrase, the unit that it is written in, and msgspec's limits."""
    return Meta(description=meaning, extra=None if unit is None else {"unit": unit}, **limits)
