"""uvicorn's server, which answers every connection that was made before it stops, and its supervisor of several."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import uvicorn
from uvicorn.supervisors import Multiprocess

from app.api.http_protocol import STOPS, BoundedHttp
from app.coefficients import Coefficients


class Server(uvicorn.Server):
    """A server of one process; `leaving` is set when it stops, not by the handler of the signal.

    A second signal may interrupt the handler, which would then wait for the event's lock that it holds itself.
    """

    def __init__(self, config: uvicorn.Config, leaving: threading.Event) -> None:
        super().__init__(config)
        self._leaving = leaving

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; connections that nobody has accepted yet, which the system would reset, are answered first."""
        self._leaving.set()
        listeners = [socket.socket(fileno=os.dup(each.fileno())) for server in self.servers for each in server.sockets]
        for server in self.servers:
            server.close()
        self.lifespan.state[STOPS] = True
        loop = asyncio.get_running_loop()
        for accepted in [each for listener in listeners for each in _waiting(listener)]:
            with suppress(OSError):  # the caller left
                await loop.connect_accepted_socket(self._protocol, accepted)
        await super().shutdown(sockets)

    def _protocol(self) -> BoundedHttp:
        return BoundedHttp(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


_READY_S = Coefficients("service").number("says_ready_s")


def _waiting(listener: socket.socket) -> Iterator[socket.socket]:
    """Accept the connections that wait, and close the listener."""
    listener.setblocking(False)
    with listener, suppress(OSError):
        while True:
            yield listener.accept()[0]


class Supervisor(Multiprocess):
    """A supervisor of several servers on one address; a signal to stop sets `leaving` too."""

    def __init__(self, config: uvicorn.Config, leaving: threading.Event) -> None:
        super().__init__(config, sockets=[config.bind_socket()])
        self._leaving = leaving

    def terminate_all(self) -> None:
        """Stop all; new connections are refused at once, as nobody accepts them any more.

        One that has not begun to serve looks for no signal, and may wait for the database: it is killed.
        """
        self._leaving.set()
        for listener in self.sockets:
            listener.close()
        for process in self.processes:
            if not process.is_ready(_READY_S):
                process.kill()
        super().terminate_all()
