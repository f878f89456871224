"""Rate limits over several processes, at times that the test sets."""

from __future__ import annotations

import pytest

from app.api.access import EXCHANGE_S, STALE_S, RateLimit
from app.errors import TooMany
from app.store.session import Database

# A multiple of every window below.
START_S = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = START_S

    def __call__(self) -> float:
        return self.now


def limited(text: str, clock: Clock, database: Clock | None = None) -> RateLimit:
    """A limit of a process with this clock, and of a database with another one, if it is given."""
    return RateLimit(text, clock, lambda _: (database or clock).now)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def admitted(limit: RateLimit, requests: int, caller: str = "one") -> int:
    passed = 0
    for _ in range(requests):
        try:
            limit.hit(caller)
        except TooMany:
            continue
        passed += 1
    return passed


def test_a_caller_gets_its_limit_in_each_window(clock: Clock) -> None:
    limit = limited("3/minute", clock)
    assert (admitted(limit, 5), admitted(limit, 5, "other")) == (3, 3)
    clock.now += 59.5
    with pytest.raises(TooMany) as refused:
        limit.hit("one")
    assert refused.value.retry_after_s == 1
    clock.now += 0.5
    assert admitted(limit, 5) == 3


def test_two_processes_share_the_limit(clock: Clock, database: Database) -> None:
    limits = [limited("100/minute", clock) for _ in range(2)]
    assert [admitted(limit, 50) for limit in limits] == [50, 50]
    for limit in (*limits, limits[0]):
        limit.exchange(database)
    clock.now += 30.0  # the counts are too old: each limits by itself
    assert admitted(limits[0], 1) == 1
    for limit in limits:
        limit.exchange(database)
    clock.now += EXCHANGE_S
    for limit in limits:
        limit.exchange(database)
    assert [admitted(limit, 50) for limit in limits] == [0, 0]
    assert admitted(limits[0], 10, "other") == 10
    clock.now += 30.0
    assert admitted(limits[1], 200) == 100


def test_a_steady_caller_gets_its_limit_over_both_in_short_windows(clock: Clock, database: Database) -> None:
    """Four times the limit is asked for, half of it of each process, in windows as short as two exchanges."""
    limits, steps = [limited("100/second", clock) for _ in range(2)], 20
    passed = []
    for step in range(1, 10 * 2 * steps + 1):
        passed.append(sum(admitted(limit, 5) for limit in limits))
        clock.now += EXCHANGE_S / steps
        if step % steps == 0:
            for limit in limits:
                limit.exchange(database)
    by_window = [sum(passed[k : k + 2 * steps]) for k in range(0, len(passed), 2 * steps)]
    assert by_window[0] <= 200
    assert all(80 <= requests <= 125 for requests in by_window[1:]), by_window


def test_a_lost_database_leaves_each_process_its_own_count(clock: Clock, database: Database) -> None:
    limits = [limited("10/hour", clock) for _ in range(2)]
    assert admitted(limits[0], 10) == 10
    assert admitted(limits[1], 1) == 1
    for limit in limits:
        limit.exchange(database)
    assert admitted(limits[1], 1) == 0
    clock.now += STALE_S + 0.1
    assert admitted(limits[1], 20) == 9


@pytest.mark.parametrize("off_s", [-7200.0, 7200.0])
def test_a_process_whose_clock_is_wrong_shares_the_limit(clock: Clock, database: Database, off_s: float) -> None:
    """It had windows of its own, and forgot those of the others, so that each caller got the limit of each process."""
    wrong = Clock()
    wrong.now += off_s
    limits, caller = [limited("100/hour", clock), limited("100/hour", wrong, clock)], f"off by {off_s}"
    assert [admitted(limit, 1, caller) for limit in limits] == [1, 1]
    for limit in limits:
        limit.exchange(database)
    assert [admitted(limit, 49, caller) for limit in limits] == [49, 49]
    for limit in (*limits, limits[0]):
        limit.exchange(database)
    assert sum(admitted(limit, 100, caller) for limit in limits) <= 2  # of which one process knew nothing yet


def test_the_databases_clock_is_read_in_seconds_since_1970(database: Database) -> None:
    """On this machine both have one clock."""
    limit = RateLimit("10/hour")
    assert admitted(limit, 20) == 10
    limit.exchange(database)
    assert admitted(limit, 20) in (0, 10)  # unless an hour ended
