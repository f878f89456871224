"""Transformers of several sizes, lowered at once (app/graphs/many.py)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
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
    kind: Any = type(part)
    if kind is int:  # a bool is none
        sizes.append(part)
        return None
    if isinstance(part, tuple):
        return tuple([_form(one, sizes) for one in part])
    if names := _fields(kind):
        return kind, tuple([_form(getattr(part, name), sizes) for name in names])
    return part, kind  # a word, a bool, or nothing


@cache
def _fields(kind: type) -> tuple[str, ...]:
    """Names of a dataclass's fields: asked of every part of every architecture, which `dataclasses` is slow at."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def _resized(part: Any, sizes: Iterator[Any]) -> Any:
    kind: Any = type(part)
    if kind is int:
        return next(sizes)
    if isinstance(part, tuple):
        return tuple(_resized(one, sizes) for one in part)
    if names := _fields(kind):
        return replace(part, **{name: _resized(getattr(part, name), sizes) for name in names})
    return part


def resized(like: Architecture, sizes: Floats) -> Architecture:
    """Architectures of the form of `like` as one, whose sizes are figures of c configurations; `sizes` is [c, ...]."""
    resized: Architecture = _resized(like, iter([figures(column) for column in sizes.T]))
    return resized
