"""Pickle a dataclass without what it caches."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def fields_only(item: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, as its `__getstate__`: cached properties are derived again where it is read.

    They may depend on the identities of objects, which others have in another process.
    """
    return {each.name: getattr(item, each.name) for each in fields(item)}
