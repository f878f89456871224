"""Models of text and images or sound: the text part of the configuration is lowered, encoders are counted.

Weights of encoders and of projectors to the text's width stay in memory; they do not run, since the text alone does
(prompts of text). seed_data/multimodal.json has the parts of each model type, and a formula of each part's weights.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec

from app.config import SEED_DATA
from app.formulas import evaluated
from app.networks.importers.families.config_fields import Fields
from app.networks.transformers.architecture import Architecture

Family = Callable[[Fields], Architecture]


class Wrapper(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a multi-modal model type holds.

    text    model type of `text_config` where that does not name it
    vision  formula of the encoder of `vision_config`, or formulas by that one's model type, the first by default
    sound   formula of the encoder of `audio_config`
    projector  formula of what stands between the encoders and the text part, if not counted with them
    place   the object that holds the text part's fields
    within  the object that holds all of these, if not the configuration itself
    built_in  whether a configuration without a vision_config has the encoder all the same
    defaults  sizes of the text part that its publisher left out, by its model type
    """

    text: str
    vision: str | dict[str, str] = ""
    sound: str = ""
    projector: str = ""
    place: str = "text_config"
    within: str = ""
    built_in: bool = False
    defaults: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


class Formula(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weights of an encoder or a projector: the `sum` of terms in its `sizes`, and in `text`, the text's width.

    A size is [field or synonyms, default, kind, choices]: without a default the field is required; a text is a term in
    earlier sizes. `_size` has the kinds. Functions of terms are those of _FUNCTIONS.
    """

    of: str
    sizes: dict[str, tuple[Any, ...]]
    sum: list[str]


def _wrappers(given: Mapping[str, Any]) -> Mapping[str, Wrapper]:
    rows = {name: {**given[row["like"]], **row} if "like" in row else row for name, row in given.items()}
    own = {name: {key: value for key, value in row.items() if key != "like"} for name, row in rows.items()}
    return msgspec.convert(own, dict[str, Wrapper])


_TABLES: Mapping[str, Any] = json.loads((SEED_DATA / "multimodal.json").read_text("utf-8"))
WRAPPERS = _wrappers(_TABLES["wrappers"])
_FORMULAS = msgspec.convert(_TABLES["weights"], dict[str, Formula])
# Fields of the whole model, which its text part takes where it has none of its own.
_WHOLE = ("architectures", "tie_word_embeddings", "num_labels", "id2label", "quantization_config")
_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {
    # A linear layer with bias; an encoder's layer: four linear layers of attention, two after it, two norms.
    "linear": lambda inputs, outputs: inputs * outputs + outputs,
    "layer": lambda width, inner: 4 * width * width + 2 * width * inner + 5 * width + inner + 4 * width,
}


def text_fields(fields: Fields) -> Fields:
    """Return the fields of the text part; the configuration itself where it has no text_config."""
    wrapper = WRAPPERS[fields.model_type]
    given = fields.config.get(wrapper.place)
    if given is None:
        return Fields(fields.config, wrapper.text, fields.within)
    if not isinstance(given, Mapping):
        fields.refuse(wrapper.place, "must be an object")
    outer = {name: fields.config[name] for name in _WHOLE if fields.config.get(name) is not None}
    own: dict[str, Any] = {name: value for name, value in given.items() if value is not None or name not in outer}
    if "architectures" in outer:
        own.pop("architectures", None)
    named = given.get("model_type")
    kind = named if isinstance(named, str) and named else wrapper.text
    text = Fields(outer | own, kind, (*fields.within, wrapper.place))
    return text.having(**wrapper.defaults.get(kind, {}))


def multimodal(fields: Fields, families: Mapping[str, Family]) -> Architecture:
    """Return the architecture of the text part, with the weights of its encoders."""
    wrapper = WRAPPERS[fields.model_type]
    if wrapper.within and wrapper.within in fields.config:
        fields = fields.inside(wrapper.within)
    text = text_fields(fields)
    family = families.get(text.model_type)
    if family is None or text.model_type in WRAPPERS:
        text.refuse("model_type", f"is not known; usual here: {wrapper.text}")
    architecture = family(text)
    vision, sound, weights = fields.inside("vision_config"), fields.inside("audio_config"), architecture.towers
    if vision.config or wrapper.built_in:
        encoder = wrapper.vision
        if isinstance(encoder, dict):
            encoder = encoder[vision.word("model_type", choices=encoder, default=next(iter(encoder)))]
        weights += weights_of(encoder, vision)
    if sound.config:
        weights += weights_of(wrapper.sound, sound)
    if vision.config or sound.config or wrapper.built_in:
        weights += weights_of(wrapper.projector, fields, architecture.stacks[-1].width)
    return replace(architecture, towers=weights)


def weights_of(name: str, fields: Fields, text: int = 0) -> int:
    """Return the weights by a formula of the table, of the text's width for projectors; 0 without a name."""
    if not name:
        return 0
    formula, values = _FORMULAS[name], {"text": text}
    for size, spec in formula.sizes.items():
        values[size] = _size(fields, spec, values)
    return sum(_evaluated(term, values) for term in formula.sum)


def _size(fields: Fields, spec: tuple[Any, ...], values: Mapping[str, int]) -> int:
    """Return a size of a formula.

    layers   a number of layers;  none     a number that may be 0
    square   a side, given as one number or as two
    indices  how many layers a list names, of as many as its default says
    length   how many entries a list has, or else the number in the second field
    flag     1 for true (of any size with a default of true or false);  word  1 for the first of its choices
    """
    names, usual, kind = (*spec, None, None)[:3]
    names = (names,) if isinstance(names, str) else names
    if "." in names[0]:
        place = names[0].partition(".")[0]
        fields, names = fields.inside(place), tuple(name.partition(".")[2] for name in names)
    if isinstance(usual, bool):
        kind = "flag"
    if isinstance(usual, str) and kind != "word":
        usual = _evaluated(usual, values)
    given = fields.given(names[0])
    if kind == "square" and isinstance(given, list) and given:
        fields = Fields({names[0]: given[0]}, fields.model_type, fields.within)
    match kind:
        case "flag":
            value = int(fields.flag(names[0], default=bool(usual)))
        case "word":
            value = int(fields.word(*names, choices=dict.fromkeys(spec[3]), default=usual) == spec[3][0])
        case "indices":
            value = len(fields.indices(names[0], usual))
        case "layers":
            value = fields.layers(*names, default=usual)
        case "length":
            value = len(given) if isinstance(given, list) else fields.size(names[1], default=usual)
        case _:
            value = fields.size(*names, default=usual, least=0 if kind == "none" else 1)
    return value


def _evaluated(term: str, values: Mapping[str, int]) -> int:
    """Return the value of a term in sizes."""
    return int(evaluated(term, lambda node: values[node.id] if isinstance(node, ast.Name) else None, _FUNCTIONS))
