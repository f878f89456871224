"""Turns of requests: large bodies wait for one another, and take no turn from small ones meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from anyio import from_thread
from starlette.concurrency import run_in_threadpool

from app.api.work_queues import LARGE_BYTES, LONG_BYTES, WorkQueues, use_database
from app.errors import Unavailable

PREDICTING = {"path": "/predict/batch", "method": "POST", "headers": []}
JSON, PARQUET = b"application/json", b"Application/vnd.apache.Parquet"


async def taken(
    queues: WorkQueues, held: AsyncExitStack, path: str, size: int, media: bytes = JSON, method: str = "POST"
) -> bool:
    """Whether a turn comes at once."""
    scope = {"path": path, "method": method, "headers": [(b"content-type", media)]}
    turn = held.enter_async_context(queues.turn(scope, size, asyncio.Event()))
    try:
        await asyncio.wait_for(turn, 0.05)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(("size", "media"), [(LARGE_BYTES + 1, JSON), (1, PARQUET)])
@pytest.mark.parametrize(("path", "most"), [("/graphs", 1), ("/measurements", 1), ("/predict/batch", 2)])
def test_few_large_bodies_are_worked_on_at_once(path: str, most: int, size: int, media: bytes) -> None:
    async def turns() -> tuple[int, bool]:
        queues = WorkQueues(64)
        async with AsyncExitStack() as held:
            large = [await taken(queues, held, path, size, media) for _ in range(6)]
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
            long = [await taken(queues, held, path, size, method=method) for _ in range(6)]
            return sum(long), sum([await taken(queues, held, "/measurements", LONG_BYTES) for _ in range(20)])

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
            with pytest.raises(Unavailable):
                await taken(queues, held, "/graphs", LARGE_BYTES + 1)

    asyncio.run(turns())


async def eight_wait(queues: WorkQueues) -> None:
    """Until eight predictions wait for a turn to use the database, and none for a turn to predict."""
    assert queues.predicting.after is not None
    while queues.predicting.after._waiting < 8 or queues.predicting._waiting:
        await asyncio.sleep(0.01)


def test_a_prediction_that_needs_the_database_lets_others_predict() -> None:
    async def turns() -> tuple[bool, bool, bool]:
        queues = WorkQueues(64)
        hangs = asyncio.Event()

        def work() -> None:
            use_database()
            use_database()  # it went on already
            from_thread.run(hangs.wait)

        async def saving() -> None:
            async with queues.turn(PREDICTING, 1, asyncio.Event()):
                await run_in_threadpool(work)

        async with AsyncExitStack() as held:
            saved = [asyncio.create_task(saving()) for _ in range(12)]
            await eight_wait(queues)
            during = all([await taken(queues, held, "/predict/batch", 1) for _ in range(4)])
            hangs.set()
            await asyncio.gather(*saved)
            after = await taken(queues, held, "/predict/batch", 1)
        async with AsyncExitStack() as held:
            return during, after, all([await taken(queues, held, "/predict/batch", 1) for _ in range(4)])

    assert asyncio.run(turns()) == (True, False, True)


def test_few_predictions_wait_for_the_database_and_others_are_refused() -> None:
    async def statuses() -> tuple[int, int]:
        queues, hangs = WorkQueues(64), asyncio.Event()

        def work() -> None:
            use_database()
            from_thread.run(hangs.wait)

        async def saving() -> None:
            async with queues.turn(PREDICTING, 1, asyncio.Event()):
                await run_in_threadpool(work)

        saved = [asyncio.create_task(saving()) for _ in range(20)]
        await eight_wait(queues)
        while sum(each.done() for each in saved) < 8:
            await asyncio.sleep(0.01)
        hangs.set()
        found = await asyncio.gather(*saved, return_exceptions=True)
        async with AsyncExitStack() as held:
            free = sum([await taken(queues, held, "/predict/batch", 1) for _ in range(6)])
        return sum(isinstance(each, Unavailable) for each in found), free

    assert asyncio.run(statuses()) == (20 - 4 - 8, 4)


@pytest.mark.parametrize("path", ["/compare", "/plan", "/serving", "/"])
def test_searches_leave_turns_to_predictions(path: str) -> None:
    async def turns() -> tuple[int, int]:
        queues = WorkQueues(64)
        async with AsyncExitStack() as held:
            searches = [await taken(queues, held, path, 1) for _ in range(6)]
            return sum(searches), sum([await taken(queues, held, "/predict/batch", 1) for _ in range(6)])

    assert asyncio.run(turns()) == (2, 2)
