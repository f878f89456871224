"""Questions to the process that forks commands (tests.forked), from Python and from a shell.

    python -IS tests/forked_client.py SOCKET WORDS...    runs `gpucast WORDS...` here

Only the standard library: the interpreter then starts in a hundredth of a second.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

POLL_S = 0.005


def ask(address: str, question: Mapping[str, Any], streams: Sequence[int] = ()) -> Any:
    """Return the answer to one line of JSON; `streams` are descriptors that a command takes on as 0, 1 and 2."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        line = json.dumps(question).encode() + b"\n"
        sent = socket.send_fds(connection, [line], streams) if streams else 0
        connection.sendall(line[sent:])
        return json.loads(connection.makefile().readline())


def main() -> None:
    """Run a command with the environment, folder and streams of this process, and end as it does."""
    address, *words = sys.argv[1:]
    pid = ask(address, {"words": words, "env": dict(os.environ), "cwd": os.getcwd()}, (0, 1, 2))
    while (code := ask(address, {"poll": pid})) is None:
        time.sleep(POLL_S)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
