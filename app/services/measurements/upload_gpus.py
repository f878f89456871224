"""GPUs that uploaded measurements refer to or define."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import BadInput
from app.tables.catalog import Catalog
from app.tables.complete import complete
from app.tables.gpus import GpuSpec, GpuTable


@dataclass(slots=True)
class UploadGpus:
    """GPUs of one upload: each name is resolved once, and each specification has one row.

    `device` is the specification in a file's metadata, for rows that name a GPU which the catalogue lacks.
    """

    catalog: Catalog
    device: Mapping[str, Any] | None = None
    row: dict[str, int] = field(default_factory=dict)
    specs: list[GpuSpec] = field(default_factory=list)
    _by_name: dict[str, int] = field(default_factory=dict)

    def index(self, ref: str | Mapping[str, Any]) -> int:
        """Return the row of a name or an inline specification. Raises NotFound or BadInput."""
        if isinstance(ref, str):
            if ref not in self._by_name:
                self._by_name[ref] = self._named(ref)
            return self._by_name[ref]
        spec = complete(ref)
        known = self.specs[self.row[spec.id]] if spec.id in self.row else self.catalog.find(spec.id)
        if known is not None and known != spec:
            raise BadInput(f"the id {spec.id!r} belongs to another GPU: send its name, or choose another id")
        return self._add(spec)

    def _named(self, name: str) -> int:
        if self.device is not None and self.catalog.find(name) is None:
            carried = complete(self.device, where=("gpucast.device",))
            if Catalog([carried]).find(name) is not None:
                return self.index(self.device)
        return self._add(self.catalog.resolve(name))

    def _add(self, spec: GpuSpec) -> int:
        if spec.id not in self.row:
            self._by_name[spec.id] = self.row[spec.id] = len(self.specs)
            self.specs.append(spec)
        return self.row[spec.id]

    def table(self) -> GpuTable:
        """Return all GPUs."""
        return GpuTable.from_specs(self.specs)

    def newcomers(self, used: NDArray[np.intp]) -> tuple[GpuSpec, ...]:
        """Return the GPUs of rows `used` that are not in the catalogue."""
        own = {spec.id for spec in self.catalog.specs}
        return tuple(self.specs[k] for k in np.unique(used) if self.specs[k].id not in own)
