"""Reader of untrusted configurations: each field by its name, type and limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from app.graphs.refusal import refuse

CONFIG = ("workload", "config")
# Largest size of a configuration, in elements, and largest number of layers; larger ones are refused as invalid.
MOST_SIZE = 2**24
MOST_LAYERS = 10_000
MOST_EXPERTS = 2**16


class Fields:
    """One configuration; every invalid field raises BadInput with its name."""

    def __init__(self, config: Mapping[str, Any], model_type: str) -> None:
        self.config = config
        self.model_type = model_type

    def refuse(self, name: str, why: str) -> NoReturn:
        """Raise BadInput for the field `name`."""
        refuse((*CONFIG, name), why)

    def _first(self, names: tuple[str, ...]) -> tuple[str, Any]:
        """Return the first of the names with a value, and the value; else the first name and None."""
        for name in names:
            value = self.config.get(name)
            if value is not None:
                return name, value
        return names[0], None

    def size(self, *names: str, default: int | None = None, least: int = 1, most: int = MOST_SIZE) -> int:
        """Return an integer from `least` to `most`; names are synonyms."""
        name, value = self._first(names)
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
        """Return a number of layers."""
        return self.size(*names, default=default, most=MOST_LAYERS)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean."""
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(name, "must be true or false")
        return value

    def share(self, *names: str, default: float) -> float:
        """Return a number from 0 to 1."""
        name, value = self._first(names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
            self.refuse(name, "must be a number from 0 to 1")
        return float(value)

    def present(self, name: str, *, default: bool) -> bool:
        """Return True for a positive number, and False for null: features that a number enables."""
        value = self.config.get(name)
        if value is None:
            return default and name not in self.config
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
            self.refuse(name, "must be null or a positive number")
        return value > 0

    def word(self, *names: str, choices: Mapping[str, Any], default: str) -> str:
        """Return one of `choices`; names are synonyms."""
        name, value = self._first(names)
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            self.refuse(name, f"must be one of {', '.join(choices)}")
        return value

    def kinds(self, name: str, choices: Mapping[str, bool], layers: int) -> list[bool] | None:
        """Return the value of each layer's choice; None if the field is absent."""
        value = self.config.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != layers:
            self.refuse(name, f"must be a list of {layers} strings, one per layer")
        if not all(isinstance(choice, str) and choice in choices for choice in value):
            self.refuse(name, f"must hold only {', '.join(choices)}")
        return [choices[choice] for choice in value]

    def indices(self, name: str, layers: int) -> set[int]:
        """Return layer numbers, from 0; empty if the field is absent."""
        value = self.config.get(name)
        if value is None:
            return set()
        if not isinstance(value, list) or not all(isinstance(k, int) and not isinstance(k, bool) for k in value):
            self.refuse(name, "must be a list of whole numbers")
        if not all(0 <= k < layers for k in value):
            self.refuse(name, f"must hold layer numbers, 0 to {layers - 1}")
        return set(value)

    def whole(self, field: str, size: int, parts: int, of: str) -> int:
        """Return `size` / `parts`, which must be an integer."""
        if size % parts:
            self.refuse(field, f"{parts} does not divide {of}, which is {size}")
        return size // parts
