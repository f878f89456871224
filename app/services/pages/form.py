"""The workload form of a page: its controls with what was typed, and the GPUs and predictors to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.engine.engine import Engine
from app.predictors import BY_NAME
from app.services.pages.asked import ALL, Asked
from app.services.pages.fields import KINDS


@dataclass(frozen=True, slots=True)
class Choice:
    """A GPU to choose."""

    id: str
    name: str
    memory_bytes: float
    picked: bool


@dataclass(frozen=True, slots=True)
class Controls:
    """What a form shows. `others` are GPUs asked by a name that is no id of the catalogue."""

    asked: Asked
    kinds: Sequence[tuple[str, str]]
    gpus: Sequence[Choice]
    others: Sequence[str]
    predictors: Sequence[str]

    def name_of(self, gpu: str) -> str:
        """What people call it."""
        return next((choice.name for choice in self.gpus if choice.id == gpu), gpu)


def controls(engine: Engine, asked: Asked) -> Controls:
    """The form of a page: the GPUs asked for first, the others by name."""
    specs = engine.catalog.specs
    choices = [Choice(spec.id, spec.name, spec.memory_bytes, spec.id in asked.gpus) for spec in specs]
    choices.sort(key=lambda choice: (not choice.picked, choice.name))
    others = [gpu for gpu in asked.gpus if gpu != ALL and gpu not in {choice.id for choice in choices}]
    return Controls(asked, tuple(KINDS.items()), choices, others, tuple(BY_NAME))
