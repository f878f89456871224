"""Turns of requests: callers take turns, and large bodies wait for one another and take none from small ones."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
from anyio import from_thread
from starlette.concurrency import run_in_threadpool

from app.api.work_queues import LARGE_BYTES, LONG_BYTES, WorkQueue, WorkQueues, use_database, use_much
from app.coefficients import Coefficients
from app.errors import Cancelled, TooMany, Unavailable

PREDICTING = [{"path": "/predict/batch", "method": "POST", "headers": [], "client": (name, 1)} for name in "ab"]
REFUSAL_S = Coefficients("service").number("refusal_s")
JSON, PARQUET = b"application/json", b"Application/vnd.apache.Parquet"


async def taken(
    queues: WorkQueues,
    held: AsyncExitStack,
    path: str,
    size: int,
    media: bytes = JSON,
    method: str = "POST",
    caller: int = 0,
) -> bool:
    """Whether a turn comes at once."""
    scope = {"path": path, "method": method, "headers": [(b"content-type", media)], "client": (f"{caller}", 1)}
    turn = held.enter_async_context(queues.turn(scope, size, asyncio.Event()))
    try:
        await asyncio.wait_for(turn, 0.05)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(("size", "media"), [(LARGE_BYTES + 1, JSON), (LONG_BYTES + 1, PARQUET)])
@pytest.mark.parametrize(("path", "most"), [("/graphs", 1), ("/measurements", 1), ("/predict/batch", 2)])
def test_few_large_bodies_are_worked_on_at_once(path: str, most: int, size: int, media: bytes) -> None:
    async def turns() -> tuple[int, bool]:
        queues = WorkQueues(64)
        async with AsyncExitStack() as held:
            large = [await taken(queues, held, path, size, media, caller=k) for k in range(6)]
            return sum(large), await taken(queues, held, path, LARGE_BYTES)

    assert asyncio.run(turns()) == (most, True)


@pytest.mark.parametrize(
    ("method", "path", "size"),
    [
        ("POST", "/measurements", LONG_BYTES + 1),
        ("POST", "/graphs", 1),
        ("GET", "/measurements", 0),
        ("GET", "/openapi.json", 0),
    ],
)
def test_few_requests_that_take_milliseconds_work_at_once(method: str, path: str, size: int) -> None:
    async def turns() -> tuple[int, int]:
        queues = WorkQueues(64)
        async with AsyncExitStack() as held:
            long = [await taken(queues, held, path, size, method=method, caller=k) for k in range(6)]
            short = [await taken(queues, held, "/measurements", LONG_BYTES, caller=k) for k in range(20)]
            return sum(long), sum(short)

    assert asyncio.run(turns()) == (3, 16 - 3)


def test_a_large_body_is_worked_on_after_the_one_before_it() -> None:
    async def turns() -> list[bool]:
        queues, found = WorkQueues(64), list[bool]()
        for _ in range(2):
            async with AsyncExitStack() as held:
                found.append(await taken(queues, held, "/graphs", LARGE_BYTES + 1))
        return found

    assert asyncio.run(turns()) == [True, True]


def test_more_large_bodies_than_may_wait_are_refused() -> None:
    async def turns() -> None:
        queues = WorkQueues(0)
        async with AsyncExitStack() as held:
            assert await taken(queues, held, "/graphs", LARGE_BYTES + 1)
            assert await taken(queues, held, "/graphs", 1)
            scope = {"path": "/graphs", "method": "POST", "headers": [], "client": ("0", 1)}
            began = time.monotonic()
            with pytest.raises(TooMany, match="of your large requests wait already"):
                await held.enter_async_context(queues.turn(scope, LARGE_BYTES + 1, asyncio.Event()))
            assert time.monotonic() - began >= REFUSAL_S  # in which its caller sends no other
            assert await taken(queues, held, "/graphs", 1)

    asyncio.run(turns())


def test_a_small_file_goes_on_among_large_ones_only_if_it_is_large() -> None:
    async def turns() -> tuple[bool, bool, bool]:
        queues, goes_on = WorkQueues(64), asyncio.Event()

        def turns_out_large() -> None:
            from_thread.run(goes_on.wait)
            use_much()

        async def small(k: int) -> None:
            scope = {"path": "/measurements", "method": "POST", "headers": [(b"content-type", PARQUET)]}
            async with queues.turn({**scope, "client": (f"{k}", 1)}, LONG_BYTES, asyncio.Event()):
                if k:
                    await run_in_threadpool(turns_out_large)

        async with AsyncExitStack() as held:
            first = await taken(queues, held, "/measurements", LARGE_BYTES + 1)
            few, many = asyncio.create_task(small(0)), asyncio.create_task(small(1))
            await few
            goes_on.set()
            await asyncio.sleep(0.05)
            during = many.done()
        await many
        return first, during, many.done()

    assert asyncio.run(turns()) == (True, False, True)


def test_long_predictions_of_a_caller_wait_for_one_another_and_take_no_turn_from_small_ones() -> None:
    async def turns() -> tuple[int, bool]:
        queues = WorkQueues(64)
        async with AsyncExitStack() as held:
            long = [held.enter_async_context(queues.predicting_long.turn("0", asyncio.Event())) for _ in range(2)]
            done, waiting = await asyncio.wait(map(asyncio.ensure_future, long), timeout=0.05)
            small = await taken(queues, held, "/predict/batch", 1)
            for each in waiting:
                each.cancel()
            return len(done), small

    assert asyncio.run(turns()) == (1, True)


async def eight_wait(queues: WorkQueues) -> None:
    """Until eight predictions wait for a turn to use the database, and none for a turn to predict."""
    assert queues.predicting.after is not None
    while queues.predicting.after.waiting < 8 or queues.predicting.waiting:
        await asyncio.sleep(0.01)


def test_a_prediction_that_needs_the_database_lets_others_predict() -> None:
    async def turns() -> tuple[bool, bool, bool]:
        queues = WorkQueues(64)
        hangs = asyncio.Event()

        def work() -> None:
            use_database()
            use_database()  # it went on already
            from_thread.run(hangs.wait)

        async def saving(k: int) -> None:
            async with queues.turn(PREDICTING[k % 2], 1, asyncio.Event()):
                await run_in_threadpool(work)

        async with AsyncExitStack() as held:
            saved = [asyncio.create_task(saving(k)) for k in range(12)]
            await eight_wait(queues)
            during = all([await taken(queues, held, "/predict/batch", 1, caller=k) for k in range(4)])
            hangs.set()
            await asyncio.gather(*saved)
            after = await taken(queues, held, "/predict/batch", 1)
        async with AsyncExitStack() as held:
            return during, after, all([await taken(queues, held, "/predict/batch", 1, caller=k) for k in range(4)])

    assert asyncio.run(turns()) == (True, False, True)


def test_few_predictions_wait_for_the_database_and_others_are_refused() -> None:
    async def statuses() -> tuple[int, int]:
        queues, hangs = WorkQueues(64), asyncio.Event()

        def work() -> None:
            use_database()
            from_thread.run(hangs.wait)

        async def saving(k: int) -> None:
            async with queues.turn(PREDICTING[k % 2], 1, asyncio.Event()):
                await run_in_threadpool(work)

        saved = [asyncio.create_task(saving(k)) for k in range(20)]
        await eight_wait(queues)
        while sum(each.done() for each in saved) < 8:
            await asyncio.sleep(0.01)
        hangs.set()
        found = await asyncio.gather(*saved, return_exceptions=True)
        async with AsyncExitStack() as held:
            free = sum([await taken(queues, held, "/predict/batch", 1, caller=k) for k in range(6)])
        return sum(isinstance(each, Unavailable | TooMany) for each in found), free

    assert asyncio.run(statuses()) == (20 - 4 - 8, 4)


@pytest.mark.parametrize("path", ["/compare", "/plan", "/serving", "/"])
def test_searches_leave_turns_to_predictions(path: str) -> None:
    async def turns() -> tuple[int, int]:
        queues = WorkQueues(64)
        async with AsyncExitStack() as held:
            searches = [await taken(queues, held, path, 1, caller=k) for k in range(6)]
            predictions = [await taken(queues, held, "/predict/batch", 1, caller=k) for k in range(6)]
            return sum(searches), sum(predictions)

    assert asyncio.run(turns()) == (2, 2)


@pytest.mark.parametrize(
    ("path", "size", "most"),
    [
        ("/predict/batch", 1, 3),
        ("/predict/batch", LARGE_BYTES + 1, 1),
        ("/compare", 1, 1),
        ("/measurements", 1, 12),
        ("/measurements", LONG_BYTES + 1, 2),
    ],
)
def test_one_caller_leaves_places_to_others(path: str, size: int, most: int) -> None:
    async def turns() -> tuple[int, bool]:
        queues = WorkQueues(64)
        async with AsyncExitStack() as held:
            mine = [await taken(queues, held, path, size) for _ in range(most + 2)]
            return sum(mine), await taken(queues, held, path, size, caller=1)

    assert asyncio.run(turns()) == (most, True)


def test_callers_take_turns() -> None:
    """One that sent ten requests before another's first delays it by one."""

    async def order() -> str:
        queue, worked, nobody = WorkQueue("requests", 1, 64), list[str](), asyncio.Event()

        async def work(caller: str) -> None:
            async with queue.turn(caller, nobody):
                worked.append(caller)
                await asyncio.sleep(0)

        await asyncio.gather(*(work(caller) for caller in "a" * 10 + "bb" + "c"))
        return "".join(worked)

    assert asyncio.run(order()) == "aabcab" + "a" * 7


def test_who_leaves_while_waiting_takes_no_place() -> None:
    async def works() -> bool:
        queue, left = WorkQueue("requests", 1, 64), asyncio.Event()
        await queue.enter("a", asyncio.Event())
        waits = [asyncio.create_task(queue.enter("b", left)), asyncio.create_task(queue.enter("b", asyncio.Event()))]
        await asyncio.sleep(0)
        waits[1].cancel()
        left.set()
        gone = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(each) for each in gone] == [Cancelled, asyncio.CancelledError]
        assert queue.waiting == 0
        queue.leave("a")
        await asyncio.wait_for(queue.enter("c", asyncio.Event()), 5)
        return True

    assert asyncio.run(works())
