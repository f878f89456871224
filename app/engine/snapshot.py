"""A snapshot: what requests in flight answer from."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One engine and the row of every GPU name seen so far. A change of the catalogue makes a new snapshot."""

    engine: Engine
    row_of: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: Engine) -> Snapshot:
        """Return a snapshot of an engine, with all ids known."""
        return cls(engine, {spec.id: row for row, spec in enumerate(engine.catalog.specs)})
