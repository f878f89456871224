"""Measured loads on served models, as the engine keeps them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple


class ServedPoint(NamedTuple):
    """A measured load: means over its requests, seconds.

    workload  the workload of kind `serving` in the API's form
    """

    workload: Mapping[str, Any]
    ttft_s: float
    tpot_s: float
    e2e_s: float


class ServedPoints(NamedTuple):
    """Measured loads by deployment and GPU id; `fingerprint` identifies the stored rows that they come from."""

    by_deployment: Mapping[tuple[Hashable, str], Sequence[ServedPoint]] = {}
    fingerprint: str = ""
