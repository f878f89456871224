"""Correct the engines of a service by what was measured, in a process of its own."""

from __future__ import annotations

from app.bootstrap.assemble import corrections
from app.engine.correction_process import CorrectionProcess
from app.engine.corrections import Corrected
from app.engine.engine import Engine
from app.store.session import Database


class CorrectInProcess:
    """Fits the corrections of engines: app.engine.snapshot.Correct."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._process = CorrectionProcess()

    def __call__(self, engine: Engine) -> Corrected:
        """Return what corrects an engine; raises Unavailable without database, EOFError or OSError if it is ended."""
        return corrections(self._database, self._process, engine)

    def rest(self) -> None:
        """End the process until it is needed again."""
        self._process.end()

    def stop(self) -> None:
        """End the process for good."""
        self._process.stop()
