"""Architectures of AMD, Intel and processors, and what is assumed of one that is not known.

Sources: AMD, CDNA 1 to 4 and RDNA whitepapers and instruction-set guides; Intel, oneAPI GPU optimisation guide
(Xe2, Xe-HPG, Xe-HPC); the processors' optimisation manuals.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.tables.architecture import KIB, Architecture, simt, tensor


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
_CDNA1 = {**simt(64, 256, int8=512), **tensor(1024, bf16=512, int8=1024, fp32=256)}
_CDNA2 = {**simt(128, 256, int8=512), **tensor(1024, bf16=1024, int8=1024, fp32=256, fp64=256)}
_CDNA3 = {**simt(128, 256, int8=512), **tensor(2048, bf16=2048, tf32=1024, fp8=4096, int8=4096, fp32=256, fp64=256)}
_CDNA4 = {**simt(128, 256, int8=512), **tensor(4096, bf16=4096, fp8=8192, int8=8192, fp4=16384, fp32=256, fp64=128)}
_RDNA3 = {**simt(8, 512, int8=512), **tensor(512, bf16=512, int8=512)}
_RDNA4 = {**simt(8, 512, int8=512), **tensor(1024, bf16=1024, fp8=2048, int8=2048)}
_DUAL = {"fp32_lanes_per_sm": 128, "registers_per_sm": 98304}

AMD = (
    _amd("TeraScale", 40, l2_kib=32, rates={}, **_GCN),
    _amd("GCN", 28, l2_kib=24, rates=simt(0, 128), **_GCN),
    _amd("GCN 5.1", 7, l2_kib=68, rates=simt(0, 256, int8=512), **_GCN),
    _amd("RDNA", 7, l2_kib=100, rates=simt(8, 256, int8=512), **_RDNA, max_threads_per_sm=1280),
    _amd("RDNA 2", 7, l2_kib=64, rates=simt(8, 256, int8=512), **_RDNA, **_WAVES),
    _amd("RDNA 3", 5, l2_kib=64, rates=_RDNA3, **{**_RDNA, **_WAVES, **_DUAL}),
    _amd("RDNA 4", 4, l2_kib=128, rates=_RDNA4, **{**_RDNA, **_WAVES, **_DUAL}),
    _amd("CDNA", 7, l2_kib=68, rates=_CDNA1, max_threads_per_sm=2560, max_registers_per_thread=256, memory_type="HBM"),
    _amd("CDNA 2", 6, l2_kib=79, rates=_CDNA2, memory_type="HBM"),
    # The last shared level is the 256 MiB Infinity Cache, not the 4 MiB L2 of each die.
    _amd("CDNA 3", 5, l2_kib=862, rates=_CDNA3, fp32_lanes_per_sm=128, memory_type="HBM"),
    _amd(
        "CDNA 4",
        3,
        l2_kib=1024,
        rates=_CDNA4,
        fp32_lanes_per_sm=128,
        shared_memory_per_sm_bytes=160 * KIB,
        shared_memory_per_block_bytes=160 * KIB,
        shared_memory_allocation_unit_bytes=1280.0,
        memory_type="HBM",
    ),
)


def _intel(name: str, node_nm: float, l2_kib: float, rates: Mapping[str, float], **others: object) -> Architecture:
    """An Xe core: eight vector engines of 16 lanes, eight threads each, 64 KiB of registers per engine."""
    facts: dict[str, object] = {"fp32_lanes_per_sm": 128, "warp_size": 16, "registers_per_sm": 131072, **others}
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


_XMX = {**simt(32, 512, int8=512), **tensor(2048, bf16=2048, tf32=1024, int8=4096)}
# Ponte Vecchio's vector engines do FP64 at the rate of FP32, its matrix units are twice as wide.
_XE_HPC = {**simt(256, 512, int8=1024), **tensor(4096, bf16=4096, tf32=2048, int8=8192)}
INTEL = (
    _intel("Xe2", 5, 922, _XMX, max_threads_per_sm=2048),
    _intel("Xe-HPC", 5, 3264, _XE_HPC, max_threads_per_sm=2048, memory_type="HBM"),
    _intel("Xe-HPG", 6, 512, {**simt(0, 512, int8=512), **tensor(2048, bf16=2048, int8=4096)}),
    _intel("Xe", 10, 256, simt(0, 256, int8=512)),
    _intel(
        "Generation", 14, 256, simt(32, 256), fp32_lanes_per_sm=64, max_threads_per_sm=896, max_threads_per_block=256
    ),
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
CPUS = (
    _cpu("Cascade Lake", "Intel", 32, simt(32, int8=256)),
    _cpu("Ice Lake", "Intel", 32, simt(32, int8=256)),
    _cpu("Alder Lake", "Intel", 16, simt(16, int8=128)),
    _cpu("Zen 2", "AMD", 16, simt(16)),
    _cpu("Zen 3", "AMD", 16, simt(16)),
)
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
