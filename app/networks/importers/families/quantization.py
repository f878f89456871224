"""Formats of a published model: `quantization_config` of its config.json, or the content of hf_quant_config.json.

Methods: `fp8` (DeepSeek, Qwen; by blocks with weight_block_size), `mxfp4` (gpt-oss), AWQ and GPTQ, bitsandbytes, HQQ,
torchao, ModelOpt (NVIDIA), Quark (AMD), w4afp8 (SGLang), GGUF (llama.cpp) and compressed-tensors (vLLM). What is left
in 16 bits is named by lists of modules, layer by layer or by patterns; a kind of part is in 16 bits if at least half of
its layers are named.

Formats without kernels of their own in the tables are read as the nearest: MXFP8 as `fp8_block` (8 bits, a scale per
32 elements for one per 128), NVFP4 and NF4 weights under 16-bit activations as `int4_wo` (4 bits, a scale per group),
and INT4 under FP8 as `w4a8_mxfp4`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from app.config import SEED_DATA
from app.networks.importers.families.config_fields import Fields
from app.networks.run import Formats
from app.networks.transformers.architecture import Architecture, Experts, FeedForward, Recurrence

_INSTEAD = "; send dtype, which is used in its place"
_TABLES: Mapping[str, Any] = {
    name: table["rows"] for name, table in json.loads((SEED_DATA / "quantization.json").read_text("utf-8")).items()
}
_ALGORITHMS: Mapping[str, str] = _TABLES["algorithms"]
_CACHES: Mapping[str, str] = _TABLES["caches"]
_MIXED = "MIXED_PRECISION"
# Formats of weights alone, by their bits.
_WEIGHT_ONLY = {4: "int4_wo", 8: "int8_wo"}
_QUARK = {
    ("fp8", "fp8"): "fp8",
    ("int8", "int8"): "int8",
    ("fp4", "fp4"): "mxfp4",
    ("fp6", "fp6"): "mxfp6",
    ("fp4", "fp8"): "w4a8_mxfp4",
}
# Formats of compressed-tensors by bits and type of weights, and bits of activations; and those of 32 elements a group.
_HALF = 16
_SCHEMES = {
    (4, "int", _HALF): "int4_wo",
    (4, "float", _HALF): "int4_wo",
    (4, "float", 8): "w4a8_mxfp4",
    (4, "float", 4): "nvfp4",
    (8, "int", 8): "int8",
    (8, "int", _HALF): "int8_wo",
    (8, "float", _HALF): "fp8_wo",
}
_FINE_SCHEMES = {(4, "float", _HALF): "w4a16_mxfp4", (4, "float", 4): "mxfp4"}
# Formats of GGUF that are not quantised.
_PLAIN_GGUF = ("f16", "bf16", "f32")
_TORCHAO = {
    "int4weightonly": "int4_wo",
    "int8weightonly": "int8_wo",
    "float8weightonly": "fp8_wo",
    "int8dynamicactivationint8weight": "int8",
    "float8dynamicactivationfloat8weight": "fp8",
}
# Fields that list modules which stay in 16 bits.
_LISTS = ("modules_to_not_convert", "ignore", "exclude_modules", "exclude")
_LAYER = re.compile(r"^.*?layers\.\d+\b")
_LONGEST_PATTERN = 200
# Names of modules in a list, and patterns of them that differ by more than their layer, with their alternatives:
# mixtures of experts list each expert of each layer, 46,000 of the largest.
_MOST_NAMES, _MOST_PATTERNS = 100_000, 2000


def read_formats(config: Mapping[str, Any], architecture: Architecture) -> Formats | None:
    """Return the formats of a configuration, or None if it is not quantised. Raises BadInput for unknown ones."""
    fields = Fields(config, str(config.get("model_type")))
    given, text = _given(fields), fields.config.get("text_config")
    if given is None and isinstance(text, Mapping):
        given = _given(Fields(text, fields.model_type, ("text_config",)))
    if given is None or given.config.get("quant_type") in _PLAIN_GGUF:
        return None
    parts = _Parts(_layers(architecture), _TABLES["modules"] | _TABLES["own_modules"].get(fields.model_type, {}))
    listed = _listed(given, parts)
    if given.config.get("quant_method") == "fp8" and config.get("expert_dtype") == "fp4":  # DeepSeek-V4
        listed.setdefault("experts", "w4a8_mxfp4")
    mixed = given.config.get("quant_algo") == _MIXED and given.config.get("quant_method") != "fp8"
    formats = ({} if mixed else _usual_of_parts(given, parts)) | listed
    return Formats(**formats, kv_cache=_cache(given))


class _Parts(NamedTuple):
    """By kind of part: the layers that have one, and the names of its modules."""

    layers: Counter[str]
    modules: Mapping[str, Sequence[str]]


def _given(fields: Fields) -> Fields | None:
    for name in ("quantization_config", "quantization"):
        value = fields.config.get(name)
        if isinstance(value, str) and name == "quantization":
            return Fields({"quant_method": "gguf", "quant_type": value.lower()}, fields.model_type, (name,))
        if value is not None:
            return fields.inside(name)
    return None


def _layers(architecture: Architecture) -> Counter[str]:
    """Return the layers that have each kind of part."""
    counts: Counter[str] = Counter(head=1)
    for layer, repeats in architecture.stacks[-1].layers:
        if layer.attention is not None:
            counts["recurrence" if isinstance(layer.attention, Recurrence) else "attention"] += repeats
        if layer.beside is not None:
            counts["recurrence"] += repeats
        if isinstance(layer.feed_forward, FeedForward):
            counts["linear"] += repeats
        if isinstance(layer.feed_forward, Experts):
            counts["experts"] += repeats
            counts["shared"] += repeats
    return counts


def _usual_of_parts(given: Fields, parts: _Parts) -> dict[str, str]:
    """Return the format of each kind of part that is quantised as the method says."""
    usual = _usual(given)
    if given.config.get("quant_method") == "mxfp4" and parts.layers["experts"]:  # gpt-oss: experts alone
        return {"experts": usual}
    # Lists of an NVFP4 export name what it left as the method before it made it (DeepSeek-V4).
    names = ("modules_to_not_convert",) if given.config.get("quantized_layers") else _LISTS
    left = _modules(given, names)
    # Methods of 4 and 8 bits leave the head as it is, named or not, but for GGUF.
    if given.config.get("quant_method") == "gguf":
        return dict.fromkeys(parts.modules, usual)
    return {
        kind: usual
        for kind, modules in parts.modules.items()
        if kind != "head" and _named(left, modules) * 2 < max(parts.layers[kind], 1)
    }


def _usual(given: Fields) -> str:
    """Return the format of what is quantised."""
    method = given.config.get("quant_method") or ("modelopt" if given.config.get("quant_algo") else None)
    if not isinstance(method, str) or method not in _METHODS:
        given.refuse("quant_method", f"is missing or not known{_INSTEAD}")
    return _METHODS[method](given)


def _fp8(given: Fields) -> str:
    return "fp8_block" if given.config.get("weight_block_size") is not None else "fp8"


def _weight_only(given: Fields) -> str:
    """Return the format of AWQ and GPTQ."""
    bits = given.size("bits", "w_bit", default=4)
    if bits not in _WEIGHT_ONLY:
        given.refuse("bits", f"must be 4 or 8{_INSTEAD}")
    return _WEIGHT_ONLY[bits]


def _hqq(given: Fields) -> str:
    bits = given.inside("quant_config").inside("weight_quant_params").size("nbits", default=4)
    if bits not in _WEIGHT_ONLY:
        given.refuse("quant_config", f"must have nbits 4 or 8{_INSTEAD}")
    return _WEIGHT_ONLY[bits]


def _gguf(given: Fields) -> str:
    kind = str(given.config.get("quant_type")).lower()
    if kind not in _TABLES["gguf"]:
        known = ", ".join((*_TABLES["gguf"], *_PLAIN_GGUF)).upper()
        given.refuse("quant_type", f"must be one of {known}{_INSTEAD}")
    return kind


def _bitsandbytes(given: Fields) -> str:
    return "int4_wo" if given.flag("load_in_4bit", default=False) else "int8"


def _quark(given: Fields) -> str:
    """Return the format of Quark's `global_quant_config`."""
    weights, inputs = given.inside("weight"), given.inside("input_tensors")
    pair = tuple(str(part.config.get("dtype", "")).removesuffix("_e4m3") for part in (weights, inputs))
    if pair not in _QUARK:
        given.refuse("weight", f"{pair[0] or 'none'} under {pair[1] or '16 bits'} is not known{_INSTEAD}")
    return _QUARK[pair]


