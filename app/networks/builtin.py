"""Built-in transformer configurations by name (seed_data/models)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from app.config import SEED_DATA


def names() -> tuple[str, ...]:
    """Return all names, without aliases, in order."""
    return tuple(path.stem for path in _files())


def find_config(name: str) -> Mapping[str, Any] | None:
    """Return the configuration of a name or alias, ignoring case, or None."""
    return _configs().get(name.lower())


def canonical_name(name: str) -> str | None:
    """Return the name of the network that a name or alias means, ignoring case, or None."""
    config = find_config(name)
    return next((known for known in names() if find_config(known) is config), None) if config is not None else None


def _files() -> list[Path]:
    return sorted((SEED_DATA / "models").glob("*.json"))


@cache
def _configs() -> Mapping[str, Mapping[str, Any]]:
    """Return configurations by name and alias, in lower case."""
    configs: dict[str, Mapping[str, Any]] = {}
    for path in _files():
        model = json.loads(path.read_text("utf-8"))
        configs |= dict.fromkeys((name.lower() for name in (path.stem, *model["aliases"])), model["config"])
    return configs
