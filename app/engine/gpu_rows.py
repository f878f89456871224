"""From what a request calls a GPU to a row of a GPU table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.engine.engine import Engine
from app.errors import BadInput, FieldError, NotFound
from app.tables.complete import complete
from app.tables.gpus import GpuSpec, GpuTable
from app.wire.prediction_form import Asking

Path = tuple[str | int, ...]

# Spellings of catalogue names remembered per engine; enough for every alias, bounded for hostile callers.
MAX_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One engine and the row of every GPU name seen so far; replaced whole when the catalogue changes."""

    engine: Engine
    row_of: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: Engine) -> Snapshot:
        """Around an engine, every id known from the start."""
        return cls(engine, {spec.id: row for row, spec in enumerate(engine.catalog.specs)})


class GpuRows:
    """The GPUs of one request: the engine's table, and behind its rows the GPUs that only the request knows."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known = len(snapshot.engine.gpus)
        self._guests: list[GpuSpec] = []

    def row(self, ref: str | Mapping[str, Any], loc: Path) -> int:
        """Row of an id, alias or inline specification; NotFound or BadInput that points at `loc`."""
        if isinstance(ref, str):
            row = self._snapshot.row_of.get(ref)
            return self._named(ref, loc) if row is None else row
        return self._guest(complete(ref, where=loc))

    def targets(self, asked: Asking) -> list[int]:
        """Rows of every GPU that a request names, in its order."""
        if (asked.gpu is None) == (asked.gpus is None):
            message = 'send either gpu (one name or specification) or gpus (a list of them, or "all")'
            raise BadInput(message, errors=[FieldError(("gpu",), message)])
        if asked.gpu is not None:
            return [self.row(asked.gpu, ("gpu",))]
        if asked.gpus == "all":
            return list(range(self._known))
        return [self.row(ref, ("gpus", k)) for k, ref in enumerate(asked.gpus or ())]

    def table(self) -> GpuTable:
        """The table whose rows `row` has given."""
        gpus = self._snapshot.engine.gpus
        if not self._guests:
            return gpus
        guests = GpuTable.from_specs(self._guests)
        values = np.concatenate([gpus.values, guests.values], axis=1)
        return GpuTable(gpus.ids + guests.ids, values, gpus.architectures + guests.architectures)

    def spec(self, row: int) -> GpuSpec:
        """The specification at a row."""
        return self._guests[row - self._known] if row >= self._known else self._snapshot.engine.catalog.specs[row]

    def id(self, row: int) -> str:
        """The id at a row."""
        return self.spec(row).id if row >= self._known else self._snapshot.engine.gpus.ids[row]

    def is_guest(self, row: int) -> bool:
        """Whether the row stands behind the catalogue's own: an inline specification, or the long tail."""
        return row >= self._known

    def _named(self, name: str, loc: Path) -> int:
        try:
            spec = self._snapshot.engine.catalog.resolve(name)
        except NotFound as error:
            error.errors = (FieldError(loc, error.detail),)
            raise
        row = self._snapshot.row_of.get(spec.id)
        if row is None:
            return self._guest(spec)
        if len(self._snapshot.row_of) < MAX_REMEMBERED:
            self._snapshot.row_of[name] = row
        return row

    def _guest(self, spec: GpuSpec) -> int:
        """Equal specifications are one GPU: what was measured on it bears on it."""
        row = self._snapshot.row_of.get(spec.id)
        if row is not None and self._snapshot.engine.catalog.specs[row] == spec:
            return row
        if spec not in self._guests:
            self._guests.append(spec)
        return self._known + self._guests.index(spec)
