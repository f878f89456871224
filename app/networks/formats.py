"""Number formats of a model by kind of part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Formats:
    """Number formats of weights and products by kind of part, as published (`quantization_config`); "": 16 bits.

    linear      linear layers of dense feed-forward parts, and what no other field names
    shared      shared experts
    attention   projections of attention
    recurrence  projections of linear attention
    experts     routed experts
    head        logits
    kv_cache    keys and values
    """

    linear: str = ""
    shared: str = ""
    attention: str = ""
    recurrence: str = ""
    experts: str = ""
    head: str = ""
    kv_cache: str = ""


def has_formats(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration says how the model is quantised."""
    text = config.get("text_config")
    parts = (config, text) if isinstance(text, Mapping) else (config,)
    return any(part.get(name) is not None for part in parts for name in ("quantization_config", "quantization"))
