"""A child process that fits and tries corrections: here both would hold the interpreter's lock, for seconds.

`python -m app.engine.correction_process` receives tasks from its input and sends answers. It ends with its input, so
with the process that started it.

It runs when a processor is idle: the kernel then stops it at once for an upload or a prediction, for which one with a
lower priority only would make each step in the database wait until its time slice ends. Where no processor is ever
idle, another with a lower priority takes its place.

Linux may share the processors among sessions first (autogroup), and counts priorities within a session only: while the
service waits for the database, which has sessions of its own, a child in the service's session would take all of its
share. So the child has a session of its own, of less weight.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from app.engine.corrections import Failure, Trial, fitted, plain_of, prepared_by
from app.engine.engine import Served
from app.engine.unlearned import Group
from app.store.artifacts import ArtifactRefused
from app.store.files import from_bytes, to_bytes
from app.tables.arrays import Bytes
from app.tables.gpus import GpuTable

# Of one that takes the place of a starved one. At 19, the most, it would hardly run where all processors are busy.
_NICE = 10
# Of its session: a third of the weight of another.
_SESSION, _SESSION_NICE = Path("/proc/self/autogroup"), 5
_WHEN_IDLE = "--when-idle"
# A process is starved if it ran for less than this share of so many seconds.
LOOK_S, STARVED_SHARE = 5.0, 0.05
_STARVED: Any = object()
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Preparation(NamedTuple):
    """Corrections to prepare and to try."""

    models: Sequence[Any]
    trials: Sequence[Trial]


class Task(NamedTuple):
    """Groups to fit, with an answer each, or what to prepare, with one answer.

    `plain`, the bytes of the predictor (files.to_bytes), and `gpus` are None where the process has them.
    """

    plain: Bytes | None
    gpus: GpuTable | None
    work: Sequence[Group] | Preparation


class CorrectionProcess:
    """Fits in a child process that is started when it is needed."""

    def __init__(self, look_s: float = LOOK_S, *, when_idle: bool = True) -> None:
        """`when_idle`: it runs when a processor is idle, until it is starved; that is looked at every `look_s` s."""
        self._process: subprocess.Popen[bytes] | None = None
        self._tasks: Connection[Task, Any]
        self._answers: Connection[Any, Any]
        self._plain: Any = None
        self._gpus: GpuTable | None = None
        self._look_s, self._when_idle = look_s, when_idle
        self._stopped = self._starved = False
        self._changing = threading.Lock()

    def fit(self, version: Served, groups: Sequence[Group], gpus: GpuTable) -> Iterable[Any | Failure]:
        """Yield what `fitted` gives for each group. Raises OSError or EOFError if the process ends."""
        left = list(groups)
        while left:
            process = self._sent(version, gpus, left)
            while left and (answer := self._answer(process)) is not _STARVED:
                del left[0]
                yield answer

    def prepared(self, version: Served, models: Sequence[Any], gpus: GpuTable, trials: Sequence[Trial]) -> Any:
        """Return what the version derives from `models`.

        Raises ArtifactRefused unless it passes the trials, OSError or EOFError if the process ends.
        """
        answer = _STARVED
        while answer is _STARVED:
            answer = self._answer(self._sent(version, gpus, Preparation(models, trials)))
        if isinstance(answer, Failure):
            raise ArtifactRefused(answer.reason)
        return answer

    def _sent(self, version: Served, gpus: GpuTable, work: Sequence[Group] | Preparation) -> psutil.Process:
        """Send a task; return the process that answers."""
        plain, process = plain_of(version), self._started()
        sent = to_bytes(plain) if plain is not self._plain else None
        self._tasks.send(Task(sent, gpus if gpus is not self._gpus else None, work))
        self._plain, self._gpus = plain, gpus
        return process

    def _answer(self, process: psutil.Process) -> Any:
        """Return the next answer, or _STARVED: then the next process, which is not, must be sent the task again.

        Raises EOFError if the process ends.
        """
        before = _run_s(process)
        while not self._answers.poll(self._look_s):
            now = _run_s(process)
            if self._waits_for_idle and now - before < STARVED_SHARE * self._look_s:
                self.end()
                self._starved = True
                return _STARVED
            before = now
        return self._answers.recv()

    @property
    def _waits_for_idle(self) -> bool:
        return self._when_idle and not self._starved

    def _started(self) -> psutil.Process:
        with self._changing:
            if self._stopped:
                raise EOFError("stopped")
            if self._process is None or self._process.poll() is not None:
                self._plain = self._gpus = None
                command = [sys.executable, "-m", __name__, *([_WHEN_IDLE] if self._waits_for_idle else [])]
                environment = {**os.environ, **_ONE_THREAD}
                self._process = process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
                )
                assert process.stdin is not None
                assert process.stdout is not None
                self._tasks = Connection(os.dup(process.stdin.fileno()), readable=False)
                self._answers = Connection(os.dup(process.stdout.fileno()), writable=False)
                process.stdin.close()
                process.stdout.close()
            return psutil.Process(self._process.pid)

    def end(self) -> None:
        """End the process, whatever it does; the next fit starts another."""
        with self._changing:
            self._starved = False
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None

    def stop(self) -> None:
        """End the process; no other is started."""
        self._stopped = True
        self.end()


def _run_s(process: psutil.Process) -> float:
    """Return the processor time of a process, seconds. Raises EOFError if it ended."""
    try:
        times = process.cpu_times()
    except psutil.Error as error:
        raise EOFError("the process ended") from error
    return float(times.user + times.system)


def answers(tasks: Connection[Any, Task]) -> Iterator[Any | Failure]:
    """Yield the answers of each task, until the input ends."""
    plain: Any = None
    gpus: GpuTable | None = None
    while True:
        try:
            task = tasks.recv()
        except EOFError:
            return
        if task.plain is not None:
            plain = from_bytes(task.plain.data)
        gpus = gpus if task.gpus is None else task.gpus
        assert gpus is not None
        if isinstance(task.work, Preparation):
            yield _prepared(plain, gpus, task.work)
        else:
            yield from (fitted(plain, group, gpus) for group in task.work)


def _prepared(plain: Any, gpus: GpuTable, work: Preparation) -> Any | Failure:
    try:
        return prepared_by(plain, work.models, gpus, work.trials)
    except Exception as error:
        return Failure(error.detail if isinstance(error, ArtifactRefused) else repr(error))


def main() -> None:
    """Answer on what was the standard output; what is printed goes to the standard error."""
    _give_way(when_idle=_WHEN_IDLE in sys.argv)
    tasks, results = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    for answer in answers(tasks):
        results.send(answer)


def _give_way(*, when_idle: bool) -> None:
    """Run after what answers requests, or only when a processor is idle, where the kernel allows that."""
    os.nice(_NICE)
    with suppress(OSError):  # of kernels that know no groups of sessions, or set one at a time
        _SESSION.write_text(str(_SESSION_NICE))
    if when_idle and sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    from app.engine.correction_process import main as run  # its classes are those that requests name

    run()
