"""Requests to a running service over HTTP/1.1: at a rate, or as many as it answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np

Ask = Callable[[bytes], Awaitable[None]]


@asynccontextmanager
async def connected(port: int, path: str) -> AsyncIterator[Ask]:
    """A function that posts a JSON body over one connection; raises RuntimeError unless the answer is 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: benchmark\r\nContent-Type: application/json\r\nContent-Length: "

    async def ask(body: bytes) -> None:
        writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        content = await reader.readexactly(length)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(content.decode())

    try:
        yield ask
    finally:
        writer.close()


async def at_rate(
    port: int, path: str, bodies: Callable[[], bytes], rate: float, seconds: float, connections: int = 16
) -> list[float]:
    """Milliseconds from when each request was due to its answer: a stall counts for all requests that wait for it."""
    waits: list[float] = []
    began = time.perf_counter()
    due: asyncio.Queue[float] = asyncio.Queue()

    async def work() -> None:
        async with connected(port, path) as ask:
            while (at := await due.get()) >= 0:
                await ask(bodies())
                waits.append(1e3 * (time.perf_counter() - at))

    workers = [asyncio.create_task(work()) for _ in range(connections)]
    for k in range(int(rate * seconds)):
        await asyncio.sleep(max(began + k / rate - time.perf_counter(), 0))
        due.put_nowait(began + k / rate)
    for _ in workers:
        due.put_nowait(-1.0)
    await asyncio.gather(*workers)
    return waits


async def flat_out(
    port: int, path: str, bodies: Callable[[], bytes], seconds: float, connections: int = 16
) -> list[float]:
    """Milliseconds of each request; every connection sends the next one as soon as it has an answer."""
    waits: list[float] = []
    until = time.perf_counter() + seconds

    async def work() -> None:
        async with connected(port, path) as ask:
            while (began := time.perf_counter()) < until:
                await ask(bodies())
                waits.append(1e3 * (time.perf_counter() - began))

    await asyncio.gather(*(work() for _ in range(connections)))
    return waits


def quantiles(waits: list[float]) -> tuple[float, float, float]:
    """Median, 99th percentile and longest of waits."""
    middle, late, longest = np.quantile(waits, (0.5, 0.99, 1.0))
    return float(middle), float(late), float(longest)
