"""Writes of one turn of the event loop are sent together."""

import asyncio
from collections.abc import Awaitable, Callable

from app.api.usual_answer import JoinedWrites


class Recorded(asyncio.Transport):
    """A transport that records what each call sends."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def writelines(self, list_of_data: object) -> None:
        assert isinstance(list_of_data, tuple)
        self.sent.append(b"".join(list_of_data))

    def close(self) -> None:
        self.sent.append(b"closed")

    def abort(self) -> None:
        self.sent.append(b"aborted")

    def is_closing(self) -> bool:
        return self.sent[-1:] in ([b"closed"], [b"aborted"])

    def get_write_buffer_size(self) -> int:
        return 0


def sent(steps: Callable[[JoinedWrites], Awaitable[None]]) -> list[bytes]:
    """What is sent by each call while the steps run."""

    async def run() -> list[bytes]:
        recorded = Recorded()
        await steps(JoinedWrites(recorded))
        return recorded.sent

    return asyncio.run(run())


def test_a_head_and_its_body_are_one_call() -> None:
    async def steps(transport: JoinedWrites) -> None:
        for part in (b"head", b"body", b"more"):
            transport.write(part)
        assert transport.get_write_buffer_size() == len(b"more")
        await asyncio.sleep(0)

    assert sent(steps) == [b"headbody", b"more"]


def test_a_head_without_a_body_leaves_in_the_next_turn() -> None:
    async def steps(transport: JoinedWrites) -> None:
        transport.write(b"head")
        await asyncio.sleep(0)
        transport.write(b"body")
        await asyncio.sleep(0)

    assert sent(steps) == [b"head", b"body"]


def test_closing_sends_what_is_held() -> None:
    async def steps(transport: JoinedWrites) -> None:
        transport.write(b"head")
        transport.close()
        await asyncio.sleep(0)

    assert sent(steps) == [b"head", b"closed"]


def test_nothing_is_sent_to_a_caller_that_left() -> None:
    async def steps(transport: JoinedWrites) -> None:
        transport.write(b"head")
        transport.abort()
        await asyncio.sleep(0)

    assert sent(steps) == [b"aborted"]


def test_long_pieces_are_not_held() -> None:
    long = bytes(100_000)

    async def steps(transport: JoinedWrites) -> None:
        transport.write(long)
        transport.write(b"head")
        transport.write(long)

    assert sent(steps) == [long, b"head" + long]
