"""Training on several devices at once: processes of this machine that run every step together, by PyTorch over gloo.

This process is the first of the group and the one that is timed. The others (app.measure.peer) wait for a line: a
workload to build, or that a step begins, so that a step costs one word to each of them and no barrier.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch.distributed

from app.measure.point import Phases

STEP = "step"
# Longer than any step; who waits longer waits for a process that has gone.
_WAIT = timedelta(seconds=120)

Found = TypeVar("Found")


def join(rank: int, devices: int, rendezvous: str) -> None:
    """Become one of a group of processes that meet at a file."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=devices, timeout=_WAIT
    )


class Peers:
    """The other processes of a group of `devices`, each of `threads` threads; started when they are first needed."""

    def __init__(self, devices: int, threads: int) -> None:
        self.devices, self._threads = devices, threads
        self._others: list[subprocess.Popen[str]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def phases(self, workload: Mapping[str, Any], build: Callable[[], Phases]) -> Phases:
        """What `build` makes of the workload, once all have made it; the first phase begins the step of all."""
        made = self._run(json.dumps(workload), build)
        begins = next(iter(made))
        return {name: partial(self._run, STEP if name == begins else "", run) for name, run in made.items()}

    def close(self) -> None:
        """End them; the next use starts others."""
        for other in self._others:
            other.kill()
            other.communicate()
        self._others = []
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        if self._folder is not None:
            self._folder.cleanup()

    def _run(self, said: str, what: Callable[[], Found]) -> Found:
        """Say it to the others, if anything, and do one's own part; where that fails, they would wait in vain."""
        try:
            if not self._others:
                self._start()
            if said:
                self._say(said)
            return what()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        # Kept until the group ends: another process may still have to read where this one, already through, listens.
        self._folder = tempfile.TemporaryDirectory(prefix="gpucast-group-")
        rendezvous = f"{self._folder.name}/group"
        told = [str(self.devices), str(self._threads), rendezvous]
        self._others = [
            subprocess.Popen(
                [sys.executable, "-m", "app.measure.peer", *told, str(rank)],
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is this process's to handle
            )
            for rank in range(1, self.devices)
        ]
        join(0, self.devices, rendezvous)

    def _say(self, line: str) -> None:
        try:
            for other in self._others:
                print(line, file=other.stdin, flush=True)
        except OSError as error:
            raise RuntimeError("a process of the group has ended") from error
