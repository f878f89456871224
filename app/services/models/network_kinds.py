"""Kinds of the built-in networks: what they take, and the modes that they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from app.networks import builtin
from app.networks.convnets import CONVNETS, is_convnet
from app.networks.convnets import MODES as CONVNET_MODES
from app.networks.importers import hf
from app.networks.run import MODES, is_diffusion


@dataclass(frozen=True, slots=True)
class NetworkKind:
    """A kind of network: its title, its modes, and whether its inputs are images, not tokens."""

    title: str
    modes: tuple[str, ...]
    images: bool


_GENERATORS = NetworkKind("Language models", MODES, images=False)
_ENCODERS = NetworkKind("Encoders of text", ("inference", "training"), images=False)
_VISION = NetworkKind("Vision transformers", ("inference", "training"), images=True)
_DENOISERS = NetworkKind("Diffusion transformers", ("inference", "training"), images=True)
_CONVNETS = NetworkKind("ConvNets", CONVNET_MODES, images=True)


def network_kind(name: str) -> NetworkKind | None:
    """Return the kind of a built-in network, an alias of one or a block of one; None for another name."""
    if is_convnet(name):
        return _CONVNETS
    known = builtin.canonical_name(name)
    return None if known is None else _transformer_kind(known)


@cache
def networks_by_kind() -> Mapping[NetworkKind, tuple[str, ...]]:
    """Return the names of all built-in networks, by kind."""
    names: dict[NetworkKind, tuple[str, ...]] = dict.fromkeys((_GENERATORS, _ENCODERS, _VISION, _DENOISERS), ())
    for name in builtin.names():
        names[_transformer_kind(name)] += (name,)
    return {**names, _CONVNETS: tuple(sorted(CONVNETS))}


@cache
def _transformer_kind(name: str) -> NetworkKind:
    config = builtin.find_config(name)
    assert config is not None
    if is_diffusion(config):
        return _DENOISERS
    if "patch_size" in config:
        return _VISION
    return _GENERATORS if hf.read(config).generates else _ENCODERS
