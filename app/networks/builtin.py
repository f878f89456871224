"""Built-in transformer configurations by name (seed_data/models): as Hugging Face has it, with or without organisation.

The end of a name may say a format (-AWQ, -NVFP4), which is then that of the weights, or a variant of equal sizes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from app.config import SEED_DATA

# Ends of names of models that differ by their training alone.
_VARIANTS = ("-instruct", "-it", "-chat", "-base", "-hf")
# A file of GGUF by the format of its weights: MODEL-GGUF:Q4_K_M, MODEL-Q4_K_M-GGUF, MODEL-Q4_K_M.gguf.
_GGUF = re.compile(r"(?P<model>.+?)(?:-gguf)?[-.:](?P<kind>i?q\d\w*?)(?:[-.]gguf)?$")
# Longer than any known name; bounds the cost of hostile names.
_LONGEST = 200


def names() -> tuple[str, ...]:
    """Return all names, without aliases, in order."""
    return tuple(_files())


def find_config(name: str) -> Mapping[str, Any] | None:
    """Return the configuration of a name, ignoring case, or None."""
    meant = _meant(name)
    return None if meant is None else _config(*meant)


def as_published_in_fp8(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration as its maker publishes the model in FP8, where that is known to be by blocks."""
    if config.get("model_type") not in _quantization("fp8_by_blocks"):
        return config
    return {**config, "quantization_config": _quantization("suffixes")["-fp8"]}


def canonical_name(name: str) -> str | None:
    """Return the name of the network that a name means, with the end that says its format, or None."""
    meant = _meant(name)
    return None if meant is None else "".join(meant)


def _meant(name: str) -> tuple[str, str] | None:
    """Return the network that a name means, and the end of the name that says its format, if one does."""
    key = name.lower()
    network = _networks().get(key)
    return (network, "") if network is not None else _derived(key) if len(key) <= _LONGEST else None


@lru_cache(1024)
def _derived(key: str) -> tuple[str, str] | None:
    """Return what a name means that is no alias: without organisation, format or variant."""
    organisation, _, bare = key.rpartition("/")
    if (network := _networks().get(bare)) is not None:
        return network, ""
    if (file := _GGUF.match(bare)) is not None and file["kind"] in _quantization("gguf"):
        meant = _meant(file["model"])
        return None if meant is None or meant[1] else (meant[0], f"-{file['kind']}")
    for suffix in sorted(_quantization("suffixes"), key=len, reverse=True):
        meant = _meant(bare.removesuffix(suffix)) if bare.endswith(suffix) else None
        if meant is not None and not meant[1]:
            return meant[0], _row_of(organisation, suffix)
    plain = next((bare.removesuffix(variant) for variant in _VARIANTS if bare.endswith(variant)), bare)
    return None if plain == bare else _meant(f"{organisation}/{plain}")


def _row_of(organisation: str, suffix: str) -> str:
    """Return the format that an organisation means by the end of a name."""
    return "-fp8-tensor" if suffix == "-fp8" and organisation in _quantization("by_tensor") else suffix


@cache
def _config(network: str, suffix: str) -> Mapping[str, Any]:
    """Return the configuration of a network, in the format of an end of its name."""
    config: Mapping[str, Any] = _files()[network]["config"]
    own = {"quant_method": "gguf", "quant_type": suffix[1:]} if suffix[1:] in _quantization("gguf") else None
    return config if not suffix else {**config, "quantization_config": own or _quantization("suffixes")[suffix]}


@cache
def _quantization(part: str) -> Any:
    return json.loads((SEED_DATA / "quantization.json").read_text("utf-8"))[part]["rows"]


@cache
def _files() -> Mapping[str, Mapping[str, Any]]:
    """Return the content of every file by its name, in order."""
    paths = sorted((SEED_DATA / "models").glob("*.json"))
    return {path.stem: json.loads(path.read_text("utf-8")) for path in paths}


@cache
def _networks() -> Mapping[str, str]:
    """Return networks by name and alias, with and without organisation, in lower case."""
    networks: dict[str, str] = {}
    for network, model in _files().items():
        keys = [name.lower() for name in (network, *model["aliases"])]
        networks |= dict.fromkeys((*keys, *(key.rpartition("/")[2] for key in keys)), network)
    return networks