def _torchao(given: Fields) -> str:
    """Return the format of torchao's `quant_type`: a name, or an object whose default has the name as `_type`."""
    kind = given.config.get("quant_type")
    if isinstance(kind, Mapping):
        kind = given.inside("quant_type").inside("default").config.get("_type")
    name = re.sub(r"[^a-z0-9]", "", str(kind).lower()).removesuffix("config")
    if name not in _TORCHAO:
        given.refuse("quant_type", f"must be one of {', '.join(_TORCHAO)}{_INSTEAD}")
    return _TORCHAO[name]


def _algorithm(given: Fields, name: object) -> str:
    if not isinstance(name, str) or name not in _ALGORITHMS:
        known = ", ".join(_ALGORITHMS)
        given.refuse("quant_algo", f"must be one of {known}{_INSTEAD}")
    return _ALGORITHMS[name]


def _group(given: Fields) -> str:
    """Return the format of the first of `config_groups`, by the bits of weights and activations."""
    groups = given.inside("config_groups")
    if not groups.config:
        given.refuse("config_groups", f"is missing{_INSTEAD}")
    group = groups.inside(next(iter(groups.config)))
    weights, inputs = group.inside("weights"), group.inside("input_activations")
    scheme = (weights.size("num_bits"), weights.config.get("type"), inputs.size("num_bits", default=_HALF))
    blocks = weights.config.get("strategy") == "block"
    fine = weights.config.get("group_size") == 32
    if scheme[:2] == (8, "float") and scheme[2] < _HALF:
        return "fp8_block" if blocks or fine else "fp8"
    if scheme in _SCHEMES:
        return _FINE_SCHEMES.get(scheme, _SCHEMES[scheme]) if fine else _SCHEMES[scheme]
    group.refuse("weights", f"are of {scheme[0]} bits under activations of {scheme[2]}, which is not known{_INSTEAD}")


