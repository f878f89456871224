"""How a run of rows moves time on: the host that launches, the device and its communication stream, in closed form.

Times are a state (h, d, c): when the host, the device's compute stream and its communication stream are free. A row of
`count` launches of t seconds each, launched by the host `host` seconds apart,

    computes:             h' = h + count host; d' = d, then max(d', its launch) + t for each launch
    communicates beside:  the same on c, not before d (a reduction sends what was computed; a gather does not wait)

which is linear in (max, +) algebra (Baccelli et al. 1992), and so is any sequence of rows: a `Pace`, six numbers,

    h' = h + host;  d' = max(d + device, h + drain);  c' = max(c + link, d + send, h + push).

Composed, paces stay paces, and R repetitions of one have a closed form: every path through the repetitions spends them
on host, device and link in turn, its length is linear in how many on each, so the longest spends them all on one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.tables.workload import Bools, Floats

NEVER = -np.inf


class State(NamedTuple):
    """When host, device and communication stream are free, seconds, float64 [g] each."""

    host: Floats
    device: Floats
    link: Floats


class Pace(NamedTuple):
    """What a sequence of rows does to a state, seconds, float64 [g] each (the module's equations)."""

    host: Floats
    device: Floats
    link: Floats
    drain: Floats
    send: Floats
    push: Floats

    def then(self, after: Pace) -> Pace:
        """Both in sequence, `after` second."""
        return Pace(
            self.host + after.host,
            self.device + after.device,
            self.link + after.link,
            np.maximum(self.drain + after.device, self.host + after.drain),
            np.maximum(self.send + after.link, self.device + after.send),
            np.maximum.reduce([self.push + after.link, self.drain + after.send, self.host + after.push]),
        )

    def times(self, repeats: float | Floats) -> Pace:
        """The sequence `repeats` times over: a whole number, or one from 1 for each, [g]."""
        if np.max(repeats) < 1:
            return still(len(self.host))
        again = repeats - 1.0
        push = self.push + again * np.maximum(self.host, self.link)
        if np.max(repeats) > 1:
            slowest = np.maximum.reduce([self.host, self.device, self.link])
            through = self.drain + self.send + (repeats - 2.0) * slowest
            push = np.maximum(push, np.where(again > 0, through, NEVER))
        return Pace(
            repeats * self.host,
            repeats * self.device,
            repeats * self.link,
            self.drain + again * np.maximum(self.host, self.device),
            self.send + again * np.maximum(self.device, self.link),
            push,
        )

    def move(self, state: State) -> State:
        """The state after these rows."""
        h, d, c = state
        return State(
            h + self.host,
            np.maximum(d + self.device, h + self.drain),
            np.maximum.reduce([c + self.link, d + self.send, h + self.push]),
        )


def start(g: int) -> State:
    """Everything is free."""
    return State(*np.zeros((3, g)))


def still(g: int) -> Pace:
    """No rows."""
    zero, never = np.zeros(g), np.full(g, NEVER)
    return Pace(zero, zero, zero, never, never, never)


class Launches(NamedTuple):
    """k rows of one block.

    seconds   float64 [k, g], of one launch
    host      float64 [k, g] or [g], seconds of the host per launch
    launches  float64 [k, 1] or [k, g]
    beside    bool [k], which communicate beside computation
    waits     bool [k], which of those wait for the computation before them
    """

    seconds: Floats
    host: Floats
    launches: Floats
    beside: Bools
    waits: Bools


def pace_of(rows: Launches) -> Pace:
    """The rows once."""
    k, g = rows.seconds.shape
    if not k:
        return still(g)
    launched = np.cumsum(rows.launches * rows.host, axis=0)  # the last launch of each row is out
    first = launched - np.maximum(rows.launches - 1.0, 0.0) * rows.host
    each = rows.launches * rows.seconds
    one = np.minimum(each, rows.seconds)
    # Longest from the host's start to the end of a row: its launches wait for the first or the last of them.
    ends = np.maximum(first + each, launched + one)
    if not rows.beside.any():
        done = np.cumsum(each, axis=0)
        never = np.full(g, NEVER)
        return Pace(launched[-1], done[-1], np.zeros(g), done[-1] + (ends - done).max(axis=0), never, never)
    beside = rows.beside[:, None]
    sends = beside & (rows.launches > 0)  # of several configurations, some send nothing here
    done, sent = np.cumsum(np.where(beside, 0.0, each), axis=0), np.cumsum(np.where(beside, each, 0.0), axis=0)
    ready = np.maximum.accumulate(np.where(beside, NEVER, ends - done), axis=0)
    rest = np.where(sends, sent[-1] - sent, NEVER)  # what the link has left behind a row
    behind = np.where(sends & rows.waits[:, None], rest + each + done, NEVER)
    return Pace(
        launched[-1],
        done[-1],
        sent[-1],
        done[-1] + ready[-1],
        behind.max(axis=0),
        np.maximum((ends + rest).max(axis=0), (behind + ready).max(axis=0)),
    )
