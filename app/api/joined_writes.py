"""A transport that sends what is written in one turn of the event loop at the turn's end.

The head of an answer and its body are one call to the system then. Answers that are computed together leave one right
after the other: a caller that falls asleep between two of them has to be woken for each, which takes longer than the
call.
"""

from __future__ import annotations

import asyncio

# More bytes than this are sent at once, so that the transport sees how much waits for the caller.
_MOST_HELD = 65_536


class JoinedWrites:
    """A transport that holds what is written until the event loop's next turn."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held: list[bytes] = []
        self._size = 0
        self.is_closing, self.get_extra_info = transport.is_closing, transport.get_extra_info
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading
        self.set_protocol, self.abort = transport.set_protocol, transport.abort

    def write(self, data: bytes) -> None:
        """Hold a piece, or send it with all that is held if that is much."""
        if not self._held:
            self._loop.call_soon(self._send)
        self._held.append(data)
        self._size += len(data)
        if self._size > _MOST_HELD:
            self._send()

    def close(self) -> None:
        """Send what is held, and close the connection."""
        self._send()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that wait for the caller to take them."""
        return self._transport.get_write_buffer_size() + self._size

    def _send(self) -> None:
        held, self._held, self._size = self._held, [], 0
        if held and not self._transport.is_closing():  # the caller may have left meanwhile
            self._transport.writelines(held)
