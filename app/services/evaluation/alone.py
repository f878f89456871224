"""What an installation answers, for a process that is no service: read once, the database closed again."""

from __future__ import annotations

from app.config import Settings
from app.services.assemble import assemble_for
from app.services.gpu_rows import Snapshot
from app.services.runtime import open_runtime


def alone(settings: Settings) -> tuple[Snapshot, tuple[str, ...]]:
    """What is served now, and why each version left out was refused."""
    with open_runtime(settings) as runtime:
        engine, refused = assemble_for(runtime)
    return Snapshot.of(engine), refused
