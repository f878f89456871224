"""Built-in transformer configurations by name (seed_data/models): as Hugging Face has it, with or without organisation.

The end of a name may say a format (-AWQ, -NVFP4), which is then that of the weights, or a variant of equal sizes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from app.config import SEED_DATA

# Ends of names of models that differ by their training alone.
_VARIANTS = ("-instruct", "-it", "-chat", "-base", "-hf")
# Longer than any known name; bounds the cost of hostile names.
_LONGEST = 200


def names() -> tuple[str, ...]:
    """Return all names, without aliases, in order."""
    return tuple(path.stem for path in _files())


def find_config(name: str) -> Mapping[str, Any] | None:
    """Return the configuration of a name, ignoring case, or None."""
    key = name.lower()
    return _configs().get(key) or (_derived(key) if len(key) <= _LONGEST else None)


def canonical_name(name: str) -> str | None:
    """Return the name of the network that a name means, with the end that says its format, or None."""
    config, key = find_config(name), name.lower()
    if config is None:
        return None
    plain = next((known for known in names() if _configs()[known] is config), None)
    if plain is not None:
        return plain
    organisation, _, bare = key.rpartition("/")
    suffix, bare = next(_formats(bare))
    return f"{canonical_name(bare)}{_row_of(organisation, suffix)}"


@lru_cache(1024)
def _derived(key: str) -> Mapping[str, Any] | None:
    """Return the configuration of a name that is no alias: without organisation, format or variant."""
    organisation, _, bare = key.rpartition("/")
    if (known := _configs().get(bare)) is not None:
        return known
    for suffix, plain in _formats(bare):
        if (known := find_config(plain)) is not None:
            return {**known, "quantization_config": _quantization("suffixes")[_row_of(organisation, suffix)]}
    plain = next((bare.removesuffix(variant) for variant in _VARIANTS if bare.endswith(variant)), bare)
    return find_config(plain) if plain != bare else None


def _row_of(organisation: str, suffix: str) -> str:
    """Return the format that an organisation means by the end of a name."""
    return "-fp8-tensor" if suffix == "-fp8" and organisation in _quantization("by_tensor") else suffix


def _formats(bare: str) -> Iterator[tuple[str, str]]:
    """Yield format ends of a name, the longest first, each with what stands before it."""
    ends = sorted(_quantization("suffixes"), key=len, reverse=True)
    return ((suffix, bare.removesuffix(suffix)) for suffix in ends if bare.endswith(suffix))


@cache
def _quantization(part: str) -> Any:
    return json.loads((SEED_DATA / "quantization.json").read_text("utf-8"))[part]["rows"]


def _files() -> list[Path]:
    return sorted((SEED_DATA / "models").glob("*.json"))


@cache
def _configs() -> Mapping[str, Mapping[str, Any]]:
    """Return configurations by name and alias, with and without organisation, in lower case."""
    configs: dict[str, Mapping[str, Any]] = {}
    for path in _files():
        model = json.loads(path.read_text("utf-8"))
        keys = [name.lower() for name in (path.stem, *model["aliases"])]
        configs |= dict.fromkeys((*keys, *(key.rpartition("/")[2] for key in keys)), model["config"])
    return configs
