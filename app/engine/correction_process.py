"""A child process that fits corrections: a fit would hold the interpreter's lock, and delay predictions, for seconds.

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
from typing import Any, BinaryIO, NamedTuple

from app.engine.corrections import Failure, fitted, plain_of
from app.engine.engine import Served
from app.engine.unlearned import Group
from app.predictors import BY_NAME
from app.tables.gpus import GpuTable

# Predictions come first.
_NICE = 19
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Task(NamedTuple):
    """Groups to fit; `plain`, name and state of the predictor, and `gpus` are None where the process has them."""

    plain: tuple[str, dict[str, Any]] | None
    gpus: GpuTable | None
    groups: Sequence[Group]


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
        plain, process = plain_of(version), self._started()
        sent = (plain.name, plain.state()) if plain is not self._plain else None
        assert process.stdin is not None
        assert process.stdout is not None
        pickle.dump(Task(sent, gpus if gpus is not self._gpus else None, groups), process.stdin)
        process.stdin.flush()
        self._plain, self._gpus = plain, gpus
        for _ in groups:
            yield pickle.load(process.stdout)

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
    """Yield what each group of each task gives, until the input ends."""
    plain: Any = None
    gpus: GpuTable | None = None
    while True:
        try:
            task: Task = pickle.load(requests)
        except EOFError:
            return
        if task.plain is not None:
            name, state = task.plain
            plain = BY_NAME[name].from_state(state)  # type: ignore[attr-defined]
        gpus = gpus if task.gpus is None else task.gpus
        assert gpus is not None
        for group in task.groups:
            yield fitted(plain, group, gpus)


def main() -> None:
    """Answer on what was the standard output; what is printed goes to the standard error."""
    os.nice(_NICE)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for answer in answers(sys.stdin.buffer):
        pickle.dump(answer, out)
        out.flush()


if __name__ == "__main__":
    main()
