"""Interval groups as artefacts of version 0.1.0 hold them: numbers computed from the lists of that version.

Frozen: these lists are those of 0.1.0, whatever operators, dtypes and situations there are by now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_GROUPS = ("exact", "same_gpu", "other_gpu", "other_gpu_and_size", "related", "none")
_LINES = (
    "attention",
    "bmm",
    "collective",
    "conv2d",
    "elementwise",
    "embedding",
    "linear",
    "memory",
    "moe",
    "norm",
    "pool",
    "recurrent",
    "softmax",
    "network",
    "attention_decode",
)
_DTYPES = (
    "fp64",
    "fp32",
    "tf32",
    "fp16",
    "bf16",
    "fp8",
    "fp8_block",
    "int8",
    "nvfp4",
    "int4_wo",
    "w4a16_mxfp4",
    "w4a8_mxfp4",
    "w4a8_mxfp4_mxfp8",
)
_SITUATIONS = (
    "measured",
    "seen",
    "seen_outside",
    "calibrated",
    "sibling",
    "unseen",
    "unseen_outside",
    "untrained",
)


def group_name(code: int) -> str:
    """The name of the group that 0.1.0 stored under this code; IndexError if there is none."""
    if code < len(_GROUPS):
        return _GROUPS[code]
    cell, situation = divmod(code - len(_GROUPS), len(_SITUATIONS))
    line, dtype = divmod(cell, len(_DTYPES))
    return f"{_LINES[line]}/{_DTYPES[dtype]}/{_SITUATIONS[situation]}"


def from_positional_groups_of_0_1_0(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state of intervals with its groups by name, from one of 0.1.0; names stay as they are."""
    return {
        part: {group_name(key) if isinstance(key, int) else key: of for key, of in groups.items()}
        for part, groups in state.items()
    }