_METHODS: Mapping[str, Callable[[Fields], str]] = {
    **dict.fromkeys(("fp8", "fbgemm_fp8"), _fp8),
    **dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin", "auto-round", "intel/auto-round"), _weight_only),
    **dict.fromkeys(
        ("modelopt", "modelopt_fp4", "modelopt_mixed"), lambda given: _algorithm(given, given.config.get("quant_algo"))
    ),
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _group,
    "gguf": _gguf,
    "hqq": _hqq,
    "mxfp4": lambda given: "w4a16_mxfp4",
    "quark": lambda given: _quark(given.inside("global_quant_config")),
    "torchao": _torchao,
    "w4afp8": lambda given: "w4a8_mxfp4",
}


def _listed(given: Fields, parts: _Parts) -> dict[str, str]:
    """Return the formats of `quantized_layers`: of each kind of part, the one that most of its layers are listed with.

    A kind of which fewer than half of the layers are listed has none.
    """
    layers = given.inside("quantized_layers").config
    if len(layers) > _MOST_NAMES:
        given.refuse("quantized_layers", f"has {len(layers)} modules, more than {_MOST_NAMES}")
    tallies: dict[str, Counter[str]] = {kind: Counter() for kind in parts.modules}
    for module, entry in layers.items():
        name = re.sub(r"experts\.\d+", "experts.0", _LAYER.sub("layers.0", module).removeprefix("language_model."))
        for kind, modules in parts.modules.items():
            if name in modules and isinstance(entry, Mapping):
                tallies[kind][str(entry.get("quant_algo"))] += 1
    common = {kind: tally.most_common(1)[0] for kind, tally in tallies.items() if tally}
    usual = {kind: name for kind, (name, times) in common.items() if times * 2 >= max(parts.layers[kind], 1)}
    return {kind: _algorithm(given, name) for kind, name in usual.items()}


