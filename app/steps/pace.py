"""Progress of host, compute stream and communication stream over a sequence of rows, in closed form.

The state (h, d, c) is when the host, the device's compute stream and its communication stream become free. A row has
`count` launches of t seconds each, which the host issues `host` seconds apart. It advances the state as follows:

    compute row:          h' = h + count host; d' = d, then max(d', its launch) + t for each launch
    overlapped transfer:  the same on c, and not before d (a reduction sends computed data; a gather does not wait)

This is linear in (max, +) algebra (Baccelli et al. 1992), and so is any sequence of rows: a `Pace` of six numbers,

    h' = h + host;  d' = max(d + device, h + drain);  c' = max(c + link, d + send, h + push).

Compositions of paces are paces, and R repetitions of one have a closed form: a path through the repetitions spends some
on the host, then some on the device, then some on the link; its length is linear in these numbers, so the longest path
spends all repetitions on one of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.tables.arrays import Bools, Floats, Ints

NEVER = -np.inf


class State(NamedTuple):
    """Times at which host, device and communication stream become free, seconds, float64 [g] each."""

    host: Floats
    device: Floats
    link: Floats


class Pace(NamedTuple):
    """Advance of the state by a sequence of rows, seconds, float64 [g] each (the module's equations)."""

    host: Floats
    device: Floats
    link: Floats
    drain: Floats
    send: Floats
    push: Floats

    def then(self, after: Pace) -> Pace:
        """Return the pace of this sequence followed by `after`."""
        return Pace(
            self.host + after.host,
            self.device + after.device,
            self.link + after.link,
            np.maximum(self.drain + after.device, self.host + after.drain),
            np.maximum(self.send + after.link, self.device + after.send),
            np.maximum.reduce([self.push + after.link, self.drain + after.send, self.host + after.push]),
        )

    def times(self, repeats: float | Floats) -> Pace:
        """Return the pace of `repeats` repetitions, whole numbers that broadcast; 0 repetitions have the empty pace."""
        again = np.asarray(repeats) - 1.0
        never = np.where(again < 0.0, NEVER, 0.0)
        push = self.push + again * np.maximum(self.host, self.link)
        if (again > 0.0).any():
            slowest = np.maximum(np.maximum(self.host, self.device), self.link)
            push = np.maximum(push, np.where(again > 0.0, self.drain + self.send + (again - 1.0) * slowest, NEVER))
        return Pace(
            repeats * self.host,
            repeats * self.device,
            repeats * self.link,
            self.drain + again * np.maximum(self.host, self.device) + never,
            self.send + again * np.maximum(self.device, self.link) + never,
            push + never,
        )

    def move(self, state: State) -> State:
        """Return the state after these rows."""
        h, d, c = state
        return State(
            h + self.host,
            np.maximum(d + self.device, h + self.drain),
            np.maximum.reduce([c + self.link, d + self.send, h + self.push]),
        )


def start(g: int) -> State:
    """Return the initial state: all free at 0."""
    return State(*np.zeros((3, g)))


def still(g: int) -> Pace:
    """Return the pace of an empty sequence."""
    zero, never = np.zeros(g), np.full(g, NEVER)
    return Pace(zero, zero, zero, never, never, never)


class Launches(NamedTuple):
    """k rows of one block.

    seconds     float64 [k, g], device seconds per launch
    host        float64 [k, g] or [g], host seconds per launch
    launches    float64 [k, 1] or [k, g]
    overlapped  bool [k], True for communication that overlaps computation
    waits       bool [k], True if such communication waits for the computation before it
    """

    seconds: Floats
    host: Floats
    launches: Floats
    overlapped: Bools
    waits: Bools


def _ends(rows: Launches) -> tuple[Floats, Floats, Floats]:
    """Return when each row's last launch is issued, its device time and its earliest end, seconds, [k, g] each.

    A row's earliest end follows from its first launch and all device time, or from its last launch and one of them.
    """
    launched = np.cumsum(rows.launches * rows.host, axis=0)
    first = launched - np.maximum(rows.launches - 1.0, 0.0) * rows.host
    each = rows.launches * rows.seconds
    return launched, each, np.maximum(first + each, launched + np.minimum(each, rows.seconds))


def paces_of(rows: Launches, starts: Ints) -> Floats:
    """Return the paces of runs of compute rows, [6, runs, g] in the order of Pace; `starts`, int [runs], first rows."""
    launched, each, ends = _ends(rows)
    done = np.cumsum(each, axis=0)
    last = np.append(starts[1:], len(each)) - 1
    drain = np.maximum.reduceat(ends - done, starts)
    host, device = (np.diff(total[last], axis=0, prepend=0.0) for total in (launched, done))
    # Count from each run's first row.
    drain -= (launched - done)[last] - (host - device)
    zero, never = np.zeros_like(host), np.full_like(host, NEVER)
    return np.array([host, device, zero, device + drain, never, never])


def pace_of(rows: Launches) -> Pace:
    """Return the pace of rows some of which overlap the others."""
    launched, each, ends = _ends(rows)
    overlapped = rows.overlapped[:, None]
    sends = overlapped & (rows.launches > 0)  # with several configurations, some send nothing here
    done, sent = np.cumsum(np.where(overlapped, 0.0, each), axis=0), np.cumsum(np.where(overlapped, each, 0.0), axis=0)
    ready = np.maximum.accumulate(np.where(overlapped, NEVER, ends - done), axis=0)
    rest = np.where(sends, sent[-1] - sent, NEVER)  # link time that follows a row
    behind = np.where(sends & rows.waits[:, None], rest + each + done, NEVER)
    return Pace(
        launched[-1],
        done[-1],
        sent[-1],
        done[-1] + ready[-1],
        behind.max(axis=0),
        np.maximum((ends + rest).max(axis=0), (behind + ready).max(axis=0)),
    )
