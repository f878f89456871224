"""Commands of `gpucast` as processes that start at once: forked from one process that has imported everything.

Each has arguments, an environment, a folder and streams of its own, as in a shell. Only the interpreter's start and the
imports are shared, which take most of a command's time. Tests of a start itself run `python -m app.cli`. A shell runs
such commands by the script that `write_command` writes.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from select import select
from typing import Any, NoReturn, Protocol

from app.config import CHECKOUT
from tests.forked_client import POLL_S, ask

_SHARED = "TEST_FORKED"  # the environment variable with the address that processes of tests share
_START_TIMEOUT_S = 120


class Running(Protocol):
    """A command that runs: the parts of `subprocess.Popen` that tests use."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


class Forked:
    """A forked command."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = ask(_address(), {"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        began = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() > began + timeout:
                raise subprocess.TimeoutExpired(f"the forked process {self.pid}", timeout)
            time.sleep(POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


def start(words: Sequence[object], *, env: Mapping[str, str], log: Path, cwd: Path = CHECKOUT) -> Running:
    """Run `gpucast` with these words in a session of its own; both of its outputs are appended to `log`."""
    return _forked(words, env, cwd, (os.devnull, str(log), str(log)))


def start_fresh(words: Sequence[object], *, env: Mapping[str, str], log: Path, cwd: Path = CHECKOUT) -> Running:
    """Do what `start` does with an interpreter of its own."""
    command = [sys.executable, "-m", "app.cli", *map(str, words)]
    with log.open("ab") as file:
        return subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )


def _forked(words: Sequence[object], env: Mapping[str, str], cwd: Path, streams: Sequence[str]) -> Running:
    """Start a command that reads the first of `streams` and appends to the others."""
    flags = (os.O_RDONLY, *(2 * [os.O_WRONLY | os.O_CREAT | os.O_APPEND]))
    opened = [os.open(file, how, 0o644) for file, how in zip(streams, flags, strict=True)]
    try:
        return Forked(ask(_address(), {"words": [*map(str, words)], "env": dict(env), "cwd": str(cwd)}, opened))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def write_command(path: Path) -> None:
    """Write a script that is `gpucast` to a shell, for as long as this process runs."""
    client = Path(__file__).with_name("forked_client.py")
    words = shlex.join([sys.executable, "-IS", str(client), _address()])
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o755)


def run_command(
    *words: object, env: Mapping[str, str], cwd: Path = CHECKOUT, stdin: str = "", timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run `gpucast` with these words to its end."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        files[0].write_text(stdin)
        running = _forked(words, env, cwd, [*map(str, files)])
        try:
            code = running.wait(timeout)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
            raise
        return subprocess.CompletedProcess([*map(str, words)], code, files[1].read_text(), files[2].read_text())


def share() -> None:
    """Start the process that forks now, for the processes of tests that this one starts: each would start its own."""
    os.environ[_SHARED] = _start_server()


@cache
def _address() -> str:
    """Return the address of the process that forks, once it is ready."""
    address = os.environ.get(_SHARED) or _start_server()
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not Path(address).exists():
        assert time.monotonic() < deadline, "the process that forks did not start"
        time.sleep(POLL_S)
    return address


def _start_server() -> str:
    """Start the process that forks, which ends with this one, and return its address."""
    folder = tempfile.TemporaryDirectory(prefix="gpucast-forked-", ignore_cleanup_errors=True)
    address = str(Path(folder.name) / "socket")
    command = [sys.executable, "-m", __name__, address]
    process = subprocess.Popen(
        command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdin is not None
    atexit.register(folder.cleanup)
    atexit.register(process.wait)
    atexit.register(process.stdin.close)  # the last that is registered is the first to be called
    return address


def _serve() -> NoReturn:
    """Answer requests until this process's parent ends: start a command, or say its exit status, None while it runs."""
    from app.bootstrap.warm import shipped_snapshot, warm
    from app.cli import COMMANDS
    from app.engine import long_tail

    for name in ("app.main", "app.worker", *(place.partition(":")[0] for _, place, _ in COMMANDS)):
        import_module(name)
    snapshot = shipped_snapshot()  # held, so that commands find its versions in use
    warm(snapshot)
    long_tail.warm()
    gc.collect()
    gc.freeze()  # a collection would copy the memory of all of it into each command
    running: dict[int | None, BaseProcess] = {}
    for connection in _connections():
        with connection:
            request, streams = _received(connection)
            if "poll" in request:
                answer = running[request["poll"]].exitcode
            else:
                process = get_context("fork").Process(target=_command, args=(request, streams))
                process.start()
                answer = process.pid
                running[answer] = process
            for descriptor in streams:
                os.close(descriptor)
            connection.sendall(json.dumps(answer).encode() + b"\n")
    os._exit(0)


def _connections() -> Iterator[socket.socket]:
    """Yield what connects to the socket, until standard input ends."""
    with socket.socket(socket.AF_UNIX) as listener:
        address = Path(sys.argv[1])
        starting = address.with_name("starting")
        listener.bind(str(starting))
        listener.listen(64)
        starting.rename(address)  # whoever finds it can connect
        while sys.stdin not in select([listener, sys.stdin], [], [])[0]:
            yield listener.accept()[0]


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a line of JSON and the descriptors that came with it."""
    line, streams, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while not line.endswith(b"\n") and (more := connection.recv(1 << 16)):
        line += more
    return json.loads(line), streams


def _command(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Take on what a process inherits, and be the command."""
    from app.cli import main

    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, how, buffering=1, closefd=False)  # noqa: SIM115 - closed by the process's end
        for number, how in enumerate(("r", "w", "w"))
    )
    sys.argv = ["gpucast", *request["words"]]
    main()


if __name__ == "__main__":
    _serve()
