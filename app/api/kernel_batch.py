"""Kernels of requests that wait together: the engine costs little more for twenty than for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from app.engine.snapshot import SnapshotHolder
from app.services.kernels.predict_kernels import predict_kernels
from app.wire.prediction_form import PredictRequest, PredictResponse

Answer: TypeAlias = PredictResponse | Exception
Done: TypeAlias = Callable[[Answer], None]


class KernelBatch:
    """Requests that arrive within two turns of the event loop.

    By the second turn it has read what other connections sent meanwhile.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[PredictRequest, Done]] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # of those that wait

    def add(self, holder: SnapshotHolder, request: PredictRequest, done: Done) -> None:
        """Compute the answer together with those of all waiting requests, then call `done` with it."""
        if self._loop is None or not self._waiting:
            self._loop = asyncio.get_running_loop()  # a system call
            self._loop.call_soon(self._loop.call_soon, self._flush, holder)
        self._waiting.append((request, done))

    def _flush(self, holder: SnapshotHolder) -> None:
        waiting, self._waiting = self._waiting, []
        answers = _all(holder, [request for request, _ in waiting])
        for (_, done), answer in zip(waiting, answers, strict=True):
            done(answer)


def _all(holder: SnapshotHolder, requests: Sequence[PredictRequest]) -> Sequence[Answer]:
    """Return all answers. A defect caused by one request is only returned for that request."""
    try:
        return predict_kernels(holder.snapshot, requests)
    except Exception as error:
        if len(requests) == 1:
            return [error]
        return [answer for request in requests for answer in _all(holder, [request])]
