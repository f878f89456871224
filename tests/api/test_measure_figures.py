"""Figures that a device was measured to have, told to a server that has none of them."""

from __future__ import annotations

from typing import Any

from app.measure.upload import Server
from tests.service import Service

CARD: dict[str, Any] = {
    "name": "Card of the device suite",
    "compute_capability": "9.0",
    "sm_count": 100,
    "boost_clock_hz": 1.5e9,
    "memory_bytes": 80e9,
    "memory_bandwidth_bytes_per_s": 3e12,
}


def test_figures_are_told_where_there_are_none(service: Service) -> None:
    service.client.post("/gpus", json=CARD).raise_for_status()
    server, path = Server(f"http://127.0.0.1:{service.port}"), f"/gpus/{CARD['name']}"
    found = {"triad_bandwidth_bytes_per_s": 2.6e12, "launch_overhead_s": 2e-6}
    assert server.tell_figures(CARD["name"], found) == found
    assert server.tell_figures(CARD["name"], {"launch_overhead_s": 3e-6}) == {}
    known = service.client.get(path).raise_for_status().json()
    assert {name: known[name] for name in found} == found
    assert {known["provenance"][name] for name in found} == {"measured"}
