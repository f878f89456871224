"""Completion of a partial device description to a full, consistent specification.

Seed rows, POST /gpus, inline specifications and the long tail all use it: every field is checked, missing fields are
inferred from the architecture (and marked so), and the result is checked for consistency.

    peak of a pipe = SMs x operations per SM per clock x boost clock       (FP32: lanes x 2 per clock)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from math import inf
from typing import Any

from app.errors import BadInput, FieldError
from app.tables import architectures
from app.tables.architectures import UNKNOWN, UNKNOWN_CPU, Architecture
from app.tables.gpu_fields import FIELDS, NUMBERS, Loc, Reader
from app.tables.gpus import MOST_IN_A_MACHINE, PIPES, SM_LIMITS, GpuSpec
from app.tables.names import slug

REQUIRED = ("name", "sm_count", "boost_clock_hz", "memory_bytes", "memory_bandwidth_bytes_per_s")
# No data sheet states the L2's bandwidth; the port between an SM and the L2 is 64 bytes wide
# (NVIDIA since Maxwell, AMD GCN and CDNA), so this bounds it from above.
L2_BYTES_PER_SM_PER_CLOCK = 64.0
# Link of a card without a stated one: PCIe 3.0 x16, or 4.0 up to this process node, nm. Without a link, its
# communication would cost nothing.
PCIE_3_BYTES_PER_S, PCIE_4_BYTES_PER_S, PCIE_4_NODE_NM = 15.75e9, 31.5e9, 8.0
# FP32 is lanes x 2 x clock by definition; data sheets quote other pipes at a clock of their own choosing.
_FP32_TOLERANCE = 0.02
_PIPE_TOLERANCE = 0.05
# A product may be scaled far below its chip (H20), but no note explains a peak above it by more than this factor.
_EXPLICABLE = 1.5
_FACTS = frozenset(NUMBERS) | {"vendor", "architecture", "compute_capability", "kind", "memory_type", "link_type"}
_FAMILY = frozenset(("architecture", "compute_capability"))
_WHOLE = frozenset(name for name, allowed in NUMBERS.items() if allowed.whole)


def complete(partial: Mapping[str, Any], *, where: Loc = ()) -> GpuSpec:
    """Return a full, consistent specification; raises BadInput with every wrong or missing field under `where`.

    Needs `name`, `architecture` or `compute_capability`, `sm_count`, `boost_clock_hz`, `memory_bytes` and
    `memory_bandwidth_bytes_per_s`. In `peak_flops`, null means that the device lacks a pipe.
    """
    if not isinstance(partial, Mapping):
        raise BadInput("A GPU is an object of fields.", errors=[FieldError(where, "send a GPU's name or an object")])
    reader = Reader(where)
    reader.read(partial)
    _require(reader)
    known = _architecture(reader)
    _stop(reader)
    values = reader.values
    given = set(values) | {f"peak_flops.{pipe}" for pipe in values.get("peak_flops", ())}
    _infer(values, known, reader)
    _stop(reader)
    values["provenance"] = _provenance(values, given)
    _check(reader, known)
    _stop(reader)
    peaks = {pipe: rate for pipe, rate in values["peak_flops"].items() if rate is not None}
    return GpuSpec(**{**values, "peak_flops": {pipe: peaks[pipe] for pipe in PIPES if pipe in peaks}})


def revise(spec: GpuSpec, changes: Mapping[str, Any]) -> GpuSpec:
    """Return `spec` with changed fields; fields inferred from them are updated, and peaks scale with SMs and clock."""
    stale = {key for key in _depending_on(changes) if spec.provenance.get(key, "inferred") == "inferred"}
    stale |= _FAMILY if _FAMILY & set(changes) else set()
    base = {key: value for key, value in spec_to_dict(spec).items() if key not in stale}
    words = {key: word for key, word in spec.provenance.items() if key in _FACTS - stale - set(changes)}
    peaks = _scaled_peaks(spec, changes)
    followed = _followed(spec, changes) != 1.0
    for pipe, rate in peaks.items():
        key = f"peak_flops.{pipe}"
        words[key] = "inferred" if followed and rate is not None else spec.provenance.get(key, "datasheet")
    merged = {**base, **changes, "id": spec.id}
    merged["peak_flops"] = _merged(peaks, changes.get("peak_flops"))
    stated = changes.get("peak_flops")
    newly = {f"peak_flops.{pipe}" for pipe in stated} if isinstance(stated, Mapping) else set()
    words = {key: word for key, word in words.items() if key not in newly}
    merged["provenance"] = _merged(words, changes.get("provenance"))
    _raise_cache(merged, words.get("l2_bandwidth_bytes_per_s"))
    return complete(merged)


def _raise_cache(merged: dict[str, Any], provenance: str | None) -> None:
    """Raise an inferred L2 bandwidth to the memory's: all that comes from memory passes it."""
    memory, cache = merged.get("memory_bandwidth_bytes_per_s"), merged.get("l2_bandwidth_bytes_per_s")
    if provenance == "inferred" and isinstance(memory, int | float) and isinstance(cache, int | float):
        merged["l2_bandwidth_bytes_per_s"] = max(cache, memory)


