"""Many callers share one call, and later ones make another."""

from __future__ import annotations

import asyncio
import time

from app.api.middleware import SharedCall


def test_callers_at_the_same_time_share_one_call() -> None:
    calls = list[int]()

    def work() -> int:
        calls.append(len(calls))
        time.sleep(0.05)
        return calls[-1]

    async def many() -> list[int]:
        shared = SharedCall[int]()
        first = await asyncio.gather(*(shared.result(work) for _ in range(50)))
        return [*first, await shared.result(work)]

    assert asyncio.run(many()) == [0] * 50 + [1]
