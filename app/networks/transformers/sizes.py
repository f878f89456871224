"""An architecture's form apart from its sizes, so that configurations of one form are lowered together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from app.networks.batched import per_configuration
from app.networks.transformers.architecture import Architecture
from app.tables.arrays import Floats


class Sized(NamedTuple):
    """An architecture split into its form and its sizes; architectures of equal `form` differ only in sizes."""

    form: Hashable
    sizes: tuple[int, ...]
    architecture: Architecture


def split_sizes(architecture: Architecture) -> Sized:
    """Return an architecture's form and its sizes, in the order of its fields."""
    sizes: list[int] = []
    return Sized(_form(architecture, sizes), tuple(sizes), architecture)


def _form(part: Any, sizes: list[int]) -> Hashable:
    kind: Any = type(part)
    if kind is int:  # not bool
        sizes.append(part)
        return None
    if isinstance(part, tuple):
        return tuple([_form(item, sizes) for item in part])
    if names := _fields(kind):
        return kind, tuple([_form(getattr(part, name), sizes) for name in names])
    return part, kind  # str, bool or None


@cache
def _fields(kind: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields; cached, because `dataclasses.fields` is slow."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def _with_sizes(part: Any, sizes: Iterator[Any]) -> Any:
    kind: Any = type(part)
    if kind is int:
        return next(sizes)
    if isinstance(part, tuple):
        return tuple(_with_sizes(item, sizes) for item in part)
    if names := _fields(kind):
        return replace(part, **{name: _with_sizes(getattr(part, name), sizes) for name in names})
    return part


def with_sizes(template: Architecture, sizes: Floats) -> Architecture:
    """Return `template` with the sizes of c configurations, float64 [c, sizes]."""
    batched: Architecture = _with_sizes(template, iter([per_configuration(column) for column in sizes.T]))
    return batched