def _depending_on(changes: Mapping[str, Any]) -> set[str]:
    """Return the fields that `complete` infers from the changed ones."""
    inferred: set[str] = set()
    if _FAMILY & set(changes):
        inferred |= {*SM_LIMITS, "fp32_lanes_per_sm", "vendor", "kind", "process_node_nm", "l2_bytes", "memory_type"}
    if {"link_type", "process_node_nm", *_FAMILY} & set(changes):
        inferred |= {"link_bandwidth_bytes_per_s", "slot_bandwidth_bytes_per_s"}
    if {"link_domain_gpus", "link_bandwidth_bytes_per_s"} & set(changes):
        inferred.add("slot_bandwidth_bytes_per_s")
    if "sm_count" in changes:
        inferred |= {"l2_bytes", "l2_bandwidth_bytes_per_s"}
    if "boost_clock_hz" in changes:
        inferred.add("l2_bandwidth_bytes_per_s")
    return inferred


def _followed(spec: GpuSpec, changes: Mapping[str, Any]) -> float:
    """Return the ratio of new to old SMs x boost clock; 1 if the change is not a valid number."""
    factor = 1.0
    for key in ("sm_count", "boost_clock_hz"):
        new = changes.get(key)
        if isinstance(new, int | float) and NUMBERS[key].low <= new <= NUMBERS[key].high:
            factor *= new / getattr(spec, key)
    return factor


