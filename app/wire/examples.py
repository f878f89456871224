"""Examples of requests, by kind: the documentation has them, and errors show them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from app.config import SEED_DATA

EXAMPLES: Mapping[str, dict[str, Any]] = json.loads((SEED_DATA / "examples.json").read_text("utf-8"))
