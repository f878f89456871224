"""Fields of a GPU description: allowed values, and error messages."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from app.errors import FieldError
from app.tables.gpus import PIPES, GpuSpec

PROVENANCES = ("datasheet", "measured", "inferred")
KINDS = ("gpu", "cpu")
_ID = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
_CAPABILITY = re.compile(r"\d{1,2}\.\d")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_LONGEST_TEXT = 2000
_LONGEST_NAME = 200
_MOST_ALIASES = 64

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """A number from `low` to `high` in `unit`, an integer if `whole`."""

    low: float
    high: float
    unit: str
    whole: bool = False


# Wide enough for any device from 1985 to ten thousand times today's; narrow enough to detect a wrong unit.
_COUNT = Range(1, 1_000_000, "count", whole=True)
_CLOCK = Range(1e6, 1e11, "Hz")
_RATE = Range(1e6, 1e21, "operations per second")
_BANDWIDTH = Range(1e6, 1e18, "bytes per second")
_LINK = Range(1e5, 1e16, "bytes per second, one direction")
_BYTES = Range(1, 1e12, "bytes")
NUMBERS: dict[str, Range] = {
    "sm_count": _COUNT,
    "fp32_lanes_per_sm": _COUNT,
    "base_clock_hz": _CLOCK,
    "boost_clock_hz": _CLOCK,
    "memory_bytes": Range(1e4, 1e16, "bytes"),
    "memory_bandwidth_bytes_per_s": _BANDWIDTH,
    "l2_bytes": _BYTES,
    "l2_bandwidth_bytes_per_s": _BANDWIDTH,
    "registers_per_sm": Range(1, 1e9, "32-bit registers", whole=True),
    "max_registers_per_thread": Range(1, 65536, "registers", whole=True),
    "shared_memory_per_sm_bytes": _BYTES,
    "shared_memory_per_block_bytes": _BYTES,
    "max_threads_per_sm": _COUNT,
    "max_threads_per_block": _COUNT,
    "max_blocks_per_sm": _COUNT,
    "warp_size": Range(1, 4096, "threads", whole=True),
    "register_allocation_unit": Range(1, 1e6, "registers per warp", whole=True),
    "shared_memory_allocation_unit_bytes": Range(1, 1e7, "bytes"),
    "process_node_nm": Range(0.01, 1e5, "nanometres"),
    "board_power_w": Range(0.01, 1e6, "watts"),
    "link_bandwidth_bytes_per_s": _LINK,
    "link_domain_gpus": Range(2, 1_000_000, "devices that the link joins", whole=True),
    "slot_bandwidth_bytes_per_s": _LINK,
    "launch_year": Range(1980, 2100, "year", whole=True),
    "sustained_compute_flops": _RATE,
    "sustained_bandwidth_bytes_per_s": _BANDWIDTH,
    "triad_bandwidth_bytes_per_s": _BANDWIDTH,
    "launch_overhead_s": Range(1e-9, 1.0, "seconds"),
}
# What each field is, for readers of the OpenAPI document.
MEANINGS = {
    "id": "Lower case with hyphens, unique: h100-sxm5-80gb",
    "name": "Product name",
    "aliases": "Other names that resolve to it: the driver's device name, names in data sets",
    "vendor": "Vendor: NVIDIA, AMD, Intel",
    "architecture": "Architecture: Hopper, Ada Lovelace, CDNA3",
    "compute_capability": "NVIDIA's compute capability, 9.0 for example",
    "kind": "gpu or cpu",
    "peak_flops": "Dense peak of each pipe (fp32, bf16_tensor ...), operations per second; absent: unsupported",
    "memory_type": "HBM3, GDDR6 ...",
    "link_type": "Link to other devices: NVLink 4, PCIe 4.0 x16 ...",
    "source": "Document that its figures come from",
    "note": "Remarks on its figures",
    "provenance": "Per field: datasheet, measured or inferred",
    "sm_count": "Streaming multiprocessors; compute units on AMD, Xe cores on Intel, cores of a CPU",
    "fp32_lanes_per_sm": "FP32 multiply-adds that an SM starts per clock",
    "base_clock_hz": "Guaranteed clock, Hz",
    "boost_clock_hz": "Clock at which the peaks are quoted, Hz",
    "memory_bytes": "Device memory, bytes",
    "memory_bandwidth_bytes_per_s": "Peak bandwidth of device memory, bytes per second",
    "l2_bytes": "Last cache that all SMs share, bytes",
    "l2_bandwidth_bytes_per_s": "Bandwidth of that cache, bytes per second",
    "registers_per_sm": "32-bit registers of an SM",
    "max_registers_per_thread": "Most registers of a thread",
    "shared_memory_per_sm_bytes": "Shared memory of an SM, bytes",
    "shared_memory_per_block_bytes": "Most shared memory of a block, bytes",
    "max_threads_per_sm": "Most resident threads of an SM",
    "max_threads_per_block": "Most threads of a block",
    "max_blocks_per_sm": "Most resident blocks of an SM",
    "warp_size": "Threads that issue together",
    "register_allocation_unit": "Step in which registers are allotted, registers per warp",
    "shared_memory_allocation_unit_bytes": "Step in which shared memory is allotted, bytes",
    "process_node_nm": "Process node, nanometres",
    "board_power_w": "Board power limit, watts",
    "link_bandwidth_bytes_per_s": "Bandwidth to other devices in one direction, bytes per second",
    "link_domain_gpus": "Devices that the link joins, 2 for a bridge; absent: all devices of a machine",
    "slot_bandwidth_bytes_per_s": "Bandwidth one way to devices that the link does not join, bytes per second",
    "launch_year": "Year of release",
    "sustained_compute_flops": "Measured FP32 rate, operations per second",
    "sustained_bandwidth_bytes_per_s": "Bandwidth measured by a copy, bytes counted once, bytes per second",
    "triad_bandwidth_bytes_per_s": "Bandwidth measured by a triad, all bytes counted, bytes per second",
    "launch_overhead_s": "Measured time of the smallest kernel, seconds",
}
_TEXTS = ("name", "vendor", "architecture", "memory_type", "link_type", "source", "note")
FIELDS = tuple(item.name for item in fields(GpuSpec))


def _number(value: object, allowed: Range) -> float | str:
    """Return the number, or an error message."""
    whole = "whole " if allowed.whole else ""
    wanted = f"send a {whole}number between {allowed.low:g} and {allowed.high:g} ({allowed.unit})"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"is not a number; {wanted}"
    if not allowed.low <= value <= allowed.high:  # also catches NaN, infinities and integers beyond float
        return f"{_shown(value)} is out of range; {wanted}"
    if allowed.whole:
        return int(value) if value == math.floor(value) else f"{value:g} is not whole; {wanted}"
    return float(value)


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) or abs(value) < 1e300 else "the integer"


def _text(value: object, longest: int) -> str:
    """Return an error message for a text, or ""."""
    if not isinstance(value, str):
        return "is not text; send a string"
    if len(value) > longest:
        return f"is too long; send at most {longest} characters"
    return "holds control characters; send plain text" if _CONTROL.search(value) else ""


class Reader:
    """Reads a description field by field; `values` holds the valid values, `errors` all errors."""

    def __init__(self, where: Loc) -> None:
        self.where = where
        self.values: dict[str, Any] = {}
        self.errors: list[FieldError] = []

    def refuse(self, msg: str, *loc: str | int) -> None:
        """Add an error at `loc` in the description."""
        self.errors.append(FieldError((*self.where, *loc), msg))

    def read(self, partial: Mapping[str, Any]) -> None:
        """Check every given field; null means not given."""
        for key, value in partial.items():
            if key not in FIELDS:
                self._unknown(key)
            elif value is not None:
                self._field(key, value)

    def _unknown(self, key: object) -> None:
        shown = str(key)[:80]
        near = difflib.get_close_matches(shown, FIELDS, 2, 0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the fields are {', '.join(FIELDS)}"
        self.refuse(f"unknown field; {hint}", shown)

    def _field(self, key: str, value: Any) -> None:
        if key in NUMBERS:
            number = _number(value, NUMBERS[key])
            if isinstance(number, str):
                self.refuse(number, key)
            else:
                self.values[key] = number
        elif key in _TEXTS:
            self._keep_text(key, value)
        else:
            getattr(self, f"_read_{key}")(value)

    def _keep_text(self, key: str, value: Any) -> None:
        wrong = _text(value, _LONGEST_TEXT if key in ("source", "note") else _LONGEST_NAME)
        if wrong:
            self.refuse(wrong, key)
        elif value.strip():
            self.values[key] = value.strip()

    def _read_id(self, value: Any) -> None:
        if not isinstance(value, str) or len(value) > 100 or not _ID.fullmatch(value):
            self.refuse("send lower-case letters and digits joined by hyphens, such as h100-sxm5-80gb", "id")
        else:
            self.values["id"] = value

    def _read_kind(self, value: Any) -> None:
        if value not in KINDS:
            self.refuse("send gpu or cpu", "kind")
        else:
            self.values["kind"] = value

    def _read_compute_capability(self, value: Any) -> None:
        if not isinstance(value, str) or not _CAPABILITY.fullmatch(value):
            self.refuse('send it as text, such as "8.9"', "compute_capability")
        else:
            self.values["compute_capability"] = value

    def _read_aliases(self, value: Any) -> None:
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) > _MOST_ALIASES:
            self.refuse(f"send a list of at most {_MOST_ALIASES} names", "aliases")
            return
        for k, alias in enumerate(value):
            wrong = _text(alias, _LONGEST_NAME) or ("" if alias.strip() else "is empty; send a name")
            if wrong:
                self.refuse(wrong, "aliases", k)
        self.values["aliases"] = tuple(value)

    def _read_peak_flops(self, value: Any) -> None:
        """Read peaks by pipe; null means that the device lacks the pipe."""
        if not isinstance(value, Mapping):
            self.refuse('send an object of rates by pipe, such as {"fp32": 14.9e12}', "peak_flops")
            return
        peaks: dict[str, float | None] = {}
        for pipe, rate in value.items():
            number = None if rate is None else _number(rate, _RATE)
            if pipe not in PIPES:
                self.refuse(f"unknown pipe; the pipes are {', '.join(PIPES)}", "peak_flops", str(pipe)[:80])
            elif isinstance(number, str):
                self.refuse(number, "peak_flops", pipe)
            else:
                peaks[pipe] = number
        self.values["peak_flops"] = peaks

    def _read_provenance(self, value: Any) -> None:
        if not isinstance(value, Mapping):
            self.refuse("send an object of field name to datasheet, measured or inferred", "provenance")
            return
        for key, word in value.items():
            if key not in FIELDS and key.removeprefix("peak_flops.") not in PIPES:
                self.refuse("not a field, nor peak_flops.<pipe>", "provenance", str(key)[:80])
            elif word not in PROVENANCES:
                self.refuse(f"send one of {', '.join(PROVENANCES)}", "provenance", key)
        self.values["provenance"] = dict(value)
