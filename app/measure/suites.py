"""The suites by name. Each is imported when it is asked for: some need more than PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from app.measure.device import Device
from app.measure.point import Point

# Modules with `points(device)`, in the order in which they are run.
SUITES = {
    "device": "app.measure.device_suite",
    "kernels": "app.measure.kernels_suite",
    "operators": "app.measure.operators.suite",
    "models": "app.measure.models_suite",
}
# Short, and what calibrates a GPU that has no other data: run whole before any other has its share of the time.
ALWAYS = ("device",)


def points_of(suite: str, device: Device) -> Sequence[Point]:
    """Every point of a suite of SUITES, in the order of usefulness."""
    found: Sequence[Point] = import_module(SUITES[suite]).points(device)
    return found
