"""Transformers of several sizes, lowered at once (app/graphs/many.py)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from app.graphs.many import Floats, figures
from app.graphs.transformers.architecture import Architecture


class Sized(NamedTuple):
    """An architecture as what it is made of, and how large: those of one `form` differ by their sizes alone."""

    form: Hashable
    sizes: tuple[int, ...]
    architecture: Architecture


def sized(architecture: Architecture) -> Sized:
    """An architecture's form and its sizes, in the order of its fields."""
    sizes: list[int] = []
    return Sized(_form(architecture, sizes), tuple(sizes), architecture)


def _form(part: Any, sizes: list[int]) -> Hashable:
    if type(part) is int:  # a bool is none
        sizes.append(part)
        return None
    if isinstance(part, tuple):
        return tuple(_form(one, sizes) for one in part)
    if is_dataclass(part):
        return type(part), tuple(_form(getattr(part, field.name), sizes) for field in fields(part))
    return part, type(part)  # a word, a bool, or nothing


def _resized(part: Any, sizes: Iterator[Any]) -> Any:
    if type(part) is int:
        return next(sizes)
    if isinstance(part, tuple):
        return tuple(_resized(one, sizes) for one in part)
    if is_dataclass(part):
        return replace(part, **{field.name: _resized(getattr(part, field.name), sizes) for field in fields(part)})  # type: ignore[type-var]
    return part


def resized(like: Architecture, sizes: Floats) -> Architecture:
    """Architectures of the form of `like` as one, whose sizes are figures of c configurations; `sizes` is [c, ...]."""
    resized: Architecture = _resized(like, iter([figures(column) for column in sizes.T]))
    return resized
