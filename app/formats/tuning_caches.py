"""Read what auto-tuners keep of a kernel: Kernel Tuner's cache files, and results in the T4 format.

A configuration is described by its launch: threads are the product of the block's sizes, blocks the problem's sizes
over those of a block times what each thread does of them (Kernel Tuner's own default but for the latter).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from app.errors import BadInput, Malformed
from app.tables.arrays import Floats

_MOST_BYTES = 1 << 30
_AXES = "xyz"
_MOST_TIME = 10**12
# Parameters of work per thread along an axis, by what their names begin with.
_TILES = ("tile_size_", "work_per_thread_")
_MS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# Registers that a thread needs besides its tile, and for each element of it.
_BASE_REGISTERS, _TILE_REGISTERS, _MOST_REGISTERS = 24, 2, 255


class TuningCache(NamedTuple):
    """Measured configurations of a kernel.

    kernel, device  names; None where the file has none
    problem         sizes of the problem along x, y, z; empty if the file has none
    configurations  values of the tuning parameters, c of them
    seconds         float64 [c]
    failed          number of configurations that did not run, which are left out
    """

    kernel: str | None
    device: str | None
    problem: tuple[float, ...]
    configurations: Sequence[Mapping[str, Any]]
    seconds: Floats
    failed: int


def is_cache(content: object) -> bool:
    """Return whether JSON is a tuning cache."""
    return isinstance(content, dict) and (
        isinstance(content.get("cache"), dict)
        or (isinstance(content.get("results"), list) and "schema_version" in content)
    )


def read_cache(path: Path) -> TuningCache:
    """Return the configurations of a file that ran. Raises BadInput or Malformed."""
    if path.stat().st_size > _MOST_BYTES:
        raise BadInput(f"{path.name} is over {_MOST_BYTES >> 30} GiB.")
    content = _content(path)
    if not isinstance(content, dict) or not is_cache(content):
        raise BadInput(
            f"{path.name} is no tuning cache: send Kernel Tuner's cache file (with `cache` and `tune_params_keys`) "
            "or results in the T4 format (with `schema_version` and `results`)."
        )
    rows = _t4(content["results"], path) if isinstance(content.get("results"), list) else _kernel_tuner(content, path)
    ran = [(configuration, seconds) for configuration, seconds in rows if seconds is not None]
    if not ran:
        raise BadInput(f"{path.name}: none of its {len(rows)} configurations ran.")
    return TuningCache(
        kernel=_text(content.get("kernel_name")),
        device=_text(content.get("device_name")),
        problem=_problem(content.get("problem_size")),
        configurations=[configuration for configuration, _ in ran],
        seconds=np.array([seconds for _, seconds in ran]),
        failed=len(rows) - len(ran),
    )


def _content(path: Path) -> object:
    """Return the JSON of a file. Kernel Tuner leaves out the end of a cache while it tunes, and where it stopped."""
    text = path.read_text("utf-8", "replace").strip()
    for end in ("", "}}"):
        try:
            content: object = json.loads(text.rstrip(",") + end)
        except (ValueError, RecursionError):
            continue
        return content
    raise Malformed(f"{path.name} is not JSON.")


Timed = list[tuple[Mapping[str, Any], float | None]]


def _kernel_tuner(content: Mapping[str, Any], path: Path) -> Timed:
    names = content.get("tune_params_keys")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise BadInput(f"{path.name}: tune_params_keys must be the names of the tuning parameters.")
    objective = content.get("objective") or "time"
    rows: Timed = []
    for key, row in content["cache"].items():
        if not isinstance(row, dict) or any(name not in row for name in names):
            raise BadInput(f"{path.name}: configuration {str(key)[:50]!r} lacks tuning parameters.")
        rows.append(({name: row[name] for name in names}, _seconds(row.get("time", row.get(objective)), "ms")))
    return rows


def _t4(results: Sequence[Any], path: Path) -> Timed:
    rows: Timed = []
    for number, row in enumerate(results):
        if not isinstance(row, dict) or not isinstance(row.get("configuration"), dict):
            raise BadInput(f"{path.name}: result {number} has no configuration.")
        valid = row.get("invalidity", "correct") == "correct"
        given = row.get("measurements")
        measured = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
        time = next((each for each in measured if each.get("name") == "time"), None)
        seconds = _seconds(time.get("value"), str(time.get("unit") or "ms")) if valid and time else None
        rows.append((row["configuration"], seconds))
    return rows


def _seconds(value: object, unit: str) -> float | None:
    """Return a measured time in seconds; None for an error in its place."""
    if unit not in _MS:
        raise BadInput(f"the unit of a time is {unit[:50]!r}: it must be one of {', '.join(_MS)}")
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value < _MOST_TIME
    return float(value) * _MS[unit] if number else None  # type: ignore[arg-type]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _problem(value: object) -> tuple[float, ...]:
    sizes = value if isinstance(value, list | tuple) else [value]
    numbers = [
        float(size) for size in sizes if isinstance(size, int | float) or (isinstance(size, str) and size.isdecimal())
    ]
    return tuple(numbers) if len(numbers) == len(sizes) and all(size >= 1 for size in numbers) else ()


def launch_of(configuration: Mapping[str, Any], problem: Sequence[float]) -> dict[str, Any]:
    """Return the launch's fields. Raises BadInput where the parameters have no size of a block."""
    blocks = [_size(configuration, (f"block_size_{axis}",)) for axis in _AXES]
    tiles = [_size(configuration, tuple(f"{name}{axis}" for name in _TILES)) for axis in _AXES]
    if all(block is None for block in blocks):
        raise BadInput(
            f"The configurations have no block_size_x (but {', '.join(sorted(configuration))[:200]}): "
            "rename the parameters of the block's sizes to block_size_x, block_size_y and block_size_z."
        )
    across = [(block or 1) * (tile or 1) for block, tile in zip(blocks, tiles, strict=True)]
    each = prod(tile or 1 for tile in tiles)
    return {
        "threads_per_block": prod(block or 1 for block in blocks),
        "blocks": prod(ceil(size / part) for size, part in zip(problem, across, strict=False)),
        "registers_per_thread": min(_BASE_REGISTERS + _TILE_REGISTERS * each, _MOST_REGISTERS),
        "shared_memory_per_block": 0,
    }


def _size(configuration: Mapping[str, Any], names: Sequence[str]) -> int | None:
    value = next((configuration[name] for name in names if name in configuration), None)
    return int(value) if isinstance(value, int | float) and 1 <= value < 1 << 20 else None
