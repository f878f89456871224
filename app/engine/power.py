"""Power draw of a device, and so the energy of a workload: E = P x t (PM2Lat, equation 3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from app.predictors.physics.clock_model import IDLE_SHARE
from app.tables.gpus import GpuSpec

GIVEN, MEASURED, ELSEWHERE, BOARD = "request", "measured", "measured on other GPUs", "board power"
ESTIMATED = "estimated from the load"
NOTES = {
    ESTIMATED: (
        f"{ESTIMATED!r} assumes a share of the board power by how busy compute units and "
        "memory are, which may be a quarter off"
    ),
    BOARD: (
        f"{BOARD!r} assumes the board power, an upper bound; its interval begins "
        f"at {IDLE_SHARE:.0%} of it, the draw of an idle card"
    ),
    ELSEWHERE: (
        f"{ELSEWHERE!r} assumes the share of the board power that other GPUs draw when as "
        "busy, which may be a quarter off"
    ),
}


class Power(NamedTuple):
    """Watts of one device: the estimate, the ends of its interval, and the source."""

    middle: float
    low: float
    high: float
    source: str


def power_notes(sources: Iterable[str | None], subject: str = "energy_j with power_source") -> list[str]:
    """Return the notes about these power sources, each once; `subject` names what was computed from the power."""
    known = set(sources)
    return [f"{subject} {note}" for source, note in NOTES.items() if source in known]


def stated_power(watts: float) -> Power:
    """Return the power that a request states, taken as exact."""
    return Power(watts, watts, watts, GIVEN)


def board_power(spec: GpuSpec) -> Power | None:
    """Return the range between an idle card and a card at its power limit; None if the board power is unknown."""
    most = spec.board_power_w
    return None if most is None else Power(most, IDLE_SHARE * most, most, BOARD)
