"""Points, the units of measurement of the suites."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# What becomes of a point; other errors are FAILED with their reason. INTERRUPTED: the process ended while it ran.
MEASURED, BUSY, OUT_OF_MEMORY, FAILED, INTERRUPTED = "measured", "busy", "out_of_memory", "failed", "interrupted"

Phases = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """An allocated point that is ready to run.

    phases    calls in order, timed separately; a single phase is named ""
    kernel    {"name", "grid", "block"} of the launched function if the suite knows it
    facts     further fields of the row, flattened as in the measurements form
    cold      True if caches are flushed before each repetition (CUDA only); False if cached data is measured
    rest_s    idle seconds before each repetition, for a cool device
    launches  runs of the workload per repetition, over which its time is divided
    """

    phases: Phases
    kernel: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    cold: bool = True
    rest_s: float = 0.0
    launches: int = 1


@dataclass(frozen=True, slots=True)
class Point:
    """One workload to measure.

    suite     device, kernels, operators or models
    workload  its row in the measurements form (API units), such as {"kind": "operator", "op": "linear", ...}
    prepare   allocates it on its stream; may raise an out-of-memory error
    software  label of the stack, which determines whether host launches count (app.stacks.release.is_eager): for an
              eager stack the device idles before each repetition, for others the host runs ahead
    """

    suite: str
    workload: Mapping[str, Any]
    prepare: Callable[[], Prepared]
    software: str

    @property
    def digest(self) -> str:
        """Identity of the point across runs, by suite, stack and workload."""
        content = json.dumps([self.suite, self.software, self.workload], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]
