"""Architectures by name or compute capability."""

from __future__ import annotations

import re

from app.tables.architecture import Architecture
from app.tables.architectures_nvidia import NVIDIA
from app.tables.architectures_other import AMD, CPUS, INTEL, UNKNOWN, UNKNOWN_CPU
from app.tables.names import normalise

__all__ = [
    "ARCHITECTURES",
    "GENERATIONS",
    "GENERATION_OF",
    "UNKNOWN",
    "UNKNOWN_CPU",
    "Architecture",
    "by_capability",
    "by_name",
    "rates_of",
]

ARCHITECTURES = (*NVIDIA, *AMD, *INTEL, *CPUS)
# GPUs that libraries choose their kernels by, and of which architecture keys they are (GpuSpec.architecture_key).
GENERATIONS = ("", "ampere", "ada", "hopper", "blackwell", "blackwell-workstation")
GENERATION_OF = {
    "ampere": "ampere",
    "ampere/hbm": "ampere",
    "ada lovelace": "ada",
    "hopper": "hopper",
    "hopper/hbm": "hopper",
    "blackwell/hbm": "blackwell",
    "blackwell": "blackwell-workstation",
}
_BY_CAPABILITY = {known.compute_capability: known for known in NVIDIA}
_GEFORCE = re.compile(r"geforce|\brtx\s*[2-5]0[5-9]0", re.IGNORECASE)
_WITHOUT_TENSOR_CORES = re.compile(r"\b(gtx|mx)\s*\d|\bt(4|5|6|10|12)00\b", re.IGNORECASE)


def by_capability(capability: str) -> Architecture | None:
    """Return the architecture of an NVIDIA compute capability such as "8.9", or None."""
    return _BY_CAPABILITY.get(capability)


def _key(name: str) -> str:
    return normalise(name).removesuffix(".0")


_KEYED = tuple((known, _key(known.name)) for known in ARCHITECTURES)


def by_name(name: str) -> tuple[Architecture, ...]:
    """Return the architectures of a name: several if the name covers several compute capabilities.

    The longest known prefix decides: "CDNA 3.0" is CDNA 3, "Xe2-HPG" is Xe2, "RDNA 3.5" is RDNA 3.
    """
    wanted = _key(name)
    fits = [(known, key) for known, key in _KEYED if wanted.startswith(key)]
    if not fits:
        return tuple(known for known, key in _KEYED if len(wanted) > 2 and key.startswith(wanted))
    longest = max(len(key) for _, key in fits)
    return tuple(known for known, key in fits if len(key) == longest)


def rates_of(architecture: Architecture, device: str) -> dict[str, float]:
    """Return operations per SM per clock of every pipe but FP32, for a device name (GeForce cards are slower)."""
    rates = dict(architecture.rates)
    if architecture.geforce_rates and _GEFORCE.search(device):
        rates.update(architecture.geforce_rates)
    if architecture.compute_capability == "7.5" and _WITHOUT_TENSOR_CORES.search(device):
        rates = {pipe: rate for pipe, rate in rates.items() if not pipe.endswith("_tensor")}
    return rates
