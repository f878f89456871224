"""Number formats of a model by kind of part."""

from __future__ import annotations

from dataclasses import dataclass


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
