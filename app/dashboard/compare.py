"""The comparison page: requests from addresses, and the addresses of its rows."""

from __future__ import annotations

from typing import Any

import msgspec

from app.dashboard.address import Address
from app.wire.compare_form import Compared

# Sizes of a network that is not split; 1 for others.
_ALONE = {"zero": 0}


def compare_body(address: Address) -> dict[str, Any]:
    """Return the POST /compare request of an address. Raises BadInput that names unreadable controls."""
    common = address.common
    more: dict[str, Any] = {"rank_by": common.get("rank_by", "latency")}
    more |= {name: figures for name in ("prices", "powers") if (figures := address.figures(name))}
    if "powers" in more:
        more["powers_w"] = more.pop("powers")
    if "search_parallelism" in common:
        more["search_parallelism"] = True
    if "max_devices" in common:
        more["max_devices"] = address.number("max_devices")
    return address.body(**more)


def split_controls(row: Compared) -> dict[str, str]:
    """Return the controls that split a network as this row did; empty for sizes of 1."""
    split = msgspec.to_builtins(row.parallelism) or {}
    return {name: str(size) if size != _ALONE.get(name, 1) else "" for name, size in split.items()}
