"""Reading a configuration that anyone may have written: each field by its name, type and stated limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from app.graphs.refusal import refuse

CONFIG = ("workload", "config")
# Largest size of a configuration, in elements, and most layers; beyond, the file is wrong or hostile.
MOST_SIZE = 2**24
MOST_LAYERS = 10_000
MOST_EXPERTS = 2**16


class Fields:
    """One configuration; every refusal is a BadInput that names the field."""

    def __init__(self, config: Mapping[str, Any], model_type: str) -> None:
        self.config = config
        self.model_type = model_type

    def refuse(self, name: str, why: str) -> NoReturn:
        """BadInput about the field `name`."""
        refuse((*CONFIG, name), why)

    def _found(self, names: tuple[str, ...]) -> tuple[str, Any]:
        """The first of the names that holds anything."""
        for name in names:
            value = self.config.get(name)
            if value is not None:
                return name, value
        return names[0], None

    def size(self, *names: str, default: int | None = None, least: int = 1, most: int = MOST_SIZE) -> int:
        """A whole number from `least` to `most`; names are synonyms."""
        name, value = self._found(names)
        if value is None:
            if default is None:
                self.refuse(name, f"is missing: {self.model_type} needs a whole number, {least} to {most}")
            return default
        whole = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value) and value == int(value))
        if isinstance(value, bool) or not whole:
            self.refuse(name, f"must be a whole number, {least} to {most}")
        if not least <= value <= most:
            self.refuse(name, f"must be {least} to {most}")
        return int(value)

    def layers(self, *names: str, default: int | None = None) -> int:
        """How many layers."""
        return self.size(*names, default=default, most=MOST_LAYERS)

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(name, "must be true or false")
        return value

    def share(self, *names: str, default: float) -> float:
        """A number from 0 to 1: a probability, or a part of a whole."""
        name, value = self._found(names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
            self.refuse(name, "must be a number from 0 to 1")
        return float(value)

    def present(self, name: str, *, default: bool) -> bool:
        """Whether a number above zero stands there: of features that a figure switches on, and null off."""
        value = self.config.get(name)
        if value is None:
            return default and name not in self.config
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
            self.refuse(name, "must be null or a positive number")
        return value > 0

    def word(self, *names: str, choices: Mapping[str, Any], default: str) -> str:
        """One of some words."""
        name, value = self._found(names)
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            self.refuse(name, f"must be one of {', '.join(choices)}")
        return value

    def kinds(self, name: str, choices: Mapping[str, bool], layers: int) -> list[bool] | None:
        """One of some words per layer, as what they stand for; None where the field is absent."""
        value = self.config.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != layers:
            self.refuse(name, f"must be a list of {layers} words, one per layer")
        if not all(isinstance(word, str) and word in choices for word in value):
            self.refuse(name, f"must hold only {', '.join(choices)}")
        return [choices[word] for word in value]

    def indices(self, name: str, layers: int) -> set[int]:
        """Some of the layers by number, from 0; none where the field is absent."""
        value = self.config.get(name)
        if value is None:
            return set()
        if not isinstance(value, list) or not all(isinstance(k, int) and not isinstance(k, bool) for k in value):
            self.refuse(name, "must be a list of whole numbers")
        if not all(0 <= k < layers for k in value):
            self.refuse(name, f"must hold numbers of layers, 0 to {layers - 1}")
        return set(value)

    def whole(self, field: str, size: int, parts: int, of: str) -> int:
        """`size` over `parts`, which must divide it."""
        if size % parts:
            self.refuse(field, f"{parts} does not divide {of}, which is {size}")
        return size // parts
