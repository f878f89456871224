"""Importer of Hugging Face's `config.json`: `model_type` selects the family that reads it.

It is read into an Architecture (app.networks.transformers.architecture), which app.networks.transformers.lowering
lowers. A new model type is a row of seed_data/model_types.json, and a function that seed_data/model_configs.json names
where its layers are of other parts.
The head follows the first entry of `architectures`; by default decoders have a language-model head, encoders that of
their family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NoReturn

from app.networks.importers.families import decoder_families, encoder_decoders, encoders, hybrids, sparse
from app.networks.importers.families.config_fields import CONFIG, MOST_LAYERS, Fields, shown, table
from app.networks.importers.families.decoders import TYPES, decoder
from app.networks.importers.families.multimodal import WRAPPERS, multimodal
from app.networks.importers.families.quantization import read_formats
from app.networks.run import CLASS_NAME, Formats, Run, is_diffusion, refuse
from app.networks.transformers.architecture import Architecture, Recurrence
from app.networks.transformers.lowering import check, write
from app.tables.workload import Workload

_READERS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": part
    for module in (decoder_families, encoder_decoders, encoders, hybrids, sparse)
    for name, part in vars(module).items()
}
_FAMILIES: Mapping[str, Callable[[Fields], Architecture]] = dict.fromkeys(TYPES, decoder) | {
    model_type: _READERS[reader] for reader, model_types in table("readers").items() for model_type in model_types
}
KNOWN_MODEL_TYPES = tuple(sorted((*_FAMILIES, *WRAPPERS)))
# Fields with the number of layers of multi-token prediction: as Megatron-LM trains them, and as they were published.
_MTP_LAYERS = ("mtp_num_layers", "num_nextn_predict_layers", "mtp_num_hidden_layers")
# Named where nothing resembles an unknown model type.
_USUAL = ("llama", "qwen3", "mistral", "mixtral", "deepseek_v3", "gemma3", "gpt2", "bert", "t5", "vit")


def lower(config: Mapping[str, Any], run: Run) -> Workload:
    """Return one device's rows of the network of `config`; raises BadInput with the name of an invalid field."""
    architecture = read(config)
    check(architecture, run)
    return write(architecture, run)


def formats_of(config: Mapping[str, Any]) -> Formats | None:
    """Return the formats of `quantization_config`; None without one. Raises BadInput for unknown ones."""
    return read_formats(config, read(config))


def read(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture of a configuration; raises BadInput with the name of an invalid field."""
    if not isinstance(config, Mapping):
        refuse(CONFIG, "must be an object: a Hugging Face config.json")
    if is_diffusion(config):
        refuse((*CONFIG, CLASS_NAME), "is a diffusion transformer, which generates no tokens")
    given = config.get("model_type")
    if isinstance(given, str) and given in WRAPPERS:
        return multimodal(Fields(config, given), _FAMILIES)
    family = _FAMILIES.get(given) if isinstance(given, str) else None
    if family is None:
        _refuse_type(config, given)
    fields = Fields(config, str(given))
    return _with_mtp(fields, family(fields))


def _with_mtp(fields: Fields, architecture: Architecture) -> Architecture:
    """Return the architecture with its layers of multi-token prediction: its last attention and feed-forward part."""
    depths = fields.size(*_MTP_LAYERS, default=0, least=0, most=MOST_LAYERS)
    stack = architecture.stacks[-1]
    if not depths or not architecture.head.vocabulary or stack.streams or stack.altup:
        return architecture
    last = {
        part: layer
        for layer, _ in stack.layers
        for part, spec in (("mixing", layer.attention), ("feeding", layer.feed_forward))
        if spec is not None and not isinstance(spec, Recurrence)
    }
    return replace(architecture, mtp=tuple((layer, depths) for layer in dict.fromkeys(last.values())))


def _refuse_type(config: Mapping[str, Any], given: object) -> NoReturn:
    """Raise BadInput for a model type that is not known, with those that resemble it and what to send instead."""
    problem = "is missing" if given is None else f"{shown(given)} is not known"
    similar = get_close_matches(given.lower(), KNOWN_MODEL_TYPES, n=6) if isinstance(given, str) else []
    known = f"similar: {', '.join(similar)}" if similar else f"usual: {', '.join(_USUAL)}"
    instead = "Send its text_config alone, or" if "text_config" in config else "Send"
    refuse(
        (*CONFIG, "model_type"),
        f"{problem}; {known} ({len(KNOWN_MODEL_TYPES)} are read: docs/reference/models.md). {instead} a known model "
        "type of the same layers, or any other network as a graph or an ONNX file (POST /graphs, kind graph)",
    )
