"""Known names near a wrong one, for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Least similarity (difflib's ratio) of names that are suggested, and the most of them.
_SIMILAR, _MOST = 0.6, 3


def near_names(word: str, names: Iterable[str]) -> list[str]:
    """Return the known names most similar to `word`, best first; names that it begins, or that begin it, count too."""
    by_lower = {name.lower(): name for name in names}
    lower = word.lower()[:100]
    near = difflib.get_close_matches(lower, by_lower, _MOST, _SIMILAR)
    if len(lower) > 2:
        near += [name for name in by_lower if name not in near and (name.startswith(lower) or lower.startswith(name))]
    return [by_lower[name] for name in near[:_MOST]]


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return a question with the nearest known names, in brackets after a space; empty if none is near."""
    near = near_names(word, names)
    return f" (did you mean {' or '.join(near)}?)" if near else ""
