"""Transformers by name: configurations that ship (seed_data/models), read once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from app.config import SEED_DATA


def names() -> tuple[str, ...]:
    """Every name, without aliases, in order."""
    return tuple(path.stem for path in _files())


def config_of(name: str) -> Mapping[str, Any] | None:
    """The configuration of a name or alias, in whatever case; None where there is none."""
    return _configs().get(name.lower())


def _files() -> list[Path]:
    return sorted((SEED_DATA / "models").glob("*.json"))


@cache
def _configs() -> Mapping[str, Mapping[str, Any]]:
    """By name and by alias, in lower case."""
    found: dict[str, Mapping[str, Any]] = {}
    for path in _files():
        model = json.loads(path.read_text("utf-8"))
        found |= dict.fromkeys((name.lower() for name in (path.stem, *model["aliases"])), model["config"])
    return found
