"""Configurations of the scorecard's networks, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from app.config import SEED_DATA
from app.graphs.builtin import find_config

PATH = SEED_DATA / "scorecard" / "models.json"


def config_of(name: str) -> Mapping[str, Any] | None:
    """Return the configuration of a network by its repository's name; None if it is unknown."""
    return _configs().get(name) or find_config(name)


@cache
def _configs() -> Mapping[str, Mapping[str, Any]]:
    configs: dict[str, Mapping[str, Any]] = json.loads(PATH.read_text("utf-8"))
    return configs
