"""Read the stacks of `seed_data/stacks`: one JSON file a stack, in it a row per fact with its versions and source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeAlias

import msgspec

from app.config import SEED_DATA
from app.stacks.facts import to_value

Version: TypeAlias = tuple[int, int, int]
Kind: TypeAlias = Literal["serving", "training", "framework", "launcher"]

FOLDER = SEED_DATA / "stacks"
_VERSION = re.compile(r"[a-z _-]*(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that a stack does, in the versions from `since` on and before `until`.

    fact         name: one of FACT_TYPES (app.stacks.facts)
    modes        modes of a run that it is about; empty: all
    unversioned  whether a name without a version has it; absent: if it has no `until`
    assumed      it is not in the source, but taken over from another stack
    set_on       data sets in view when a measured value was chosen, by the names of the docs
    """

    fact: str
    value: Any
    source: str
    since: str | None = None
    until: str | None = None
    modes: tuple[str, ...] = ()
    unversioned: bool | None = None
    assumed: bool = False
    set_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Convert the value to the fact's type. Raises ValueError for an unknown fact, or another type."""
        msgspec.structs.force_setattr(self, "value", to_value(self.fact, self.value))

    def holds(self, version: Version | None, mode: str) -> bool:
        """Return whether it holds of a version, None for a name without one, in a mode."""
        if self.modes and mode not in self.modes:
            return False
        if version is None:
            return self.until is None if self.unversioned is None else self.unversioned
        return (self.since is None or to_version(self.since) <= version) and (
            self.until is None or version < to_version(self.until)
        )


class LibraryRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A library of kernels, and where the stack runs it; an empty field means everywhere (app.stacks.libraries)."""

    library: str
    generations: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


class Libraries(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Libraries that a stack chooses for a family of operators; the first rule decides."""

    source: str
    rules: tuple[LibraryRule, ...]


class Stack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A software stack.

    names        beginnings of the names of its releases, lower case; the longest of all stacks decides
    eager_names  the same of releases whose host launches each operator
    kind         serving: replays CUDA graphs; training: lowers layers itself, in training alone; framework: its host
                 launches each operator; launcher: replays CUDA graphs of no stack in particular
    engine_names  what files of benchmarks and endpoints call it
    version_path  path at which its server reports its version
    default      the framework, or the serving stack, that stands for software that is not named or not known
    code         its code in trained artefacts, which never changes; None: its kernels are not trained apart
    kernels_of   the stack whose kernels and host stand for its own where `code` is None
    measured     versions of which operators or deployments were measured
    measured_in  the measurements
    libraries    by family of operators
    """

    name: str
    title: str
    kind: Kind
    names: tuple[str, ...]
    facts: tuple[Fact, ...]
    eager_names: tuple[str, ...] = ()
    engine_names: tuple[str, ...] = ()
    version_path: str | None = None
    default: bool = False
    code: int | None = None
    kernels_of: str | None = None
    measured: tuple[str, ...] = ()
    measured_in: str = ""
    libraries: Mapping[str, Libraries] = {}

    def values(self, version: Version | None, mode: str) -> dict[str, Any]:
        """Return the values of the facts that hold, by name; the first row of a name decides."""
        return {fact.fact: fact.value for fact in reversed(self.facts) if fact.holds(version, mode)}


def version_in(text: str) -> Version | None:
    """Return the version that a text begins with, after letters; None without one."""
    match = _VERSION.match(text)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3] or 0))


def to_version(text: str) -> Version:
    """Return the version that a text begins with. Raises ValueError without one."""
    version = version_in(text)
    if version is None:
        raise ValueError(f"{text!r} has no version")
    return version


@cache
def stacks() -> dict[str, Stack]:
    """Return all stacks by name: those with a code first, in its order, then the others by name."""
    read = [msgspec.json.decode(path.read_bytes(), type=Stack) for path in sorted(FOLDER.glob("*.json"))]
    read.sort(key=lambda stack: (stack.code is None, stack.code or 0, stack.name))
    return {stack.name: stack for stack in read}


def facts_set_on(data: str) -> list[str]:
    """Return the facts whose values were chosen with a data set in view, as `stack.fact`."""
    return [f"{stack.name}.{fact.fact}" for stack in stacks().values() for fact in stack.facts if data in fact.set_on]


@cache
def _beginnings() -> list[tuple[str, Stack, bool]]:
    """Return the beginnings of names, longest first, with their stack and whether its host launches each operator."""
    listed = [
        (name, stack, eager or stack.kind in ("framework", "training"))
        for stack in stacks().values()
        for eager, names in ((False, stack.names), (True, stack.eager_names))
        for name in names
    ]
    return sorted(listed, key=lambda item: -len(item[0]))


def match_name(software: str) -> tuple[str, Stack, bool] | None:
    """Return the beginning of a software's name that is known, its stack, and whether it is eager; None: unknown."""
    name = software.lower()
    return next((item for item in _beginnings() if name.startswith(item[0])), None)


@cache
def serving_stacks() -> tuple[Stack, ...]:
    """Return the serving stacks."""
    return tuple(stack for stack in stacks().values() if stack.kind == "serving")


@cache
def trained_stacks() -> tuple[str, ...]:
    """Return the stacks whose kernels are trained apart, by their code in the artefacts."""
    trained = [stack for stack in stacks().values() if stack.code is not None]
    assert [stack.code for stack in trained] == list(range(len(trained)))
    return tuple(stack.name for stack in trained)


def kernel_code(stack: Stack) -> int | None:
    """Return the code of the stack whose kernels are this one's, or stand for them; None: of none."""
    return stack.code if stack.kernels_of is None else stacks()[stack.kernels_of].code


def code_of(name: str) -> float:
    """Return the code of a trained stack by its name, as a column of operators has it."""
    return float(trained_stacks().index(name))


@cache
def default_stack(kind: Kind) -> Stack:
    """Return the stack of a kind that stands for software that is not named or not known."""
    return next(stack for stack in stacks().values() if stack.default and stack.kind == kind)


def engine_of(name: str | None) -> str | None:
    """Return the stack that a benchmark's file or an endpoint calls by this name, None for any other."""
    return next((stack.name for stack in stacks().values() if (name or "").lower() in stack.engine_names), None)


def engine_names() -> list[str]:
    """Return what files of benchmarks and endpoints call serving stacks."""
    return [name for stack in stacks().values() for name in stack.engine_names]


def engine_in(text: str) -> str | None:
    """Return the serving stack whose name a text holds, as the name of a container image does; None: of none."""
    held = text.lower()
    return next((stack.name for stack in serving_stacks() if any(name in held for name in stack.names)), None)


def clear() -> None:
    """Forget what was read, after files changed."""
    for cached in (stacks, _beginnings, serving_stacks, trained_stacks, default_stack):
        cached.cache_clear()
