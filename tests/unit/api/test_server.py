"""The server's handler of signals, which may interrupt itself."""

from __future__ import annotations

import signal
import threading

import uvicorn

from app.api.server import Server


def test_a_signal_that_interrupts_the_handler_of_another_waits_for_no_lock() -> None:
    """A shell and make both pass SIGTERM on: a handler that sets an event hangs on the lock that it holds itself."""
    leaving = threading.Event()
    server = Server(uvicorn.Config("app.main:create_app"), leaving)
    handler = threading.Thread(target=server.handle_exit, args=(signal.SIGTERM, None), daemon=True)
    with leaving._cond:  # as the interrupted one has
        handler.start()
        handler.join(5.0)
        assert not handler.is_alive()
    assert server.should_exit
