"""Data-parallel training by processes of this machine, with PyTorch over gloo.

This process is the first of the group and is timed. The others (measure.peer) wait for a line, either a workload to
build or the start of a step, so that a step needs no barrier.
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

from measure.point import Phases

STEP = "step"
# Longer than any step: a longer wait means that a process has ended.
_WAIT = timedelta(seconds=120)

Result = TypeVar("Result")


def join(rank: int, devices: int, rendezvous: str) -> None:
    """Join a group of processes through a rendezvous file."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=devices, timeout=_WAIT
    )


class Peers:
    """The other processes of a group of `devices`, with `threads` threads each; started at first use."""

    def __init__(self, devices: int, threads: int) -> None:
        self.devices, self._threads = devices, threads
        self._others: list[subprocess.Popen[str]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def phases(self, workload: Mapping[str, Any], build: Callable[[], Phases]) -> Phases:
        """Return the phases of `build`, once all processes have built theirs; the first one starts the group's step."""
        made = self._run(json.dumps(workload), build)
        begins = next(iter(made))
        return {name: partial(self._run, STEP if name == begins else "", run) for name, run in made.items()}

    def close(self) -> None:
        """End the processes; the next use starts new ones."""
        for other in self._others:
            other.kill()
            other.communicate()
        self._others = []
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        if self._folder is not None:
            self._folder.cleanup()

    def _run(self, line: str, what: Callable[[], Result]) -> Result:
        """Send a line to the others, if any, and run `what`; ends the group on failure, as the others would wait."""
        try:
            if not self._others:
                self._start()
            if line:
                self._say(line)
            return what()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        # Kept until the group ends: other processes may read it later than this one.
        self._folder = tempfile.TemporaryDirectory(prefix="gpucast-group-")
        rendezvous = f"{self._folder.name}/group"
        arguments = [str(self.devices), str(self._threads), rendezvous]
        self._others = [
            subprocess.Popen(
                [sys.executable, "-m", "measure.peer", *arguments, str(rank)],
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,  # only this process handles Ctrl-C
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
