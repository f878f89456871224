"""What an architecture fixes: limits of one SM, and how much each of its pipes does per clock.

Sources: NVIDIA, CUDA C++ Programming Guide, tables "Technical Specifications per Compute Capability" and
"Throughput of Native Arithmetic Instructions"; NVIDIA's architecture whitepapers (GM200 to GB202) for tensor
rates; AMD, CDNA 1 to 4 and RDNA whitepapers and instruction-set guides; Intel, oneAPI GPU optimisation guide (Xe2).

Rates are dense operations per SM (compute unit, Xe core, CPU core) per clock, a fused multiply-add counting two.
Tensor rates accumulate in FP32 (INT32 for INT8), which is what deep-learning libraries ask for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.tables.names import normalise

KIB = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Facts shared by all devices of one architecture (NVIDIA: one compute capability).

    Counts are per SM; `rates` maps a pipe of PIPES to operations per SM per clock; `geforce_rates` replaces
    those that GeForce cards run slower. `l2_bytes_per_sm` is only typical, for devices that do not state theirs.
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


LIMITS = (
    "registers_per_sm",
    "max_registers_per_thread",
    "shared_memory_per_sm_bytes",
    "shared_memory_per_block_bytes",
    "max_threads_per_sm",
    "max_threads_per_block",
    "max_blocks_per_sm",
    "warp_size",
    "register_allocation_unit",
    "shared_memory_allocation_unit_bytes",
)


def _simt(fp64: float, fp16: float = 0, bf16: float = 0, int8: float = 0) -> dict[str, float]:
    """Rates of the lanes beside FP32, leaving out what the hardware lacks."""
    rates = {"fp64": fp64, "fp16": fp16, "bf16": bf16, "int8": int8}
    return {pipe: rate for pipe, rate in rates.items() if rate}


def _tensor(fp16: float, **others: float) -> dict[str, float]:
    """Rates of the matrix units."""
    return {f"{pipe}_tensor": rate for pipe, rate in {"fp16": fp16, **others}.items()}


def _nvidia(
    capability: str,
    name: str,
    node_nm: float,
    *,
    lanes: int,
    shared_kib: tuple[int, int],
    residency: tuple[int, int],
    l2_kib: int,
    **others: object,
) -> Architecture:
    """`shared_kib` is per SM and per block (opt-in maximum), `residency` threads and blocks per SM."""
    return Architecture(
        name=name,
        vendor="NVIDIA",
        compute_capability=capability,
        process_node_nm=node_nm,
        fp32_lanes_per_sm=lanes,
        shared_memory_per_sm_bytes=shared_kib[0] * KIB,
        shared_memory_per_block_bytes=shared_kib[1] * KIB,
        max_threads_per_sm=residency[0],
        max_blocks_per_sm=residency[1],
        l2_bytes_per_sm=l2_kib * KIB,
        **others,  # type: ignore[arg-type]
    )


_TURING = {**_simt(4, 256, int8=512), **_tensor(1024, int8=2048)}
_GA100 = {**_simt(64, 512, 256, 512), **_tensor(2048, bf16=2048, tf32=1024, int8=4096, fp64=128)}
_GA10X = {**_simt(4, 256, 256, 512), **_tensor(1024, bf16=1024, tf32=512, int8=2048)}
_ORIN = {**_simt(4, 256, 256, 512), **_tensor(2048, bf16=2048, tf32=1024, int8=4096)}
_ADA = {**_simt(4, 256, 256, 512), **_tensor(1024, bf16=1024, tf32=512, fp8=2048, int8=2048)}
_HOPPER = {**_simt(128, 512, 512, 512), **_tensor(4096, bf16=4096, tf32=2048, fp8=8192, int8=8192, fp64=256)}
_GB100 = {
    **_simt(128, 512, 512, 512),
    **_tensor(8192, bf16=8192, tf32=4096, fp8=16384, int8=16384, fp4=32768, fp64=128),
}
# Blackwell Ultra gives up FP64 and INT8 for half as much FP4 again (HGX B300 data sheet).
_GB110 = {**_simt(4, 512, 512, 512), **_tensor(8192, bf16=8192, tf32=4096, fp8=16384, int8=512, fp4=49152, fp64=4)}
_THOR = {**_simt(4, 256, 256, 512), **_tensor(8192, bf16=8192, tf32=4096, fp8=16384, int8=16384, fp4=32768)}
_GB20X = {**_simt(4, 256, 256, 1024), **_tensor(1024, bf16=1024, tf32=512, fp8=2048, int8=2048, fp4=4096)}
# GeForce runs FP16 and BF16 with FP32 accumulation, TF32 and FP8 at half the rate of the same chip's other cards.
_GEFORCE_TURING = _tensor(512)
_GEFORCE_AMPERE = _tensor(512, bf16=512, tf32=256)
_GEFORCE_FP8 = _tensor(512, bf16=512, tf32=256, fp8=1024)
_FINE = {"shared_memory_allocation_unit_bytes": 128.0}
_FERMI = {"registers_per_sm": 32768, "max_registers_per_thread": 63, "register_allocation_unit": 64}

_NVIDIA = (
    _nvidia(
        "2.0", "Fermi", 40, lanes=32, shared_kib=(48, 48), residency=(1536, 8), l2_kib=48, rates=_simt(8), **_FERMI
    ),
    _nvidia(
        "2.1", "Fermi", 40, lanes=48, shared_kib=(48, 48), residency=(1536, 8), l2_kib=64, rates=_simt(8), **_FERMI
    ),
    _nvidia(
        "3.0",
        "Kepler",
        28,
        lanes=192,
        shared_kib=(48, 48),
        residency=(2048, 16),
        l2_kib=64,
        rates=_simt(16),
        max_registers_per_thread=63,
    ),
    _nvidia("3.2", "Kepler", 28, lanes=192, shared_kib=(48, 48), residency=(2048, 16), l2_kib=128, rates=_simt(16)),
    _nvidia("3.5", "Kepler", 28, lanes=192, shared_kib=(48, 48), residency=(2048, 16), l2_kib=100, rates=_simt(128)),
    _nvidia(
        "3.7",
        "Kepler",
        28,
        lanes=192,
        shared_kib=(112, 48),
        residency=(2048, 16),
        l2_kib=118,
        rates=_simt(128),
        registers_per_sm=131072,
    ),
    _nvidia("5.0", "Maxwell", 28, lanes=128, shared_kib=(64, 48), residency=(2048, 32), l2_kib=400, rates=_simt(8)),
    _nvidia("5.2", "Maxwell", 28, lanes=128, shared_kib=(96, 48), residency=(2048, 32), l2_kib=128, rates=_simt(8)),
    _nvidia(
        "5.3", "Maxwell", 20, lanes=128, shared_kib=(64, 48), residency=(2048, 32), l2_kib=128, rates=_simt(8, 512)
    ),
    _nvidia("6.0", "Pascal", 16, lanes=64, shared_kib=(64, 48), residency=(2048, 32), l2_kib=73, rates=_simt(64, 256)),
    _nvidia(
        "6.1",
        "Pascal",
        16,
        lanes=128,
        shared_kib=(96, 48),
        residency=(2048, 32),
        l2_kib=102,
        rates=_simt(8, 4, int8=1024),
    ),
    _nvidia("6.2", "Pascal", 16, lanes=128, shared_kib=(64, 48), residency=(2048, 32), l2_kib=256, rates=_simt(8, 512)),
    _nvidia(
        "7.0",
        "Volta",
        12,
        lanes=64,
        shared_kib=(96, 96),
        residency=(2048, 32),
        l2_kib=77,
        rates={**_simt(64, 256, int8=512), **_tensor(1024)},
    ),
    _nvidia(
        "7.2",
        "Volta",
        12,
        lanes=64,
        shared_kib=(96, 96),
        residency=(2048, 32),
        l2_kib=64,
        rates={**_simt(64, 256, int8=512), **_tensor(1024, int8=2048)},
    ),
    _nvidia(
        "7.5",
        "Turing",
        12,
        lanes=64,
        shared_kib=(64, 64),
        residency=(1024, 16),
        l2_kib=85,
        rates=_TURING,
        geforce_rates=_GEFORCE_TURING,
    ),
    _nvidia(
        "8.0", "Ampere", 7, lanes=64, shared_kib=(164, 163), residency=(2048, 32), l2_kib=379, rates=_GA100, **_FINE
    ),
    _nvidia(
        "8.6",
        "Ampere",
        8,
        lanes=128,
        shared_kib=(100, 99),
        residency=(1536, 16),
        l2_kib=75,
        rates=_GA10X,
        geforce_rates=_GEFORCE_AMPERE,
        **_FINE,
    ),
    _nvidia(
        "8.7", "Ampere", 8, lanes=128, shared_kib=(164, 163), residency=(1536, 16), l2_kib=256, rates=_ORIN, **_FINE
    ),
    _nvidia(
        "8.9",
        "Ada Lovelace",
        5,
        lanes=128,
        shared_kib=(100, 99),
        residency=(1536, 24),
        l2_kib=720,
        rates=_ADA,
        geforce_rates=_GEFORCE_FP8,
        **_FINE,
    ),
    _nvidia(
        "9.0", "Hopper", 4, lanes=128, shared_kib=(228, 227), residency=(2048, 32), l2_kib=388, rates=_HOPPER, **_FINE
    ),
    _nvidia(
        "10.0",
        "Blackwell",
        4,
        lanes=128,
        shared_kib=(228, 227),
        residency=(2048, 32),
        l2_kib=870,
        rates=_GB100,
        **_FINE,
    ),
    _nvidia(
        "10.3",
        "Blackwell Ultra",
        4,
        lanes=128,
        shared_kib=(228, 227),
        residency=(2048, 32),
        l2_kib=870,
        rates=_GB110,
        **_FINE,
    ),
    _nvidia(
        "11.0",
        "Blackwell",
        4,
        lanes=128,
        shared_kib=(228, 227),
        residency=(1536, 24),
        l2_kib=1638,
        rates=_THOR,
        **_FINE,
    ),
    _nvidia(
        "12.0",
        "Blackwell",
        5,
        lanes=128,
        shared_kib=(100, 99),
        residency=(1536, 24),
        l2_kib=700,
        rates=_GB20X,
        geforce_rates=_GEFORCE_FP8,
        **_FINE,
    ),
    _nvidia(
        "12.1", "Blackwell", 3, lanes=128, shared_kib=(100, 99), residency=(1536, 24), l2_kib=512, rates=_GB20X, **_FINE
    ),
)


def _amd(name: str, node_nm: float, *, l2_kib: float, rates: Mapping[str, float], **others: object) -> Architecture:
    """A compute unit of GCN's line: waves of 64, 64 KiB of local memory shared in steps of 512 bytes."""
    facts: dict[str, object] = {
        "fp32_lanes_per_sm": 64,
        "warp_size": 64,
        "registers_per_sm": 131072,
        "max_registers_per_thread": 512,
        "register_allocation_unit": 512,
        "shared_memory_per_sm_bytes": 64 * KIB,
        "shared_memory_per_block_bytes": 64 * KIB,
        "shared_memory_allocation_unit_bytes": 512.0,
    }
    facts.update(others)
    l2 = l2_kib * KIB
    return Architecture(name=name, vendor="AMD", process_node_nm=node_nm, l2_bytes_per_sm=l2, rates=rates, **facts)  # type: ignore[arg-type]


