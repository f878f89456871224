"""Transformers of several sizes, run in several ways, lowered at once (app/graphs/many.py)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.graphs.many import Floats, Parting, figures
from app.graphs.run import Run
from app.graphs.transformers.architecture import Architecture
from app.graphs.transformers.lowering import write
from app.tables.workload import Workload

Ints = NDArray[np.intp]


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


class Lowered(NamedTuple):
    """Some of the configurations, by number, and their rows."""

    of: Ints
    workload: Workload


def lowered(like: Architecture, sizes: Floats, batch: Floats, sequence: Floats, run: Run) -> Iterator[Lowered]:
    """Forward rows of c configurations, those that go the same way through the lowering together.

    Architectures have the form of `like` and `sizes` [c, ...]; each runs as `run` says, but for `batch` and `sequence`
    [c]. All can be run and split so (`splitting.check`). Where all of some are equal, their rows are those of one.
    """
    todo = [np.arange(len(batch))]
    while todo:
        these = todo.pop()
        architecture = _resized(like, iter([figures(column) for column in sizes[these].T]))
        run = replace(run, batch=figures(batch[these]), sequence=figures(sequence[these]))
        try:
            yield Lowered(these, write(architecture, run))
        except Parting as parting:
            todo += [these[~parting.these], these[parting.these]]
