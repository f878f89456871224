"""The catalogue: GPUs by id, name or alias, with a long tail behind the curated rows."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property

from app.errors import FieldError, NotFound
from app.tables.gpus import GpuSpec
from app.tables.mig import slice_of, slices_of
from app.tables.names import NameIndex, normalise

_NEAR = 5
# Least length of a family name ("A100"), which matches all members.
_FAMILY = 3


def _no_tail(name: str) -> GpuSpec | None:
    return None


def _no_names() -> NameIndex:
    return NameIndex(())


def _by_rank(specs: Sequence[GpuSpec]) -> Iterable[tuple[str, GpuSpec]]:
    """Return all names with their GPUs, ids before names before aliases, so that an alias never hides an id."""
    yield from ((spec.id, spec) for spec in specs)
    yield from ((spec.name, spec) for spec in specs)
    yield from ((alias, spec) for spec in specs for alias in spec.aliases)


class Catalog:
    """GPUs by id, name or alias; comparison ignores case, spaces, hyphens, underscores and the vendor.

    `tail` looks up names that are not in the catalogue (None: unknown there too), and `tail_names` indexes its names;
    both are called only for unknown names. `families` are names of several products, with the id of the most rented.
    """

    def __init__(
        self,
        specs: Sequence[GpuSpec],
        tail: Callable[[str], GpuSpec | None] = _no_tail,
        tail_names: Callable[[], NameIndex] = _no_names,
        families: Mapping[str, str] | None = None,
    ) -> None:
        self.specs = tuple(specs)
        self._tail = tail
        self._tail_names = tail_names
        self._families = {normalise(name): gpu for name, gpu in (families or {}).items()}
        self._owners: dict[str, GpuSpec] = {}
        for name, spec in _by_rank(self.specs):
            self._owners.setdefault(normalise(name), spec)

    @property
    def names(self) -> Collection[str]:
        """Every name of the catalogue's GPUs, normalised."""
        return self._owners.keys()

    def find(self, name: str) -> GpuSpec | None:
        """Return the GPU of an id, name or alias, a slice of one by its profile after a colon, or None."""
        if (spec := self._owners.get(normalise(name))) is not None:
            return spec
        whole, _, profile = name.partition(":")
        if profile:
            spec = self.find(whole)
            return None if spec is None else slice_of(spec, profile)
        return self._tail(name)

    def most_rented(self, name: str) -> GpuSpec | None:
        """Return the most rented product of a family of GPUs ("H100"), or a slice of it ("H100:3g.40gb"); or None."""
        family, colon, profile = name.partition(":")
        gpu = self._families.get(normalise(family))
        return None if gpu is None else self.find(f"{gpu}{colon}{profile}")

    def resolve(self, name: str, *, families: bool = False, hint: bool = True) -> GpuSpec:
        """Return the GPU of an id, name or alias, or of a family's name.

        Raises NotFound, with a `hint` of the closest names, which takes some 0.4 ms.
        """
        spec = self.find(name) or (self.most_rented(name) if families else None)
        if spec is None:
            shown = name if len(name) <= 100 else f"{name[:100]}..."
            route = "; GET /gpus lists them"
            near = self.near(name) if hint else ()
            raise NotFound(f"No GPU is called {shown!r}{route}.", near=near, name=name, route=route)
        return spec

    def near(self, name: str) -> list[str]:
        """Return the closest known names: GPUs whose name contains it, then by similarity, the catalogue's first."""
        whole, _, profile = name.partition(":")
        if profile and (spec := self.find(whole) or self.most_rented(whole)) is not None and slices_of(spec.id):
            return slices_of(spec.id)
        query = normalise(name)
        members = [owner.id for key, owner in self._owners.items() if len(query) >= _FAMILY and query in key]
        known = self._index.near(name, 4 * _NEAR)
        ids = ((score, self._owners[normalise(label)].id) for score, label in known)
        best = dict.fromkeys(members, 1.0)
        for score, label in (*ids, *self._tail_names().near(name, _NEAR)):
            if label in best or self._shown(label, best):
                continue
            best[label] = score
        if not best:  # a name too short for its parts to be compared
            best = {self._owners[key].id: 0.5 for key in difflib.get_close_matches(query, self._owners, _NEAR, 0.5)}
        return sorted(best, key=lambda label: -best[label])[:_NEAR]

    @cached_property
    def _index(self) -> NameIndex:
        return NameIndex(label for label, _ in _by_rank(self.specs))

    def _shown(self, label: str, shown: dict[str, float]) -> bool:
        """Return True if a tail name belongs to a catalogue GPU that is already listed."""
        owner = self._owners.get(normalise(label))
        return owner is not None and owner.id in shown

    def taken(self, spec: GpuSpec) -> list[FieldError]:
        """Return an error for every name of `spec` that another GPU of the catalogue has."""
        named: list[tuple[tuple[str | int, ...], str]] = [(("id",), spec.id), (("name",), spec.name)]
        named += [(("aliases", k), alias) for k, alias in enumerate(spec.aliases)]
        clashes = []
        for loc, name in named:
            owner = self._owners.get(normalise(name))
            if owner is not None and owner.id != spec.id:
                clashes.append(FieldError(loc, f"{name!r} already names the GPU {owner.id!r}; send another"))
        return clashes
