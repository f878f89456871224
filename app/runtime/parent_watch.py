"""End a child process when its parent ends, however the parent ends."""

from __future__ import annotations

import os
import threading
import time

# Most time for which a parent that has closed the pipe may still end.
_ENDING_S = 2.0


def follow_parent(signal_number: int) -> None:
    """Send this process `signal_number` once its standard input closes: the parent holds the other end of the pipe.

    A killed parent closes its files one after the other, so it is waited for: it may still hold locks.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.read(0, 1024):
            pass
        latest = time.monotonic() + _ENDING_S
        while os.getppid() == parent and time.monotonic() < latest:
            time.sleep(0.01)
        os.kill(os.getpid(), signal_number)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