_GCN = {
    "registers_per_sm": 65536,
    "max_registers_per_thread": 256,
    "register_allocation_unit": 256,
    "max_threads_per_sm": 2560,
}
_RDNA = {"registers_per_sm": 65536, "max_registers_per_thread": 256, "register_allocation_unit": 256, "warp_size": 32}
_WAVES = {"max_threads_per_sm": 1024}
_CDNA1 = {**_simt(64, 256, int8=512), **_tensor(1024, bf16=512, int8=1024, fp32=256)}
_CDNA2 = {**_simt(128, 256, int8=512), **_tensor(1024, bf16=1024, int8=1024, fp32=256, fp64=256)}
_CDNA3 = {**_simt(128, 256, int8=512), **_tensor(2048, bf16=2048, tf32=1024, fp8=4096, int8=4096, fp32=256, fp64=256)}
_CDNA4 = {**_simt(128, 256, int8=512), **_tensor(4096, bf16=4096, fp8=8192, int8=8192, fp4=16384, fp32=256, fp64=128)}
_RDNA3 = {**_simt(8, 512, int8=512), **_tensor(512, bf16=512, int8=512)}
_RDNA4 = {**_simt(8, 512, int8=512), **_tensor(1024, bf16=1024, fp8=2048, int8=2048)}
_DUAL = {"fp32_lanes_per_sm": 128, "registers_per_sm": 98304}

