"""A child process that fits and tries corrections: here both would hold the interpreter's lock, for seconds.

`python -m app.engine.correction_process` reads pickled requests from its input and writes pickled answers. It ends with
its input, so with the process that started it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, BinaryIO, NamedTuple

from app.engine.corrections import Failure, Trial, fitted, plain_of, prepared_by
from app.engine.engine import Served
from app.engine.unlearned import Group
from app.store.artifacts import ArtifactRefused
from app.store.mapped_file import from_bytes, to_bytes
from app.tables.arrays import Bytes
from app.tables.gpus import GpuTable

# Predictions come first; at 19, the most, it would hardly run where all processors are busy.
_NICE = 10
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Preparation(NamedTuple):
    """Corrections to prepare and to try."""

    found: Sequence[Any]
    trials: Sequence[Trial]


class Task(NamedTuple):
    """Groups to fit, with an answer each, or what to prepare, with one answer.

    `plain`, the bytes of the predictor (mapped_file.to_bytes), and `gpus` are None where the process has them.
    """

    plain: Bytes | None
    gpus: GpuTable | None
    work: Sequence[Group] | Preparation


class CorrectionProcess:
    """Fits in a child process that is started when it is needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._plain: Any = None
        self._gpus: GpuTable | None = None
        self._stopped = False
        self._changing = threading.Lock()

    def fit(self, version: Served, groups: Sequence[Group], gpus: GpuTable) -> Iterable[Any | Failure]:
        """Yield what `fitted` gives for each group. Raises OSError or EOFError if the process ends."""
        if not groups:
            return
        answers = self._sent(version, gpus, groups)
        for _ in groups:
            yield pickle.load(answers)

    def prepared(self, version: Served, found: Sequence[Any], gpus: GpuTable, trials: Sequence[Trial]) -> Any:
        """Return what the version derives from `found`.

        Raises ArtifactRefused unless it passes the trials, OSError or EOFError if the process ends.
        """
        answer = pickle.load(self._sent(version, gpus, Preparation(found, trials)))
        if isinstance(answer, Failure):
            raise ArtifactRefused(answer.reason)
        return answer

    def _sent(self, version: Served, gpus: GpuTable, work: Sequence[Group] | Preparation) -> IO[bytes]:
        """Send a task; return the stream of its answers."""
        plain, process = plain_of(version), self._started()
        sent = to_bytes(plain) if plain is not self._plain else None
        assert process.stdin is not None
        assert process.stdout is not None
        pickle.dump(Task(sent, gpus if gpus is not self._gpus else None, work), process.stdin)
        process.stdin.flush()
        self._plain, self._gpus = plain, gpus
        return process.stdout

    def _started(self) -> subprocess.Popen[bytes]:
        with self._changing:
            if self._stopped:
                raise EOFError("stopped")
            if self._process is None or self._process.poll() is not None:
                self._plain = self._gpus = None
                command = [sys.executable, "-m", __name__]
                environment = {**os.environ, **_ONE_THREAD}
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
                )
            return self._process

    def end(self) -> None:
        """End the process, whatever it does; the next fit starts another."""
        with self._changing:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None

    def stop(self) -> None:
        """End the process; no other is started."""
        self._stopped = True
        self.end()


def answers(requests: BinaryIO) -> Iterator[Any | Failure]:
    """Yield the answers of each task, until the input ends."""
    plain: Any = None
    gpus: GpuTable | None = None
    while True:
        try:
            task: Task = pickle.load(requests)
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
        return prepared_by(plain, work.found, gpus, work.trials)
    except Exception as error:
        return Failure(error.detail if isinstance(error, ArtifactRefused) else repr(error))


def main() -> None:
    """Answer on what was the standard output; what is printed goes to the standard error."""
    os.nice(_NICE)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for answer in answers(sys.stdin.buffer):
        pickle.dump(answer, out)
        out.flush()


if __name__ == "__main__":
    from app.engine.correction_process import main as run  # its classes are those that requests name

    run()
