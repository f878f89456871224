"""One call for all items that wait while another runs."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from app.runtime.group_commit import GroupCommit

LONG_S = 60.0


class Handler:
    """Squares numbers and records its calls; the first call waits until it is let go. Negative numbers are wrong."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, items: Sequence[int]) -> list[int | Exception]:
        self.calls.append([*items])
        self.begun.set()
        assert self.go.wait(LONG_S)
        if 0 in items:
            raise ArithmeticError("zero")
        return [ValueError(f"{item} is negative") if item < 0 else item * item for item in items]


def waiting(group: GroupCommit[int, int]) -> int:
    return len(group._queue)


def behind_one(handler: Handler, items: Sequence[int], most: int = 64) -> list[Future[int]]:
    """Results of items that came one by one while a first call ran."""
    group: GroupCommit[int, int] = GroupCommit(most)
    with ThreadPoolExecutor(len(items) + 1) as pool:
        first = pool.submit(group.result, 1, handler, LONG_S)
        assert handler.begun.wait(LONG_S)
        found = []
        for k, item in enumerate(items):
            found.append(pool.submit(group.result, item, handler, LONG_S))
            while waiting(group) <= k:
                time.sleep(0.001)
        handler.go.set()
        assert first.result() == 1
    return found


def test_all_that_wait_are_handled_by_one_call_in_their_order() -> None:
    handler = Handler()
    assert [each.result() for each in behind_one(handler, [5, 3, 4])] == [25, 9, 16]
    assert handler.calls == [[1], [5, 3, 4]]


def test_an_error_of_one_item_is_raised_for_it_alone() -> None:
    first, wrong, last = behind_one(Handler(), [2, -1, 3])
    assert (first.result(), last.result()) == (4, 9)
    with pytest.raises(ValueError, match="-1 is negative"):
        wrong.result()


def test_a_call_that_fails_fails_for_its_items_and_the_next_goes_on() -> None:
    handler = Handler()
    found = behind_one(handler, [2, 0, 5], most=2)
    assert handler.calls == [[1], [2, 0], [5]]
    for each in found[:2]:
        with pytest.raises(ArithmeticError):
            each.result()
    assert found[2].result() == 25


def test_an_item_whose_turn_does_not_come_is_not_handled_later() -> None:
    handler, group = Handler(), GroupCommit[int, int](64)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(group.result, 1, handler, LONG_S)
        assert handler.begun.wait(LONG_S)
        with pytest.raises(TimeoutError):
            group.result(2, handler, timeout_s=0.01)
        handler.go.set()
        first.result()
    assert group.result(3, handler, LONG_S) == 9
    assert handler.calls == [[1], [3]]


def test_a_call_with_too_few_results_fails_for_all_of_its_items() -> None:
    """Those without a result would wait for one for ever."""
    with pytest.raises(ValueError, match="shorter"):
        GroupCommit[int, int](64).result(1, lambda items: [], LONG_S)
