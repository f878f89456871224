"""Schema of what a predictor learned: the names behind the positions and codes in its arrays.

Arrays of a state are indexed by lists that live in the code: operators, dtypes, features, figures of GPUs. An artefact
holds these lists as they were when it was trained, and is read only by code in which they mean the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Self

import numpy as np

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """What arrays of a state hold.

    axes   names along an axis, in order; the code must have the same
    codes  names that stored numbers index; the code may have more of them at the end
    """

    axes: Mapping[str, Names] = field(default_factory=dict)
    codes: Mapping[str, Names] = field(default_factory=dict)

    def joined(self, other: Layout) -> Layout:
        """Both together."""
        return Layout({**self.axes, **other.axes}, {**self.codes, **other.codes})


@dataclass(frozen=True, slots=True)
class Schema:
    """What a trained version relies on.

    operators, dtypes  that it learned
    groups             interval groups that have residuals
    layout             of its arrays
    """

    operators: Names
    dtypes: Names
    groups: Names
    layout: Layout

    def state(self) -> dict[str, Any]:
        """As plain containers."""
        parts = {"axes": self.layout.axes, "codes": self.layout.codes}
        named = {"operators": self.operators, "dtypes": self.dtypes, "groups": self.groups}
        lists = {part: {name: list(names) for name, names in of.items()} for part, of in parts.items()}
        return {**{name: list(names) for name, names in named.items()}, **lists}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`."""
        axes, codes = ({str(name): tuple(names) for name, names in state[part].items()} for part in ("axes", "codes"))
        operators, dtypes, groups = (tuple(state[part]) for part in ("operators", "dtypes", "groups"))
        return cls(operators, dtypes, groups, Layout(axes, codes))

    def without(self, operators: Collection[str]) -> Self:
        """Without what only these operators rely on."""
        features, own = {features_of(name) for name in operators}, tuple(f"{name}." for name in operators)
        axes = {axis: names for axis, names in self.layout.axes.items() if axis not in features}
        codes = {code: names for code, names in self.layout.codes.items() if not code.startswith(own)}
        kept = tuple(name for name in self.operators if name not in operators)
        return replace(self, operators=kept, layout=Layout(axes, codes))

    def differences(self, known: Schema) -> Iterator[str]:
        """What a version with this schema relies on and `known`, the code's, lacks or means otherwise, in words."""
        for what, mine, theirs in (
            ("operator", self.operators, known.operators),
            ("dtype", self.dtypes, known.dtypes),
            ("interval group", self.groups, known.groups),
        ):
            if gone := [name for name in mine if name not in theirs]:
                yield f"{what} {', '.join(gone)} is unknown"
        for axis, names in self.layout.axes.items():
            now = known.layout.axes.get(axis)
            if now != names:
                yield f"{axis}: {_difference(names, now)}"
        for code, names in self.layout.codes.items():
            now = known.layout.codes.get(code)
            if now is None or now[: len(names)] != names:
                yield f"{code}: {_difference(names, now)}"


def features_of(operator: str) -> str:
    """The axis of an operator's features."""
    return f"features of {operator}"


def _difference(then: Names, now: Names | None) -> str:
    """How two lists of names differ, in words."""
    if now is None:
        return "not part of this version"
    changes = ((_beyond(now, then), "added"), (_beyond(then, now), "removed"))
    if changed := [f"{_few(names)} {how}" for names, how in changes if names]:
        return ", ".join(changed)
    if len(then) != len(now):
        return f"there were {len(then)}, and are {len(now)}"
    at = next((k for k, (one, other) in enumerate(zip_longest(then, now)) if one != other), 0)
    return f"{(then if at < len(then) else now)[at]} has another place"


def _beyond(names: Names, others: Names) -> Names:
    return tuple(name for name in names if name not in others)


def _few(names: Names) -> str:
    """The first, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def check_shape(what: str, array: Any, *shape: int | None) -> None:
    """Raise ValueError unless an array has this shape; None stands for any length."""
    actual = np.shape(array)
    if len(actual) != len(shape) or any(most not in (None, here) for here, most in zip(actual, shape, strict=True)):
        raise ValueError(f"{what} are {actual}, not {shape}")


def check_below(what: str, array: Any, stop: int, least: int = 0) -> None:
    """Raise ValueError unless every number of an array lies in [least, stop)."""
    values = np.asarray(array)
    if values.size and not (least <= values.min() and values.max() < stop):
        raise ValueError(f"{what} are not all from {least} to {stop - 1}")
