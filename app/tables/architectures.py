"""Architectures by name or compute capability: limits of one SM, and operations per clock of each pipe.

`seed_data/architectures.json` has them by vendor, with sources. Rates are dense operations per SM (compute unit, Xe
core, CPU core) per clock, a fused multiply-add counting two. Tensor rates are those with FP32 accumulation (INT32 for
INT8), as deep-learning libraries use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from app.config import SEED_DATA
from app.tables.names import normalise

FILE = SEED_DATA / "architectures.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Facts shared by all devices of one architecture (NVIDIA: one compute capability).

    Counts are per SM; `rates` maps a pipe of PIPES to operations per SM per clock; `geforce_rates` replaces
    those that GeForce cards run slower. `tensor_clock` is the part of the boost clock that data sheets give the rates
    of tensor pipes at, but of FP64. `memory_type` is "HBM" where all of its products have stacked memory.
    `l2_bytes_per_sm` is only typical, for devices that do not state theirs.
    """

    name: str
    vendor: str
    compute_capability: str | None = None
    process_node_nm: float | None = None
    fp32_lanes_per_sm: int
    registers_per_sm: int = 65536
    max_registers_per_thread: int = 255
    shared_memory_per_sm_bytes: float
    shared_memory_per_block_bytes: float
    max_threads_per_sm: int = 2048
    max_threads_per_block: int = 1024
    max_blocks_per_sm: int = 32
    warp_size: int = 32
    register_allocation_unit: int = 256
    shared_memory_allocation_unit_bytes: float = 256.0
    l2_bytes_per_sm: float
    rates: Mapping[str, float] = field(default_factory=dict)
    geforce_rates: Mapping[str, float] = field(default_factory=dict)
    tensor_clock: float = 1.0
    memory_type: str | None = None

    def quoted_clock(self, pipe: str) -> float:
        """Return the clock of a pipe's datasheet rate, as a share of the boost clock."""
        return self.tensor_clock if pipe.endswith("_tensor") and pipe != "fp64_tensor" else 1.0


def _read() -> Iterator[tuple[str, Architecture]]:
    """Yield every architecture of the file with its vendor there; sizes in bytes become floating-point numbers."""
    for vendor, group in json.loads(FILE.read_bytes()).items():
        for entry in group["architectures"]:
            facts = {**group["common"], **entry}
            facts.pop("note", None)
            sizes = {name: float(size) for name, size in facts.items() if "bytes" in name}
            yield vendor, Architecture(**{**facts, **sizes})


_OF_VENDOR = dict[str, list[Architecture]]()
for _vendor, _architecture in _read():
    _OF_VENDOR.setdefault(_vendor, []).append(_architecture)
# For an architecture that is not here: today's usual limits, no rates.
(UNKNOWN,) = _OF_VENDOR.pop("unknown")
UNKNOWN_CPU = _OF_VENDOR["processors"].pop()
ARCHITECTURES = tuple(known for group in _OF_VENDOR.values() for known in group)
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


def generation_of(key: str) -> str:
    """Return the generation of an architecture key; the key itself where it has none."""
    return GENERATION_OF.get(key, key)


_BY_CAPABILITY = {known.compute_capability: known for known in ARCHITECTURES if known.compute_capability}
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
    query = _key(name)
    fits = [(known, key) for known, key in _KEYED if query.startswith(key)]
    if not fits:
        return tuple(known for known, key in _KEYED if len(query) > 2 and key.startswith(query))
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