_AMD = (
    _amd("TeraScale", 40, l2_kib=32, rates={}, **_GCN),
    _amd("GCN", 28, l2_kib=24, rates=_simt(8, 128), **_GCN),
    _amd("GCN 5.1", 7, l2_kib=68, rates=_simt(64, 256, int8=512), **_GCN),
    _amd("RDNA", 7, l2_kib=100, rates=_simt(8, 256, int8=512), **_RDNA, max_threads_per_sm=1280),
    _amd("RDNA 2", 7, l2_kib=64, rates=_simt(8, 256, int8=512), **_RDNA, **_WAVES),
    _amd("RDNA 3", 5, l2_kib=64, rates=_RDNA3, **{**_RDNA, **_WAVES, **_DUAL}),
    _amd("RDNA 4", 4, l2_kib=128, rates=_RDNA4, **{**_RDNA, **_WAVES, **_DUAL}),
    _amd("CDNA", 7, l2_kib=68, rates=_CDNA1, max_threads_per_sm=2560, max_registers_per_thread=256),
    _amd("CDNA 2", 6, l2_kib=79, rates=_CDNA2),
    # The last shared level is the 256 MiB Infinity Cache, not the 4 MiB L2 of each die.
    _amd("CDNA 3", 5, l2_kib=862, rates=_CDNA3, fp32_lanes_per_sm=128),
    _amd(
        "CDNA 4",
        3,
        l2_kib=1024,
        rates=_CDNA4,
        fp32_lanes_per_sm=128,
        shared_memory_per_sm_bytes=160 * KIB,
        shared_memory_per_block_bytes=160 * KIB,
        shared_memory_allocation_unit_bytes=1280.0,
    ),
)


