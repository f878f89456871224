"""End a child process when its parent ends, however the parent ends."""

from __future__ import annotations

import os
import threading


def follow_parent(signal_number: int) -> None:
    """Send this process `signal_number` once its standard input closes: the parent holds the other end of the pipe."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal_number)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
