"""GPU specifications, and tables of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from app.coefficients import Coefficients
from app.tables.architectures import GENERATION_OF, GENERATIONS, by_capability
from app.tables.arrays import Floats

_FITTED = Coefficients("physics")

T = TypeVar("T")

# A pipe is "<dtype>" for the SIMT lanes and "<dtype>_tensor" for the tensor (matrix) cores.
PIPES = (
    "fp64",
    "fp32",
    "fp16",
    "bf16",
    "int8",
    "fp64_tensor",
    "fp32_tensor",
    "tf32_tensor",
    "fp16_tensor",
    "bf16_tensor",
    "fp8_tensor",
    "int8_tensor",
    "fp4_tensor",
)

# Limits and allocation units of one SM.
SM_LIMITS = (
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
# Columns of GpuTable that come straight from the specification; absent figures are NaN.
SPEC_COLUMNS = (
    "sm_count",
    "fp32_lanes_per_sm",
    "base_clock_hz",
    "boost_clock_hz",
    "memory_bytes",
    "memory_bandwidth_bytes_per_s",
    "l2_bytes",
    "l2_bandwidth_bytes_per_s",
    *SM_LIMITS,
    "process_node_nm",
    "board_power_w",
    "link_bandwidth_bytes_per_s",
    "link_domain_gpus",
    "slot_bandwidth_bytes_per_s",
    "sustained_compute_flops",
    "sustained_bandwidth_bytes_per_s",
    "triad_bandwidth_bytes_per_s",
    "launch_overhead_s",
)
# Most devices of one node (HGX-2 has sixteen): a link that joins more of them joins nodes.
MOST_IN_A_MACHINE = 16
# Devices of a usual machine.
DEVICES_PER_NODE = 8
TENSOR_PIPES = tuple(pipe for pipe in PIPES if pipe.endswith("_tensor"))
# Fraction of the datasheet's DRAM bandwidth that streaming kernels reach, as measured: HBM on P100 to B200 (0.75 to
# 0.92), GDDR6X on the RTX 4090, GDDR7 on the RTX PRO 6000, GDDR6 on T4 to L40S, whose error correction takes its part,
# and on the Arc Pro B60, which has none; older memories on the P4.
_STREAMED_SHARES = _FITTED.by_name("streamed_shares")
# Highest clocks by architecture, Hz, and the names of cards that reach them: server cards keep to their boost clocks.
_HIGHEST_CLOCKS = _FITTED.by_name("highest_clock_hz")
_BOOSTING = re.compile(r"\b(GeForce|TITAN|Quadro|RTX)\b(?!.*\bServer\b)")
# Saving of energy of tensor units by architecture, over others of their process node.
_TENSOR_SAVINGS = _FITTED.by_name("tensor_saving")
_NO_ERROR_CORRECTION_SHARE, _OTHER_SHARE = _FITTED.each("no_error_correction_share", "other_memory_share")
# Derived columns: the fraction above, the factor by which a product's tensor units are slower than its chip's
# (GeForce, H20; 1 for most), 1 where the host launches every kernel, as there are no graphs (Intel's GPUs), else 0, and
# the position in GENERATIONS, 0 of other GPUs, the highest clock over the boost clock, which peaks are at, and the
# factor by which an operation of the tensor units takes less energy than on others of the process node.
COLUMNS = (
    *SPEC_COLUMNS,
    *(f"peak_{pipe}_flops" for pipe in PIPES),
    "streamed_share",
    *(f"cut_{pipe}" for pipe in TENSOR_PIPES),
    "host_launched",
    "generation",
    "boost_share",
    "tensor_saving",
)
COLUMN_INDEX = {name: k for k, name in enumerate(COLUMNS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One device. SI units throughout: Hz, FLOP/s (OP/s for int8), B/s, B, W; counts are whole.

    `kind` is "gpu" or "cpu" (cores stand in for SMs). `peak_flops` maps a pipe of PIPES to its dense
    peak; a pipe that the device lacks is absent. `provenance` maps a field (or "peak_flops.<pipe>")
    to "datasheet", "measured" or "inferred". Link and slot bandwidths are one direction; the link joins
    `link_domain_gpus` devices (None: as many as a machine has), more of them meet over their slots.
    """

    id: str
    name: str
    vendor: str
    architecture: str
    sm_count: int
    fp32_lanes_per_sm: int
    boost_clock_hz: float
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    l2_bytes: float
    l2_bandwidth_bytes_per_s: float
    registers_per_sm: int
    max_registers_per_thread: int
    shared_memory_per_sm_bytes: float
    shared_memory_per_block_bytes: float
    max_threads_per_sm: int
    max_threads_per_block: int
    max_blocks_per_sm: int
    warp_size: int
    register_allocation_unit: int
    shared_memory_allocation_unit_bytes: float
    peak_flops: Mapping[str, float]
    kind: str = "gpu"
    base_clock_hz: float | None = None
    compute_capability: str | None = None
    memory_type: str | None = None
    process_node_nm: float | None = None
    board_power_w: float | None = None
    link_type: str | None = None
    link_bandwidth_bytes_per_s: float | None = None
    link_domain_gpus: int | None = None
    slot_bandwidth_bytes_per_s: float | None = None
    launch_year: int | None = None
    sustained_compute_flops: float | None = None
    sustained_bandwidth_bytes_per_s: float | None = None
    triad_bandwidth_bytes_per_s: float | None = None
    launch_overhead_s: float | None = None
    aliases: tuple[str, ...] = ()
    source: str = ""
    note: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def near_host(self) -> bool:
        """Whether its host's memory is as near as a link: in racks of one NVLink domain hosts are of the superchip."""
        return (self.link_domain_gpus or 0) > MOST_IN_A_MACHINE

    @property
    def architecture_key(self) -> str:
        """Architecture and kind of memory: GPUs with the same key run kernels about equally well."""
        stacked = (self.memory_type or "").startswith("HBM")
        return f"{self.architecture.lower().removesuffix(' ultra')}{'/hbm' if stacked else ''}"