def _intel(name: str, node_nm: float, l2_kib: float, rates: Mapping[str, float], **others: int) -> Architecture:
    """An Xe core: eight vector engines of 16 lanes, eight threads each, 64 KiB of registers per engine."""
    facts: dict[str, int] = {"fp32_lanes_per_sm": 128, "warp_size": 16, "registers_per_sm": 131072, **others}
    return Architecture(
        name=name,
        vendor="Intel",
        process_node_nm=node_nm,
        max_registers_per_thread=256,
        shared_memory_per_sm_bytes=128 * KIB,
        shared_memory_per_block_bytes=128 * KIB,
        max_blocks_per_sm=64,
        register_allocation_unit=2048,
        shared_memory_allocation_unit_bytes=1024.0,
        l2_bytes_per_sm=l2_kib * KIB,
        rates=rates,
        **facts,  # type: ignore[arg-type]
    )


_XMX = {**_simt(16, 512, int8=512), **_tensor(2048, bf16=2048, tf32=1024, int8=4096)}
_INTEL = (
    _intel("Xe2", 5, 922, _XMX, max_threads_per_sm=2048),
    _intel("Xe-HPG", 6, 512, {**_simt(0, 512, int8=512), **_tensor(2048, bf16=2048, int8=4096)}),
    _intel("Xe", 10, 256, _simt(0, 256, int8=512)),
    _intel("Generation", 14, 32, _simt(4, 32), fp32_lanes_per_sm=8, max_threads_per_sm=112),
)


