"""Suites by name, imported at use: some need more than PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from app.measure.device import Device
from app.measure.point import Point

# Modules with `points(device)`, in running order.
SUITES = {
    "device": "app.measure.device_suite",
    "kernels": "app.measure.kernels_suite",
    "operators": "app.measure.operators_suite",
    "models": "app.measure.models_suite",
}
# Suites that run completely before the others share the time: short, and enough to calibrate an unknown GPU.
ALWAYS = ("device",)


def points_of(suite: str, device: Device) -> Sequence[Point]:
    """Return the points of a suite of SUITES, the most useful first."""
    points: Sequence[Point] = import_module(SUITES[suite]).points(device)
    return points
