"""One control of the dashboard's workload form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from app.services.models.network_kinds import NetworkKind

Control = Literal["number", "text", "choice", "check", "json", "pairs"]


@dataclass(frozen=True, slots=True)
class Field:
    """One control: its name in the query string, its label, and its place in the request's workload.

    Controls: `number`, `text`, `choice` of `choices`, `check` (true or absent), `json`, and `pairs`, lines of a name
    and a number. `more` fields are collapsed at first. `labels`: choices in plain words. A field without a path is not
    sent: it decides the path of another one. `networks`: the built-in networks by kind, where they are the choices.
    """

    name: str
    label: str
    control: Control
    path: tuple[str | int, ...]
    help: str = ""
    choices: tuple[str, ...] = ()
    required: bool = False
    more: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    networks: Mapping[NetworkKind, tuple[str, ...]] = field(default_factory=dict)


def number(name: str, label: str, *path: str | int, **more: Any) -> Field:
    """Return a field of a number, at `path` of the workload or at its name."""
    return Field(name, label, "number", path or (name,), **more)


def choice(name: str, label: str, choices: tuple[str, ...], *path: str | int, **more: Any) -> Field:
    """Return a field of some choices, at `path` of the workload or at its name."""
    return Field(name, label, "choice", path or (name,), choices=choices, **more)
