"""What a device draws while it works, and so what energy a workload takes: E = P x t (PM2Lat, equation 3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from app.predictors.auto.operators.physics.clock_model import IDLE_SHARE
from app.tables.gpus import GpuSpec

GIVEN, MEASURED, ELSEWHERE, BOARD = "request", "measured", "measured on other GPUs", "board power"
NOTES = {
    BOARD: (
        f"energy_j with power_source {BOARD!r} takes the board power, the most that a card draws; its interval begins "
        f"at {IDLE_SHARE:.0%} of it, what an idle card draws"
    ),
    ELSEWHERE: (
        f"energy_j with power_source {ELSEWHERE!r} takes the share of the board power that other GPUs draw when as "
        f"busy; its interval is from {IDLE_SHARE:.0%} of the board power, what an idle card draws, to all of it"
    ),
}


class Power(NamedTuple):
    """Watts of one device: the middle, the ends of its interval, and where they come from."""

    middle: float
    low: float
    high: float
    source: str


def notes_of(sources: Iterable[str | None]) -> list[str]:
    """What answers whose powers are from these should say once for all of them."""
    known = set(sources)
    return [words for source, words in NOTES.items() if source in known]


def given(watts: float) -> Power:
    """What the request says, taken as exact."""
    return Power(watts, watts, watts, GIVEN)


def of_board(spec: GpuSpec) -> Power | None:
    """Between an idle card and a card at its limit; None where the board power is not known."""
    most = spec.board_power_w
    return None if most is None else Power(most, IDLE_SHARE * most, most, BOARD)