def _scaled_peaks(spec: GpuSpec, changes: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the peaks after a change; with another architecture (or other lanes) only those that it states."""
    if _FAMILY & set(changes):
        return {}
    factor = _followed(spec, changes)
    kept: dict[str, float | None] = {pipe: rate * factor for pipe, rate in spec.peak_flops.items()}
    kept |= {pipe: None for pipe in PIPES if f"peak_flops.{pipe}" in spec.provenance and pipe not in spec.peak_flops}
    if "fp32_lanes_per_sm" in changes:
        kept.pop("fp32", None)
    return kept


def _merged(old: Mapping[str, Any], new: Any) -> Any:
    """Return `old` updated with `new`; non-objects are passed on, for `complete` to refuse."""
    if new is None:
        return dict(old)
    return {**old, **new} if isinstance(new, Mapping) else new


def spec_to_dict(spec: GpuSpec) -> dict[str, Any]:
    """Plain JSON values, every field; `complete` and `spec_from_dict` give the same GPU back."""
    return {**asdict(spec), "aliases": list(spec.aliases)}


def spec_from_dict(stored: Mapping[str, Any]) -> GpuSpec:
    """A GPU from what `spec_to_dict` made, perhaps through JSON; not checked again."""
    values = {item.name: stored[item.name] for item in fields(GpuSpec) if item.name in stored}
    for name in NUMBERS:
        if values.get(name) is not None:
            values[name] = int(values[name]) if name in _WHOLE else float(values[name])
    values["aliases"] = tuple(values.get("aliases", ()))
    # Registered by a release that did not check it.
    values["l2_bandwidth_bytes_per_s"] = max(values["l2_bandwidth_bytes_per_s"], values["memory_bandwidth_bytes_per_s"])
    values["peak_flops"] = {pipe: float(rate) for pipe, rate in values["peak_flops"].items()}
    return GpuSpec(**values)


def _stop(reader: Reader) -> None:
    if reader.errors:
        first = reader.errors[0]
        path = ".".join(str(part) for part in first.loc)
        raise BadInput(f"The GPU's description is not usable: {path}: {first.msg}", errors=reader.errors)


def _require(reader: Reader) -> None:
    values = reader.values
    refused = {error.loc[len(reader.where)] for error in reader.errors if len(error.loc) > len(reader.where)}
    for key in REQUIRED:
        if key not in values and key not in refused:
            unit = f" ({NUMBERS[key].unit})" if key in NUMBERS else ""
            reader.refuse(f"is missing; send it{unit}", key)
    if not {"architecture", "compute_capability"} & (set(values) | refused):
        reader.refuse('is missing; send "architecture", such as "Hopper", or "compute_capability"', "architecture")
    if "link_domain_gpus" in values and not {"link_bandwidth_bytes_per_s"} & (set(values) | refused):
        reader.refuse("is missing; send the rate of the link that joins link_domain_gpus", "link_bandwidth_bytes_per_s")
    if "id" not in values and "name" in values and "id" not in refused:
        values["id"] = slug(values["name"])[:100].strip("-")
        if not values["id"]:
            reader.refuse("the name gives none; send an id of lower-case letters, digits and hyphens", "id")


def _architecture(reader: Reader) -> Architecture:
    """Return the architecture that the description names; UNKNOWN if it is not in the table."""
    capability = reader.values.get("compute_capability")
    unknown = UNKNOWN_CPU if reader.values.get("kind") == "cpu" else UNKNOWN
    named = architectures.by_name(reader.values.get("architecture", ""))
    if capability is not None:
        known = architectures.by_capability(capability)
        if known and named and known not in named:
            reader.refuse(
                f"{capability} is {known.name}; send one of the two, or both in agreement", "compute_capability"
            )
        return known or unknown
    if len(named) > 1:
        choice = ", ".join(f'"{known.compute_capability}"' for known in named)
        reader.refuse(f"several GPUs are called so; send compute_capability, one of {choice}", "architecture")
    return named[0] if named else unknown


def _infer(values: dict[str, Any], known: Architecture, reader: Reader) -> None:
    """Infer missing fields; refuses those that cannot be inferred."""
    sms, clock = values["sm_count"], values["boost_clock_hz"]
    peaks = values.setdefault("peak_flops", {})
    if known in (UNKNOWN, UNKNOWN_CPU):
        _infer_unknown(values, reader)
    inferred = {
        "architecture": known.name,
        "vendor": known.vendor,
        "compute_capability": known.compute_capability,
        "process_node_nm": known.process_node_nm,
        "memory_type": known.memory_type,
        "fp32_lanes_per_sm": known.fp32_lanes_per_sm,
        "kind": "cpu" if known.warp_size == 1 else "gpu",
        "l2_bytes": known.l2_bytes_per_sm * sms,
        "l2_bandwidth_bytes_per_s": max(
            sms * L2_BYTES_PER_SM_PER_CLOCK * clock, values["memory_bandwidth_bytes_per_s"]
        ),
        **{limit: getattr(known, limit) for limit in SM_LIMITS},
    }
    for key, value in inferred.items():
        if value is not None:
            values.setdefault(key, value)
    if values.get("memory_type", "").upper().startswith("HBM"):
        values["memory_type"] = f"HBM{values['memory_type'][3:]}"  # `architecture_key` expects capitals
    if values["kind"] == "gpu" and "link_type" not in values and "link_bandwidth_bytes_per_s" not in values:
        values["link_bandwidth_bytes_per_s"] = _slot(values)
    if values.get("link_domain_gpus", inf) <= MOST_IN_A_MACHINE:
        values.setdefault("slot_bandwidth_bytes_per_s", min(_slot(values), values["link_bandwidth_bytes_per_s"]))
    values.setdefault("provenance", {})
    lacked = {key.removeprefix("peak_flops.") for key in values["provenance"]} - set(peaks)
    rates = architectures.rates_of(known, values["name"])
    rates["fp32"] = 2.0 * values["fp32_lanes_per_sm"]
    for pipe, rate in rates.items():
        if pipe not in peaks and pipe not in lacked:
            peaks[pipe] = float(sms * rate * known.quoted_clock(pipe) * clock)
    peaks.update(dict.fromkeys(lacked & set(PIPES)))


def _slot(values: Mapping[str, Any]) -> float:
    """Return the bandwidth of a PCIe slot of the device's generation, bytes per second one way."""
    return PCIE_3_BYTES_PER_S if values.get("process_node_nm", PCIE_4_NODE_NM) > PCIE_4_NODE_NM else PCIE_4_BYTES_PER_S


def _infer_unknown(values: dict[str, Any], reader: Reader) -> None:
    """Infer the figures of an unknown architecture: lanes from the stated peak, usual limits, and a note about it."""
    peak = values["peak_flops"].get("fp32")
    if "fp32_lanes_per_sm" not in values:
        if peak is None:
            reader.refuse("the architecture is not known here; send the lanes, or peak_flops.fp32", "fp32_lanes_per_sm")
        values["fp32_lanes_per_sm"] = max(1, round((peak or 0) / (2 * values["sm_count"] * values["boost_clock_hz"])))
    if not set(SM_LIMITS) <= set(values):
        named = values.get("architecture") or f"compute capability {values['compute_capability']}"
        assumed = f"Per-SM limits assumed: {named} is not in the table of architectures; tensor rates only as given."
        values["note"] = f"{values.get('note', '')} {assumed}".strip()


def _provenance(values: Mapping[str, Any], given: set[str]) -> dict[str, str]:
    """Return the provenance of every figure: as stated, else datasheet for given and inferred for missing ones."""
    stated = values["provenance"]
    facts = [key for key in FIELDS if key in values and key in _FACTS]
    facts += [f"peak_flops.{pipe}" for pipe in PIPES if pipe in values["peak_flops"]]
    result = {}
    for key in facts:
        own = "measured" if key.startswith(("sustained", "triad", "launch_overhead")) else "datasheet"
        result[key] = stated.get(key, own if key in given else "inferred")
    return result


def _check(reader: Reader, known: Architecture) -> None:
    """Check the consistency of the figures; a measured rate or a note may explain a deviation."""
    values = reader.values
    if values.get("base_clock_hz", 0.0) > values["boost_clock_hz"]:
        reader.refuse("is above boost_clock_hz; send the lower clock", "base_clock_hz")
    if values["shared_memory_per_block_bytes"] > values["shared_memory_per_sm_bytes"]:
        reader.refuse("is above shared_memory_per_sm_bytes; send at most that", "shared_memory_per_block_bytes")
    if values["max_threads_per_block"] > values["max_threads_per_sm"]:
        reader.refuse("is above max_threads_per_sm; send at most that", "max_threads_per_block")
    if values.get("slot_bandwidth_bytes_per_s", 0.0) > values.get("link_bandwidth_bytes_per_s", inf):
        reader.refuse("is above link_bandwidth_bytes_per_s; send at most that", "slot_bandwidth_bytes_per_s")
    if values["l2_bytes"] > values["memory_bytes"] and values["provenance"].get("l2_bytes") != "inferred":
        reader.refuse("is above memory_bytes; send the size of the last cache before the memory", "l2_bytes")
    _check_order(reader)
    rates = architectures.rates_of(known, values["name"])
    rates["fp32"] = 2.0 * values["fp32_lanes_per_sm"]
    for pipe, peak in values["peak_flops"].items():
        _check_peak(reader, pipe, peak, rates.get(pipe), known.quoted_clock(pipe))


def _check_order(reader: Reader) -> None:
    """Check that nothing is faster than what it goes through: a limit below the truth refuses true measurements."""
    values = reader.values
    for key, most, limit in (
        ("memory_bandwidth_bytes_per_s", values["l2_bandwidth_bytes_per_s"], "l2_bandwidth_bytes_per_s"),
        ("triad_bandwidth_bytes_per_s", values["memory_bandwidth_bytes_per_s"], "memory_bandwidth_bytes_per_s"),
        ("sustained_bandwidth_bytes_per_s", values["memory_bandwidth_bytes_per_s"], "memory_bandwidth_bytes_per_s"),
        ("sustained_compute_flops", values["peak_flops"].get("fp32") or inf, "peak_flops.fp32"),
    ):
        figure = values.get(key) or 0.0
        if figure > (1.0 + _PIPE_TOLERANCE) * most:
            reader.refuse(f"{figure:.4g} is above {limit} = {most:.4g}; measure again, and send {limit} too", key)


def _check_peak(reader: Reader, pipe: str, peak: float | None, rate: float | None, quoted: float) -> None:
    """Check a peak against the rate at the boost clock, or at the share `quoted` of it."""
    values = reader.values
    if peak is None:
        if pipe == "fp32":
            reader.refuse("every device here computes in FP32; send its rate or leave it out", "peak_flops", pipe)
        return
    if rate is None or values["provenance"][f"peak_flops.{pipe}"] == "measured":
        return
    expected = values["sm_count"] * rate * values["boost_clock_hz"]
    tolerance = _FP32_TOLERANCE if pipe == "fp32" else _PIPE_TOLERANCE
    explained = bool(values.get("note")) and peak < _EXPLICABLE * expected
    off = min(abs(peak / (part * expected) - 1.0) for part in (1.0, quoted))
    if off > tolerance and not explained:
        reader.refuse(
            f"{peak:.4g} does not agree with SMs x operations per SM and clock x boost clock = {expected:.4g}; "
            f"send a rate within {tolerance:.0%}, leave it out, or say in note why it differs",
            "peak_flops",
            pipe,
        )
