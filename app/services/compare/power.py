"""What a device draws while it works, and so what energy a workload takes: E = P x t (PM2Lat, equation 3)."""

from __future__ import annotations

from typing import NamedTuple

from app.predictors.operators.sustained import IDLE_SHARE
from app.tables.gpus import GpuSpec

GIVEN, BOARD = "request", "board power"
BOARD_NOTE = (
    f"energy_j with power_source {BOARD!r} takes the board power, the most that a card draws; its interval begins at "
    f"{IDLE_SHARE:.0%} of it, what an idle card draws"
)


class Power(NamedTuple):
    """Watts of one device: the middle, the ends of its interval, and where they come from."""

    middle: float
    low: float
    high: float
    source: str


def given(watts: float) -> Power:
    """What the request says, taken as exact."""
    return Power(watts, watts, watts, GIVEN)


def of_board(spec: GpuSpec) -> Power | None:
    """Between an idle card and a card at its limit; None where the board power is not known."""
    most = spec.board_power_w
    return None if most is None else Power(most, IDLE_SHARE * most, most, BOARD)