def _cpu(name: str, vendor: str, lanes: int, rates: Mapping[str, float]) -> Architecture:
    """A core. Its runtime loops over a work-group, so launch limits are a runtime's, not the hardware's."""
    return Architecture(
        name=name,
        vendor=vendor,
        fp32_lanes_per_sm=lanes,
        warp_size=1,
        max_blocks_per_sm=1024,
        register_allocation_unit=1,
        shared_memory_per_sm_bytes=256 * KIB,
        shared_memory_per_block_bytes=32 * KIB,
        l2_bytes_per_sm=1536 * KIB,
        rates=rates,
    )


# Two AVX-512 units give 32 FP32 lanes, two AVX2 units 16; FP64 half of it; VNNI four INT8 products per FP32 lane.
_CPUS = (
    _cpu("Cascade Lake", "Intel", 32, _simt(32, int8=256)),
    _cpu("Ice Lake", "Intel", 32, _simt(32, int8=256)),
    _cpu("Alder Lake", "Intel", 16, _simt(16, int8=128)),
    _cpu("Zen 2", "AMD", 16, _simt(16)),
)

ARCHITECTURES = (*_NVIDIA, *_AMD, *_INTEL, *_CPUS)
# For an architecture that is not here: today's usual limits, no rates.
UNKNOWN = Architecture(
    name="unknown",
    vendor="unknown",
    fp32_lanes_per_sm=0,
    shared_memory_per_sm_bytes=100 * KIB,
    shared_memory_per_block_bytes=48 * KIB,
    l2_bytes_per_sm=512 * KIB,
)
UNKNOWN_CPU = _cpu("unknown CPU", "unknown", 0, {})

_BY_CAPABILITY = {known.compute_capability: known for known in _NVIDIA}
_GEFORCE = re.compile(r"geforce|\brtx\s*[2-5]0[5-9]0", re.IGNORECASE)
_WITHOUT_TENSOR_CORES = re.compile(r"\b(gtx|mx)\s*\d|\bt(4|5|6|10|12)00\b", re.IGNORECASE)


def by_capability(capability: str) -> Architecture | None:
    """The architecture of an NVIDIA compute capability such as "8.9", or None."""
    return _BY_CAPABILITY.get(capability)


def _key(name: str) -> str:
    return normalise(name).removesuffix(".0")


def by_name(name: str) -> tuple[Architecture, ...]:
    """Architectures of that name: several where NVIDIA gave one name to several compute capabilities.

    "CDNA 3.0" is CDNA 3, "Xe2-HPG" is Xe2, "RDNA 3.5" is RDNA 3: the longest known beginning counts.
    """
    wanted = _key(name)
    fits = [known for known in ARCHITECTURES if wanted.startswith(_key(known.name))]
    if not fits:
        return tuple(known for known in ARCHITECTURES if len(wanted) > 2 and _key(known.name).startswith(wanted))
    longest = max(len(_key(known.name)) for known in fits)
    return tuple(known for known in fits if len(_key(known.name)) == longest)


def rates_of(architecture: Architecture, device: str) -> dict[str, float]:
    """Operations per SM per clock of every pipe but FP32, for a device of that name (GeForce cards are slower)."""
    rates = dict(architecture.rates)
    if architecture.geforce_rates and _GEFORCE.search(device):
        rates.update(architecture.geforce_rates)
    if architecture.compute_capability == "7.5" and _WITHOUT_TENSOR_CORES.search(device):
        rates = {pipe: rate for pipe, rate in rates.items() if not pipe.endswith("_tensor")}
    return rates
