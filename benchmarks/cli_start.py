"""What a command of `gpucast` costs before and until its answer, as somebody at a terminal waits for it.

    python -m benchmarks.cli_start

Wall time of processes and the processor's, the least of several: `--help` of every command; `gpucast predict` of a
ResNet-50 without a service (an embedded database is started and stopped) and with one running. Code is compiled before.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from app.cli import COMMANDS

HELP_GOAL_S, PREDICT_GOAL_S = 0.5, 1.5
REPEATS = 5
START_S = 300
# Bytecode is kept, as on a user's machine, also where the environment asks for none.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
_PREDICT = ("predict", "--model", "resnet50", "--gpu", "h100-sxm5-80gb")


def main() -> None:
    """Print every figure beside its goal; exit 1 if one is missed."""
    missed = False
    for words in ((), *((name,) for name, _, _ in COMMANDS)):
        missed |= _told(" ".join((*words, "--help")), (*words, "--help"), HELP_GOAL_S, _ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder:
        installation = {**_ENVIRONMENT, "GPUCAST_DATA_DIR": folder}
        _run(_PREDICT, installation)  # brings in the shipped measurements, and compiles
        missed |= _told("predict without a service", _PREDICT, PREDICT_GOAL_S, installation)
        with _serving(installation):
            missed |= _told("predict with a service", _PREDICT, PREDICT_GOAL_S, installation)
    print(f"load average {os.getloadavg()[0]:.2f}")
    sys.exit(missed)


def _told(name: str, words: tuple[str, ...], goal_s: float, environment: Mapping[str, str]) -> bool:
    """Print a line of one command; True if it missed its goal."""
    walls, busy = zip(*(_run(words, environment) for _ in range(REPEATS)), strict=True)
    print(f"gpucast {name:<32}{min(walls):>7.2f} s   goal {goal_s}   processor {min(busy):.2f} s", flush=True)
    return bool(min(walls) > goal_s)


def _run(words: tuple[str, ...], environment: Mapping[str, str]) -> tuple[float, float]:
    """Seconds of one process, and of the processor for it."""
    began, before = time.perf_counter(), os.times()
    command = [sys.executable, "-m", "app.cli", *words]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return wall, used


@contextmanager
def _serving(environment: Mapping[str, str]) -> Iterator[None]:
    """A service of the installation, ready to answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "app.cli", "serve"]
    quiet = subprocess.DEVNULL
    service = subprocess.Popen(command, env={**environment, "PORT": str(port)}, stdout=quiet, stderr=quiet)
    try:
        _wait(port)
        yield
    finally:
        service.terminate()
        service.wait()


def _wait(port: int) -> None:
    """Return once somebody listens: a service does when it is ready."""
    end = time.monotonic() + START_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(0.2)


if __name__ == "__main__":
    main()
