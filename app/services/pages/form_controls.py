"""The workload form of a page: controls with typed values, and GPUs and predictors to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.engine.engine import Engine
from app.predictors import BY_NAME
from app.services.pages.address import ALL, Address
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
    """Contents of a form. `others` are GPUs given by a name that is no id of the catalogue."""

    address: Address
    kinds: Sequence[tuple[str, str]]
    gpus: Sequence[Choice]
    others: Sequence[str]
    predictors: Sequence[str]

    def name_of(self, gpu: str) -> str:
        """Return the display name of a GPU."""
        return next((choice.name for choice in self.gpus if choice.id == gpu), gpu)


def controls(engine: Engine, address: Address) -> Controls:
    """Return the form of a page, with the chosen GPUs first and the others by name."""
    specs = engine.catalog.specs
    choices = [Choice(spec.id, spec.name, spec.memory_bytes, spec.id in address.gpus) for spec in specs]
    choices.sort(key=lambda choice: (not choice.picked, choice.name))
    others = [gpu for gpu in address.gpus if gpu != ALL and gpu not in {choice.id for choice in choices}]
    return Controls(address, tuple(KINDS.items()), choices, others, tuple(BY_NAME))
