"""A transport that sends the head of an answer and its body at once: two calls to the system cost twice the time.

The answers of several callers are not held until all are written: callers that have theirs send the next request
meanwhile, and so the next batch is as large.
"""

from __future__ import annotations

import asyncio

# Longer pieces are sent as they come: for them one call more is nothing.
_MOST_HELD = 65_536


class JoinedWrites:
    """A transport that holds a piece until the next one comes, or until the event loop's next turn."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held: bytes | None = None
        self.is_closing, self.get_extra_info = transport.is_closing, transport.get_extra_info
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading
        self.set_protocol, self.abort = transport.set_protocol, transport.abort

    def write(self, data: bytes) -> None:
        """Send the piece with the one that is held, or hold it."""
        held, self._held = self._held, None
        if held is not None:
            self._transport.writelines((held, data))
        elif len(data) > _MOST_HELD:
            self._transport.write(data)
        else:
            self._held = data
            self._loop.call_soon(self._send)

    def close(self) -> None:
        """Send what is held, and close the connection."""
        self._send()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that wait for the caller to take them."""
        return self._transport.get_write_buffer_size() + len(self._held or b"")

    def _send(self) -> None:
        held, self._held = self._held, None
        if held is not None and not self._transport.is_closing():  # the caller may have left meanwhile
            self._transport.write(held)
