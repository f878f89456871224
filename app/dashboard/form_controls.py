"""The workload form of a page: controls with typed values, and GPUs and predictors to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.dashboard.address import ALL, INLINE, Address
from app.dashboard.fields import KINDS
from app.dashboard.gpu_choices import CHOSEN, ChoiceGroup, catalogue_groups, picked_choices
from app.engine.engine import Engine
from app.predictors import BY_NAME
from app.services.models.network_kinds import NetworkKind, network_kind
from app.tables.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Controls:
    """Contents of a form. `network` is the kind of the typed network, None where that is not known."""

    address: Address
    kinds: Sequence[tuple[str, str]]
    catalog: Catalog
    predictors: Sequence[str]
    network: NetworkKind | None

    def name_of(self, gpu: str) -> str:
        """Return the display name of a GPU."""
        spec = self.catalog.find(gpu)
        return gpu if spec is None else spec.name

    def gpu_groups(self, one: str = "") -> list[ChoiceGroup]:
        """Return the GPUs to choose from, first those chosen: of a page of one GPU `one`, else those of the address."""
        names = [gpu for gpu in ([one] if one else self.address.gpus) if gpu not in (ALL, INLINE)]
        chosen = picked_choices(self.catalog, names)
        groups = catalogue_groups(self.catalog.specs, names)
        return [*([ChoiceGroup(CHOSEN, chosen)] if chosen else []), *groups]


def controls(engine: Engine, address: Address) -> Controls:
    """Return the form of a page."""
    typed = address.typed
    kind = None if "config" in typed else network_kind(typed.get("name", ""))
    return Controls(address, tuple(KINDS.items()), engine.catalog, tuple(BY_NAME), kind)
