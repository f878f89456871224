"""A slow and unreliable network between the service and its database: a small proxy over TCP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self


class DatabaseProxy:
    """Passes connections to `port` on to a PostgreSQL's socket. Each part that comes may wait; connections may be cut.

    delay_s  wait of each part, in both directions
    is_cut   whether new connections are closed at once
    """

    def __init__(self, socket: str) -> None:
        self.delay_s, self.is_cut, self.port = 0.0, False, 0
        self._socket = socket
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open = set[asyncio.StreamWriter]()

    def __enter__(self) -> Self:
        self._thread.start()
        server = self._run(asyncio.start_server(self._pass, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def cut(self) -> None:
        """Reset all connections, and close new ones until `is_cut` is False."""
        self.is_cut = True
        self._run(self._reset())

    async def _reset(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        try:
            their_reader, their_writer = await asyncio.open_unix_connection(self._socket)
        except OSError:  # the database is down
            writer.transport.abort()
            return
        both = {writer, their_writer}
        self._open |= both
        await asyncio.gather(self._copy(reader, their_writer), self._copy(their_reader, writer))
        self._open -= both

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while part := await reader.read(2**16):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(part)
                await writer.drain()
        with suppress(OSError):
            writer.close()