def _cache(given: Fields) -> str:
    """Return the format of the KV cache."""
    named = given.config.get("kv_cache_quant_algo")
    if named is not None:
        if not isinstance(named, str) or named not in _CACHES:
            given.refuse("kv_cache_quant_algo", f"must be one of {', '.join(_CACHES)}{_INSTEAD}")
        return _CACHES[named]
    if isinstance(given.config.get("kv_cache_scheme"), str):
        return _cache(Fields({"kv_cache_quant_algo": given.config["kv_cache_scheme"]}, given.model_type, given.within))
    scheme = given.inside("kv_cache_scheme")
    if not scheme.config:
        return ""
    return "fp8" if scheme.size("num_bits", least=4, most=8) == 8 else "nvfp4"


class _Pattern(NamedTuple):
    """A pattern of modules: the names with wildcards that it stands for, and how many layers it names.

    One that names no layer is of all of them: a large number.
    """

    options: list[str]
    layers: int


def _modules(given: Fields, names: Sequence[str]) -> list[_Pattern]:
    """Return the patterns of lists of modules that differ by more than their layer; absent lists are empty."""
    layers: Counter[str] = Counter()
    for name in names:
        value = given.config.get(name)
        if value is None:
            continue
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            given.refuse(name, "must be a list of module names or patterns")
        if len(value) > _MOST_NAMES:
            given.refuse(name, f"has {len(value)} patterns, more than {_MOST_NAMES}")
        for pattern in value:
            if len(pattern) <= _LONGEST_PATTERN:
                of_layer, times = _LAYER.subn("layers.0", pattern)
                layers[of_layer] += 1 if times else 2**30
    patterns = [_Pattern(_alternatives(pattern), times) for pattern, times in layers.items()]
    different = sum(len(pattern.options) for pattern in patterns)
    if different > _MOST_PATTERNS:
        listed = next(name for name in names if given.config.get(name))
        given.refuse(listed, f"has {different} different patterns and alternatives, more than {_MOST_PATTERNS}")
    return patterns


def _named(patterns: Iterable[_Pattern], modules: Sequence[str]) -> int:
    """Return how many layers of a kind of part the patterns name."""
    return sum(
        pattern.layers for pattern in patterns if any(_matches(name, o) for name in modules for o in pattern.options)
    )


def _alternatives(pattern: str) -> list[str]:
    """Return the names with wildcards that a pattern stands for.

    Patterns of compressed-tensors are read without running them: words between wildcards, with one group of
    alternatives, "(a|b)".
    """
    if not pattern.startswith("re:"):
        return [re.sub(r"^(model\.|language_model\.|backbone\.)+", "", pattern)]
    pattern = pattern.removeprefix("re:").replace(".*", "*").replace("\\", "").strip("^$")
    group = re.search(r"\(([^()]*)\)", pattern)
    if group is None:
        return [pattern]
    return [pattern[: group.start()] + option + pattern[group.end() :] for option in group[1].split("|")]


def _matches(name: str, pattern: str) -> bool:
    """Return whether a pattern names a module, as its whole path or as consecutive parts of it; "*" is any text."""
    path, first = f".{name}.", 0
    for part in f".{pattern}.".split("*"):
        place = path.find(part, first)
        if place < 0:
            return False
        first = place + len(part)
    return True
