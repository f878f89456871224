"""Send a hostile request to a server, and watch from a process of its own what small requests see meanwhile."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import NamedTuple

import psutil

from app.wire.prediction_form import PREDICT_EXAMPLE

GOAL_MS, GOAL_BYTES, GOAL_ENDS_S = 100.0, 2**30, 1.0
_GOOD, _DEFECT = 200, 500
JSON = "application/json"
SMALL = json.dumps(PREDICT_EXAMPLE).encode()
EVERY_S = 0.005
# Work is over when the server computes less than this share of a span; small requests are not sent then.
IDLE_SHARE, IDLE_S = 0.15, 0.2
LONGEST_S = 300.0


class Hostile(NamedTuple):
    """A request: its name, path, media type (none: GET), a function that makes its body, how many are sent at once.

    `leaves_s`: then it is sent again, and its callers leave after so many seconds.
    """

    name: str
    path: str
    media: str
    body: Callable[[], bytes]
    at_once: int = 1
    leaves_s: float | None = None


def print_header(name: str, *others: str) -> None:
    """Print the head of a table of `print_case`."""
    print(f"\n| {name} | goals | processor time | others wait | {' | '.join(others)} |")
    print(f"|---|---|---:|---:|{'---:|' * len(others)}", flush=True)


def print_case(name: str, good: bool, computed_s: float | None, wait_ms: float | None, *others: str) -> bool:
    """Print whether a case passes, the server's processor time, others' waiting, and the rest; return `good`."""
    computed, wait = "" if computed_s is None else f"{computed_s:.1f} s", "" if wait_ms is None else f"{wait_ms:.0f} ms"
    print(f"| {name} | {'pass' if good else 'FAIL'} | {computed} | {wait} | {' | '.join(others)} |", flush=True)
    return good


class Beside(NamedTuple):
    """What small requests saw: the longest wait, ms, bytes that the API process grew by, and whether all were 200."""

    longest_ms: float
    grown: int
    all_answered: bool


class Seen(NamedTuple):
    """What came of a request.

    status, sent  the worst status, and bytes of one
    seconds       until all are answered
    computed_s    processor time of the server, with its other processes and small requests
    beside        what small requests saw
    ends_s        how long the server goes on after the callers left
    """

    status: int
    sent: int
    seconds: float
    computed_s: float
    beside: Beside
    ends_s: float

    @property
    def is_good(self) -> bool:
        """Whether all reach the goals, and nobody got an answer of a defect."""
        others = self.beside
        within = others.longest_ms <= GOAL_MS and others.grown <= GOAL_BYTES and self.ends_s <= GOAL_ENDS_S
        return within and self.status != _DEFECT and others.all_answered


def see(port: int, attack: Hostile) -> Seen:
    """Send a request as often as it says; then send it again, and leave, if it says so."""
    body = attack.body()
    api = listening(port)
    with _watched(port, api.pid) as watcher:
        time.sleep(0.5)
        watcher.send("begin")
        began, before = time.perf_counter(), _computed_s(api)
        with ThreadPoolExecutor(attack.at_once) as callers:
            statuses = [*callers.map(lambda _: status(port, attack, body), range(attack.at_once))]
        seconds, computed_s = time.perf_counter() - began, _computed_s(api) - before
        time.sleep(0.2)
        watcher.send("end")
        beside = Beside(*watcher.recv())
    ends_s = 0.0 if attack.leaves_s is None else _after_leaving(port, api, attack, body, attack.leaves_s)
    return Seen(max(statuses), len(body), seconds, computed_s, beside, ends_s)


def status(port: int, attack: Hostile, body: bytes) -> int:
    """Send one request, and return the status of its answer."""
    connection = _sent(port, attack, body)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def _sent(port: int, attack: Hostile, body: bytes) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST_S)
    method, head = ("POST", {"Content-Type": attack.media}) if attack.media else ("GET", {})
    connection.request(method, attack.path, body, head)
    return connection


def _after_leaving(port: int, api: psutil.Process, attack: Hostile, body: bytes, leaves_s: float) -> float:
    """Return how long the server computes after the callers left."""
    with ThreadPoolExecutor(attack.at_once) as callers:
        connections = [*callers.map(lambda _: _sent(port, attack, body), range(attack.at_once))]
    time.sleep(leaves_s)
    for connection in connections:
        connection.close()
    began = time.perf_counter()
    while True:
        at, before = time.perf_counter(), _computed_s(api)
        time.sleep(IDLE_S)
        if _computed_s(api) - before < IDLE_SHARE * IDLE_S or at - began > LONGEST_S:
            return at - began


def _computed_s(api: psutil.Process) -> float:
    """Return the processor time of a process and those that it started, also those that ended."""
    own = api.cpu_times()
    living = 0.0
    for child in api.children(recursive=True):
        try:
            living += sum(child.cpu_times()[:2])
        except psutil.Error:
            continue
    return float(sum(own[:4])) + living


@contextmanager
def _watched(port: int, pid: int) -> Iterator[Connection]:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_watch, args=(port, pid, theirs), daemon=True)
    process.start()
    assert ours.recv() == "watching"
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def _watch(port: int, pid: int, pipe: Connection) -> None:
    """Send small requests until told to end; then send the longest wait, ms, and the growth of memory, bytes."""
    api, clock = psutil.Process(pid), processor_clock(pid)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST_S)
    first, longest_ms, most, good = api.memory_info().rss, 0.0, 0, True
    pipe.send("watching")
    while True:
        time.sleep(EVERY_S)
        began, used = time.perf_counter(), time.clock_gettime(clock)
        connection.request("POST", "/predict", SMALL, {"Content-Type": JSON})
        answer = connection.getresponse()
        answer.read()
        good &= answer.status == _GOOD
        waited = min(time.perf_counter() - began, time.clock_gettime(clock) - used)
        longest_ms, most = max(longest_ms, 1e3 * waited), max(most, api.memory_info().rss)
        if pipe.poll():
            if pipe.recv() == "end":
                pipe.send((longest_ms, most - first, good))
                return
            longest_ms, most, first, good = 0.0, 0, api.memory_info().rss, True


def processor_clock(pid: int) -> int:
    """Return the clock of the processor time of a process, as clock_getcpuclockid(3) does on Linux."""
    return (~pid << 3) | 2


def listening(port: int) -> psutil.Process:
    """Return the process that listens on a port."""
    return next(
        psutil.Process(one.pid)
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid
    )
