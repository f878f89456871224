"""Commands of `gpucast` as processes that start at once: forked from one process that has imported everything.

Each has arguments, an environment, a folder and streams of its own, as in a shell. Only the interpreter's start and the
imports are shared, which take most of a command's time. Tests of a start itself run `python -m app.cli`.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn, Protocol

from app.config import CHECKOUT

_POLL_S = 0.005


class Running(Protocol):
    """A command that runs: the parts of `subprocess.Popen` that tests use."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


class Forked:
    """A forked command."""

    def __init__(self, server: _Server, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        began = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() > began + timeout:
                raise subprocess.TimeoutExpired(f"the forked process {self.pid}", timeout)
            time.sleep(_POLL_S)
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
    server = _server()
    return Forked(
        server, server.ask({"words": [*map(str, words)], "env": dict(env), "cwd": str(cwd), "streams": streams})
    )


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


class _Server:
    """The process that forks, which ends with this one."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__]
        self._asking = Lock()
        self._process = subprocess.Popen(
            command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def ask(self, question: Mapping[str, Any]) -> Any:
        """Return the answer to one line of JSON."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@cache
def _server() -> _Server:
    server = _Server()
    atexit.register(server.stop)
    return server


def _serve() -> NoReturn:
    """Answer requests until this process's parent ends: start a command, or say its exit status, None while it runs."""
    from app.bootstrap.warm import shipped_snapshot, warm
    from app.cli import COMMANDS

    for name in ("main", "worker", *(f"cli.{module}" for _, module, _ in COMMANDS)):
        import_module(f"app.{name}")
    snapshot = shipped_snapshot()  # held, so that commands find its versions in use
    warm(snapshot)
    gc.collect()
    gc.freeze()  # a collection would copy the memory of all of it into each command
    running: dict[int | None, BaseProcess] = {}
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "poll" in request:
            answer = running[request["poll"]].exitcode
        else:
            process = get_context("fork").Process(target=_command, args=(request,))
            process.start()
            answer = process.pid
            running[answer] = process
        print(json.dumps(answer), flush=True)
    os._exit(0)


def _command(request: Mapping[str, Any]) -> None:
    """Take on what a process inherits, and be the command."""
    from app.cli import main

    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    flags = (os.O_RDONLY, *(2 * [os.O_WRONLY | os.O_CREAT | os.O_APPEND]))
    for number, (file, how) in enumerate(zip(request["streams"], flags, strict=True)):
        opened = os.open(file, how, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, how, buffering=1, closefd=False)  # noqa: SIM115 - closed by the process's end
        for number, how in enumerate(("r", "w", "w"))
    )
    sys.argv = ["gpucast", *request["words"]]
    main()


if __name__ == "__main__":
    _serve()
