"""Results of the device suite: figures of a GPU for the catalogue, and a printed summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.measure.runner import MEASURED
from app.stacks.release import is_eager

Row = Mapping[str, Any]
_WORD = 4
_S_PER_MS = 1e-3
_TERA, _GIGA, _MEGA, _MICRO = 1e12, 1e9, 1e6, 1e-6


def figures(rows: Sequence[Row]) -> dict[str, float]:
    """Return the measured figures by their names in docs/reference/nomenclature.md, in SI units."""
    measured = [row for row in rows if row["outcome"] == MEASURED]
    measured_figures = {
        "triad_bandwidth_bytes_per_s": _bandwidth(measured, "add", arrays=3),
        "sustained_bandwidth_bytes_per_s": _bandwidth(measured, "copy", arrays=1),  # bytes count once, by definition
        "sustained_compute_flops": max((_rate(row) for row in _products(measured, "fp32", "sustained")), default=None),
        "launch_overhead_s": min((_seconds(row) for row in measured if row.get("name") == "one_store"), default=None),
    }
    return {name: value for name, value in measured_figures.items() if value is not None}


def seen_peaks(measured_figures: Mapping[str, float], device: Mapping[str, Any]) -> dict[str, float]:
    """Return the limits of a CPU that its measured figures `measured_figures` prove, SI units."""
    seen = {"memory_bandwidth_bytes_per_s": measured_figures.get("triad_bandwidth_bytes_per_s", 0.0)}
    if "peak_flops" in device:
        faster = measured_figures.get("sustained_compute_flops", 0.0) / device["peak_flops"]["fp32"]
        seen["boost_clock_hz"] = faster * device["boost_clock_hz"]
    return seen


def summary(rows: Sequence[Row], facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a summary, none without rows; `facts` as in app.measure.campaign."""
    measured = [row for row in rows if row["outcome"] == MEASURED]
    if not measured:
        return
    known = figures(measured)
    if "triad_bandwidth_bytes_per_s" in known:
        yield f"memory    {known['triad_bandwidth_bytes_per_s'] / _GIGA:10,.0f} GB/s (sum of two arrays)"
    cached = [row["bytes"] / _seconds(row) for row in measured if row.get("op") == "memory"]
    if cached:
        yield f"caches    {max(cached) / _GIGA:10,.0f} GB/s (copies, the best size)"
    for row in _products(measured):
        yield _product_line(row, facts)
    for row in measured:
        if row.get("op") == "add" and row["b"] == row["h"] == 1:
            how = "from the host" if is_eager(row["software"]) else "in a graph"
            yield f"launch    {_seconds(row) / _MICRO:10,.2f} us, the smallest operator {how}"
        if row.get("op") == "send_recv":
            rate = row["message_bytes"] / _seconds(row) / _GIGA
            yield f"peer      {rate:10,.1f} GB/s, {row['message_bytes'] / _MEGA:,.1f} MB"
    if "launch_overhead_s" in known:
        yield f"launch    {known['launch_overhead_s'] / _MICRO:10,.2f} us, the smallest kernel"
    if "graph_events_s" in facts:
        yield f"events    {facts['graph_events_s'] / _MICRO:10,.2f} us, added to a graph and subtracted"
    for way in ("host_to_device", "device_to_host"):
        if rate := facts.get(f"{way}_bytes_per_s"):
            yield f"link      {rate / _GIGA:10,.1f} GB/s, {way.replace('_', ' ')}"


def _product_line(row: Row, facts: Mapping[str, Any]) -> str:
    """Return the line of a product: its rate, and the throttle reason if known."""
    state, sides = row.get("run_state", "sustained"), f"{row['m']} x {row['n']} x {row['k']}"
    line = f"{row['dtype']:<10}{_rate(row) / _TERA:10,.2f} TFLOP/s {state}, {sides}"
    if "clock_hz" in row:
        most = f" of {facts['boost_clock_hz'] / _MEGA:,.0f}" if "boost_clock_hz" in facts else ""
        line += f", {row['clock_hz'] / _MEGA:,.0f}{most} MHz"
    if "power_w" in row:
        most = f" of {facts['power_limit_w']:,.0f}" if "power_limit_w" in facts else ""
        line += f", {row['power_w']:,.0f}{most} W"
    return line + (f", held back by {row['throttle_reason']}" if row.get("throttle_reason") else "")


def _seconds(row: Row) -> float:
    return float(row["latency_ms"]) * _S_PER_MS


def _rate(row: Row) -> float:
    """Return operations per second of a product."""
    return 2.0 * float(row["m"]) * float(row["n"]) * float(row["k"]) / _seconds(row)


def _products(rows: Sequence[Row], dtype: str | None = None, state: str | None = None) -> list[Row]:
    """Return the products of the device suite, the only rows with a run state."""
    mine = [row for row in rows if row.get("op") == "linear" and row.get("run_state")]
    return [row for row in mine if dtype in (None, row["dtype"]) and state in (None, row["run_state"])]


def _bandwidth(rows: Sequence[Row], op: str, *, arrays: int) -> float | None:
    """Return the bytes per second of the largest arrays in FP32."""
    mine = [row for row in rows if row.get("op") == op and row["dtype"] == "fp32" and row.get("phase") != "backward"]
    largest = max(mine, key=lambda row: row["b"] * row["h"], default=None)
    return None if largest is None else arrays * _WORD * largest["b"] * largest["h"] / _seconds(largest)