def _cut(spec: GpuSpec, pipe: str) -> float:
    """Return the integer factor by which a tensor pipe is slower than its architecture's SMs at this clock."""
    chip = by_capability(spec.compute_capability) if spec.compute_capability else None
    if chip is None or pipe not in chip.rates or pipe not in spec.peak_flops:
        return 1.0
    return max(1.0, round(chip.rates[pipe] * spec.sm_count * spec.boost_clock_hz / spec.peak_flops[pipe]))


def _streamed_share(spec: GpuSpec) -> float:
    """Return the fraction of the datasheet's DRAM bandwidth that streaming kernels reach."""
    memory = (spec.memory_type or "").upper()
    if memory == "GDDR6" and spec.vendor != "NVIDIA":
        return _NO_ERROR_CORRECTION_SHARE
    return _STREAMED_SHARES.get("HBM" if memory.startswith("HBM") else memory, _OTHER_SHARE)


def _boost_share(spec: GpuSpec) -> float:
    """Return the highest clock that a card reaches over the boost clock of its data sheet."""
    highest_hz = _HIGHEST_CLOCKS.get(spec.architecture.lower(), 0.0) if _BOOSTING.search(spec.name) else 0.0
    return max(1.0, highest_hz / spec.boost_clock_hz)


def _row(spec: GpuSpec) -> list[float]:
    values: list[Any] = [getattr(spec, name) for name in SPEC_COLUMNS]
    values += [spec.peak_flops.get(pipe) for pipe in PIPES]
    values.append(_streamed_share(spec))
    values += [_cut(spec, pipe) for pipe in TENSOR_PIPES]
    values.append(float(spec.vendor == "Intel" and spec.kind == "gpu"))
    values.append(float(GENERATIONS.index(GENERATION_OF.get(spec.architecture_key, ""))))
    values.append(_boost_share(spec))
    values.append(_TENSOR_SAVINGS.get(spec.architecture.lower(), 1.0))
    return [np.nan if value is None else float(value) for value in values]


@dataclass(frozen=True, slots=True)
class GpuTable:
    """Many GPUs as one matrix: `values` is float64 [len(COLUMNS), gpus], a row per column name.

    `architectures` are architecture keys, equal for GPUs with the same SMs and kind of memory, whose kernels behave
    alike; empty if unknown. `memo` caches figures derived from the whole table (`once_per_table`), `memo_of` those
    that an object such as a predictor derives, as long as it lives.
    """

    ids: tuple[str, ...]
    values: Floats
    architectures: tuple[str, ...] = ()
    memo: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    memo_of: WeakKeyDictionary[Any, Any] = field(default_factory=WeakKeyDictionary, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[GpuTable], tuple[Any, ...]]:
        return GpuTable, (self.ids, self.values, self.architectures)  # another process derives its own

    @classmethod
    def from_specs(cls, specs: Sequence[GpuSpec]) -> GpuTable:
        """Return a table of the specifications, in order."""
        matrix = np.array([_row(spec) for spec in specs], dtype=np.float64).reshape(-1, len(COLUMNS))
        made = tuple(spec.architecture_key for spec in specs)
        return cls(tuple(spec.id for spec in specs), np.ascontiguousarray(matrix.T), made)

    def __len__(self) -> int:
        return int(self.values.shape[1])

    def column(self, name: str) -> Floats:
        """Return one figure of every GPU, float64 [gpus]."""
        column: Floats = self.values[COLUMN_INDEX[name]]
        return column

    def take(self, j: NDArray[np.intp]) -> GpuTable:
        """Return the rows `j`, which may repeat."""
        made = tuple(self.architectures[k] for k in j) if self.architectures else ()
        return GpuTable(tuple(self.ids[k] for k in j), np.take(self.values, j, axis=1), made)


def once_per_table(derive: Callable[[GpuTable], T]) -> Callable[[GpuTable], T]:
    """Return a decorated function of a GPU table whose result is computed once and cached in the table."""

    @wraps(derive)
    def derived(gpus: GpuTable) -> T:
        if derive not in gpus.memo:
            gpus.memo[derive] = derive(gpus)
        known: T = gpus.memo[derive]
        return known

    return derived
