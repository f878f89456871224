"""What a suite is made of: points, each one thing to measure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Phases = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One point allocated and ready to run.

    phases    run in this order and timed apart; one phase "" for anything undivided
    kernel    {"name", "grid", "block"} of the launched function where the suite knows it
    facts     further fields of the row, flattened as the measurements form has them
    cold      whether the caches are emptied before each repetition (CUDA only): no, where what they hold is measured
    rest_s    seconds that the device idles before each repetition, so that it is cool
    launches  runs of the workload in one repetition, of which its time is shared out
    """

    phases: Phases
    kernel: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    cold: bool = True
    rest_s: float = 0.0
    launches: int = 1


@dataclass(frozen=True, slots=True)
class Point:
    """One thing to measure.

    suite     device, kernels, operators or models
    workload  its row in the measurements form (API units), such as {"kind": "operator", "op": "linear", ...}
    prepare   allocates, on the stream that it will run on; may raise that memory has run out
    software  label of the stack, which says whether host launches count (app.ops.stacks.is_eager):
              of an eager one the device idles before each repetition, of others the host runs ahead of it
    """

    suite: str
    workload: Mapping[str, Any]
    prepare: Callable[[], Prepared]
    software: str

    @property
    def digest(self) -> str:
        """What names the point in every run: equal workloads of equal stacks are one point."""
        said = json.dumps([self.suite, self.software, self.workload], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:16]
