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

from app.tables.workload import Bools, Floats, Ints

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
        """The sequence `repeats` times over: whole numbers that broadcast; nothing of it where they are 0."""
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


def _ends(rows: Launches) -> tuple[Floats, Floats, Floats]:
    """When the last launch of each row is out, what each takes, and when it ends at the earliest, [k, g] each.

    The longest from the host's start to the end of a row: its launches wait for the first or the last of them.
    """
    launched = np.cumsum(rows.launches * rows.host, axis=0)
    first = launched - np.maximum(rows.launches - 1.0, 0.0) * rows.host
    each = rows.launches * rows.seconds
    return launched, each, np.maximum(first + each, launched + np.minimum(each, rows.seconds))


def paces_of(rows: Launches, starts: Ints) -> Floats:
    """Runs of rows that all compute, [6, runs, g] as Pace has them; `starts` [runs] are their first rows."""
    launched, each, ends = _ends(rows)
    done = np.cumsum(each, axis=0)
    last = np.append(starts[1:], len(each)) - 1
    drain = np.maximum.reduceat(ends - done, starts)
    host, device = (np.diff(total[last], axis=0, prepend=0.0) for total in (launched, done))
    # What the host and the device had behind them at the first row.
    drain -= (launched - done)[last] - (host - device)
    zero, never = np.zeros_like(host), np.full_like(host, NEVER)
    return np.array([host, device, zero, device + drain, never, never])


def pace_of(rows: Launches) -> Pace:
    """The rows once, some of which communicate beside the others."""
    launched, each, ends = _ends(rows)
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
