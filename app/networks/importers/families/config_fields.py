"""Reader of untrusted configurations: each field by its name, type and limits, and the head that they choose."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from app.config import SEED_DATA
from app.networks.run import refuse
from app.networks.transformers.architecture import Head
from app.networks.transformers.row_writer import ACTIVATIONS

T = TypeVar("T")
CONFIG = ("workload", "config")
# Largest size of a configuration, in elements, and largest number of layers; larger ones are refused as invalid.
MOST_SIZE = 2**24
MOST_LAYERS = 10_000
MOST_EXPERTS = 2**16
# Characters of a refused value that its error repeats.
_SHOWN = 60
_TABLES: Mapping[str, Any] = json.loads((SEED_DATA / "model_configs.json").read_text("utf-8"))


def table(name: str) -> Any:
    """Return a table of what configurations mean by model type (seed_data/model_configs.json)."""
    return _TABLES[name]["rows"]


def shown(value: object) -> str:
    """Return a value as an error message repeats it, cut to a few characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a very large number"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class Fields:
    """One configuration, or an object `within` it; every invalid field raises BadInput with its name and value.

    names  the configuration's own names of fields, by the usual ones that families read (`n_embd` for hidden_size)
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        model_type: str,
        within: tuple[str, ...] = (),
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.model_type = model_type
        self.within = within
        self.names = names or {}

    def named(self, names: Mapping[str, str]) -> Fields:
        """Return the same fields, of which some have names of the configuration's own."""
        return Fields(self.config, self.model_type, self.within, names)

    def having(self, **usual: Any) -> Fields:
        """Return the same fields, with values for those that the configuration lacks."""
        absent = {name: value for name, value in usual.items() if self.given(name) is None}
        return Fields({**self.config, **absent}, self.model_type, self.within, self.names)

    def given(self, name: str) -> Any:
        """Return the value of a field, or None."""
        return self._first((name,))[1]

    def refuse(self, name: str, why: str) -> NoReturn:
        """Raise BadInput for the field `name`."""
        name, value = self._first((name,))
        refuse((*CONFIG, *self.within, name), why if value is None else f"{why}; found {shown(value)}")

    def inside(self, name: str) -> Fields:
        """Return the fields of the object `name`, without any if it is absent."""
        value = self.config.get(name)
        if value is not None and not isinstance(value, Mapping):
            self.refuse(name, "must be an object")
        return Fields(value or {}, self.model_type, (*self.within, name))

    def _first(self, names: tuple[str, ...]) -> tuple[str, Any]:
        """Return the first of the names with a value, and the value; else the first name and None."""
        own = tuple(self.names.get(name, name) for name in names)
        for name in (*own, *names):
            value = self.config.get(name)
            if value is not None:
                return name, value
        return own[0], None

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
        value = self.given(name)
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

    def ratio(self, name: str, *, default: float) -> float:
        """Return a positive number up to 100."""
        value = self.given(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value <= 100.0:
            self.refuse(name, "must be a positive number up to 100")
        return float(value)

    def present(self, name: str, *, default: bool) -> bool:
        """Return True for a positive number, and False for null: features that a number enables."""
        value = self.given(name)
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

    def activation(self, *names: str, default: str) -> str:
        """Return an activation by its Hugging Face name; `names` are synonyms."""
        return self.word(*names, choices=ACTIVATIONS, default=default)

    def kinds(self, name: str, choices: Mapping[Any, T], layers: int) -> list[T] | None:
        """Return the meaning of each layer's choice (a word or a number); None if the field is absent."""
        value = self.given(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != layers:
            self.refuse(name, f"must be a list of {layers} entries, one per layer")
        for choice in value:
            if isinstance(choice, bool) or not isinstance(choice, str | int) or choice not in choices:
                refuse(
                    (*CONFIG, *self.within, name),
                    f"must hold only {', '.join(map(str, choices))}; found {shown(choice)}",
                )
        return [choices[choice] for choice in value]

    def sizes(self, name: str, layers: int, most: int = MOST_SIZE) -> list[int] | None:
        """Return a number from 0 to `most` for each layer; entries beyond `layers` (MTP) are left; None if absent."""
        value = self.given(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < layers:
            self.refuse(name, f"must be a list of {layers} whole numbers, one per layer")
        for size in value:
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= most:
                refuse((*CONFIG, *self.within, name), f"must hold whole numbers, 0 to {most}; found {shown(size)}")
        return value[:layers]

    def indices(self, name: str, layers: int) -> set[int]:
        """Return layer numbers, from 0; empty if the field is absent."""
        value = self.given(name)
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


def head_kind(fields: Fields, of: str, default: str) -> str:
    """Return the kind of head of the first entry of `architectures`, or `default`; `of` names a table of `heads`."""
    known: Mapping[str, str] = table("heads")[of]
    given = fields.config.get("architectures")
    if given is None:
        return default
    if not isinstance(given, list) or not given or not isinstance(given[0], str):
        fields.refuse("architectures", "must be a list with one class name")
    endings = [ending for ending in known if given[0].endswith(ending)]
    if not endings:
        fields.refuse("architectures", f"must end in one of {', '.join(known)}; absent: {default}")
    return known[max(endings, key=len)]


def causal_head(fields: Fields, vocabulary: int, *, tied: bool, bias: bool = False, softcap: bool = False) -> Head:
    """Return the head of a decoder; by default that of a causal language model."""
    kind = head_kind(fields, "causal", "words")
    if kind == "words":
        return Head(vocabulary=vocabulary, tied=tied, bias=bias, softcap=softcap)
    if kind == "none":
        return Head()
    return Head(labels=labels(fields), labels_bias=kind == "token labels", of="token")


def labels(fields: Fields) -> int:
    """Return the number of labels: `num_labels`, else the entries of `id2label`, else 2, as in Hugging Face."""
    named = fields.config.get("id2label")
    if named is not None and not isinstance(named, Mapping):
        fields.refuse("id2label", "must be an object: label by number")
    return fields.size("num_labels", default=len(named) if named else 2)
