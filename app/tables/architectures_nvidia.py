"""NVIDIA's compute capabilities, Fermi to Blackwell.

Sources: CUDA C++ Programming Guide, tables "Technical Specifications per Compute Capability" and "Throughput of
Native Arithmetic Instructions"; NVIDIA's architecture whitepapers (GM200 to GB202) for tensor rates.
"""

from __future__ import annotations

from app.tables.architecture import KIB, Architecture, simt, tensor


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


_TURING = {**simt(4, 256, int8=512), **tensor(1024, int8=2048)}
_GA100 = {**simt(64, 512, 256, 512), **tensor(2048, bf16=2048, tf32=1024, int8=4096, fp64=128)}
_GA10X = {**simt(4, 256, 256, 512), **tensor(1024, bf16=1024, tf32=512, int8=2048)}
_ORIN = {**simt(4, 256, 256, 512), **tensor(2048, bf16=2048, tf32=1024, int8=4096)}
_ADA = {**simt(4, 256, 256, 512), **tensor(1024, bf16=1024, tf32=512, fp8=2048, int8=2048)}
_HOPPER = {**simt(128, 512, 512, 512), **tensor(4096, bf16=4096, tf32=2048, fp8=8192, int8=8192, fp64=256)}
_GB100 = {
    **simt(128, 512, 512, 512),
    **tensor(8192, bf16=8192, tf32=4096, fp8=16384, int8=16384, fp4=32768, fp64=128),
}
# Blackwell Ultra gives up FP64 and INT8 for half as much FP4 again (HGX B300 data sheet).
_GB110 = {**simt(4, 512, 512, 512), **tensor(8192, bf16=8192, tf32=4096, fp8=16384, int8=512, fp4=49152, fp64=4)}
_THOR = {**simt(4, 256, 256, 512), **tensor(8192, bf16=8192, tf32=4096, fp8=16384, int8=16384, fp4=32768)}
_GB20X = {**simt(4, 256, 256, 1024), **tensor(1024, bf16=1024, tf32=512, fp8=2048, int8=2048, fp4=4096)}
# GeForce runs FP16 and BF16 with FP32 accumulation, TF32 and FP8 at half the rate of the same chip's other cards.
_GEFORCE_TURING = tensor(512)
_GEFORCE_AMPERE = tensor(512, bf16=512, tf32=256)
_GEFORCE_FP8 = tensor(512, bf16=512, tf32=256, fp8=1024)
_HBM = {"memory_type": "HBM"}
_FINE = {"shared_memory_allocation_unit_bytes": 128.0}
_FERMI = {"registers_per_sm": 32768, "max_registers_per_thread": 63, "register_allocation_unit": 64}

NVIDIA = (
    _nvidia("2.0", "Fermi", 40, lanes=32, shared_kib=(48, 48), residency=(1536, 8), l2_kib=48, rates=simt(8), **_FERMI),
    _nvidia("2.1", "Fermi", 40, lanes=48, shared_kib=(48, 48), residency=(1536, 8), l2_kib=64, rates=simt(8), **_FERMI),
    _nvidia(
        "3.0",
        "Kepler",
        28,
        lanes=192,
        shared_kib=(48, 48),
        residency=(2048, 16),
        l2_kib=64,
        rates=simt(16),
        max_registers_per_thread=63,
    ),
    _nvidia("3.2", "Kepler", 28, lanes=192, shared_kib=(48, 48), residency=(2048, 16), l2_kib=128, rates=simt(16)),
    _nvidia("3.5", "Kepler", 28, lanes=192, shared_kib=(48, 48), residency=(2048, 16), l2_kib=100, rates=simt(128)),
    _nvidia(
        "3.7",
        "Kepler",
        28,
        lanes=192,
        shared_kib=(112, 48),
        residency=(2048, 16),
        l2_kib=118,
        rates=simt(128),
        registers_per_sm=131072,
    ),
    _nvidia("5.0", "Maxwell", 28, lanes=128, shared_kib=(64, 48), residency=(2048, 32), l2_kib=400, rates=simt(8)),
    _nvidia("5.2", "Maxwell", 28, lanes=128, shared_kib=(96, 48), residency=(2048, 32), l2_kib=128, rates=simt(8)),
    _nvidia("5.3", "Maxwell", 20, lanes=128, shared_kib=(64, 48), residency=(2048, 32), l2_kib=128, rates=simt(8, 512)),
    _nvidia(
        "6.0", "Pascal", 16, lanes=64, shared_kib=(64, 48), residency=(2048, 32), l2_kib=73, rates=simt(64, 256), **_HBM
    ),
    _nvidia(
        "6.1",
        "Pascal",
        16,
        lanes=128,
        shared_kib=(96, 48),
        residency=(2048, 32),
        l2_kib=102,
        rates=simt(8, 4, int8=1024),
    ),
    _nvidia("6.2", "Pascal", 16, lanes=128, shared_kib=(64, 48), residency=(2048, 32), l2_kib=256, rates=simt(8, 512)),
    _nvidia(
        "7.0",
        "Volta",
        12,
        lanes=64,
        shared_kib=(96, 96),
        residency=(2048, 32),
        l2_kib=77,
        rates={**simt(64, 256, int8=512), **tensor(1024)},
        **_HBM,
    ),
    _nvidia(
        "7.2",
        "Volta",
        12,
        lanes=64,
        shared_kib=(96, 96),
        residency=(2048, 32),
        l2_kib=64,
        rates={**simt(64, 256, int8=512), **tensor(1024, int8=2048)},
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
        "8.0",
        "Ampere",
        7,
        lanes=64,
        shared_kib=(164, 163),
        residency=(2048, 32),
        l2_kib=379,
        rates=_GA100,
        **_FINE,
        **_HBM,
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
        "9.0",
        "Hopper",
        4,
        lanes=128,
        shared_kib=(228, 227),
        residency=(2048, 32),
        l2_kib=388,
        rates=_HOPPER,
        tensor_clock=0.924,  # 1,830 of 1,980 MHz; 1,620 of 1,755 of the PCIe card
        **_FINE,
        **_HBM,
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
        **_HBM,
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
        **_HBM,
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
