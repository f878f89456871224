"""Refusal of one field of a request."""

from __future__ import annotations

from typing import NoReturn

from app.errors import BadInput, FieldError


def refuse(loc: tuple[str | int, ...], why: str) -> NoReturn:
    """Raise BadInput for the field at `loc`."""
    raise BadInput(f"{'.'.join(map(str, loc[1:]))}: {why}", errors=[FieldError(loc, why)])
