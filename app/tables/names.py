"""Names of GPUs: normalisation, and search for the closest known names."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

_MARKS = re.compile(r"\((r|tm|c)\)")
_SEPARATORS = re.compile(r"[\s\-_]+")
# What drivers call a laptop's GPU, databases call mobile.
_LAPTOP = re.compile(r"laptop(gpu)?$|mobile(gpu)?$")
# A whole accelerator passed through to a virtual machine, and its form.
_INSTINCT = re.compile(r"^(radeon)?(instinct)?(mi\d+[a-z]??)(vf|oam)?$")
_MAKER = re.compile(r"^(nvidia|amd|intel|google)(corporation)?(geforce)?|^geforce")
# Longer than any known name; bounds the cost of hostile names.
_LONGEST = 200


def normalise(name: str) -> str:
    """Return a name for comparison, without case, spaces, hyphens, underscores and the vendor; laptops are mobile."""
    bare = _SEPARATORS.sub("", _MARKS.sub("", name[:_LONGEST].casefold()))
    return _INSTINCT.sub(r"\3", _LAPTOP.sub("mobile", _MAKER.sub("", bare) or bare))


def slug(name: str) -> str:
    """Return an id from a name, in lower case with hyphens; empty if the name has no letters or digits."""
    return re.sub(r"[^a-z0-9]+", "-", _MARKS.sub("", name.lower())).strip("-")


def _trigrams(key: str) -> set[str]:
    padded = f"  {key} "
    return {padded[k : k + 3] for k in range(len(padded) - 2)}


class NameIndex:
    """Display names searchable by trigram similarity (Dice coefficient)."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(dict.fromkeys(names))
        self._sizes: list[int] = []
        self._holders: dict[str, list[int]] = defaultdict(list)
        for position, name in enumerate(self._names):
            grams = _trigrams(normalise(name))
            self._sizes.append(len(grams))
            for gram in grams:
                self._holders[gram].append(position)

    def __len__(self) -> int:
        return len(self._names)

    def near(self, name: str, limit: int = 5) -> list[tuple[float, str]]:
        """Return at most `limit` pairs (similarity from 0.35 to 1, name), best first."""
        query = _trigrams(normalise(name))
        shared: Counter[int] = Counter()
        for gram in query:
            shared.update(self._holders.get(gram, ()))
        scored = ((2.0 * n / (len(query) + self._sizes[k]), self._names[k]) for k, n in shared.items())
        return sorted((pair for pair in scored if pair[0] >= 0.35), key=lambda pair: (-pair[0], pair[1]))[:limit]
