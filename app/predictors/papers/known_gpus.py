"""GPUs that a model was trained on, stored with the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from app.bands.groups import S_SEEN, S_SIBLING, S_UNSEEN, S_UNSEEN_OUTSIDE, SITUATIONS
from app.predictors.schema import Layout
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import COLUMN_INDEX, SM_LIMITS, GpuTable

CODE = {name: code for code, name in enumerate(SITUATIONS)}

# Figures that are equal for GPUs of one architecture; for tensor formats, only whether they are supported.
_ALIKE = ("fp32_lanes_per_sm", "process_node_nm", *SM_LIMITS)
_PRESENT = ("peak_fp8_tensor_flops", "peak_fp4_tensor_flops")
FIGURES = ("sm_count", "boost_clock_hz", "memory_bandwidth_bytes_per_s", "memory_bytes", "max_threads_per_sm")
_ALIKE_ROWS = [COLUMN_INDEX[name] for name in _ALIKE]
_PRESENT_ROWS = [COLUMN_INDEX[name] for name in _PRESENT]
_FIGURE_ROWS = [COLUMN_INDEX[name] for name in FIGURES]

# Of what is kept of GPUs.
LAYOUT = Layout({"architecture of GPUs": (*_ALIKE, *_PRESENT), "figures of GPUs": FIGURES})

# The situation of a shape outside the training range; for a sibling it is that of any unseen GPU.
_OUTSIDE = np.array([CODE.get(f"{name}_outside", code) for code, name in enumerate(SITUATIONS)])
_OUTSIDE[S_SIBLING] = S_UNSEEN_OUTSIDE


def architectures(gpus: GpuTable) -> Floats:
    """Return the figures that identify architectures, float64 [figures, gpus]; absent ones are -1, to compare equal."""
    alike = np.nan_to_num(gpus.values[_ALIKE_ROWS], nan=-1.0)
    return np.concatenate([alike, ~np.isnan(gpus.values[_PRESENT_ROWS])])


@dataclass(frozen=True, slots=True, eq=False)
class KnownGpus:
    """k GPUs by id.

    architecture  float64 [figures, k], as `architectures`
    figures       float64 [5, k]: SMs, clock in Hz, bytes/s, bytes of memory, threads per SM
    """

    ids: tuple[str, ...]
    architecture: Floats
    figures: Floats

    @classmethod
    def of(cls, gpus: GpuTable, rows: Sequence[int]) -> Self:
        """Return the given rows of a table."""
        j = np.array(rows, dtype=np.intp)
        return cls(tuple(gpus.ids[k] for k in rows), architectures(gpus)[:, j], gpus.values[_FIGURE_ROWS][:, j])

    def __len__(self) -> int:
        return len(self.ids)

    def joined(self, newer: KnownGpus) -> tuple[KnownGpus, Ints]:
        """Return these GPUs without those of `newer`, followed by `newer`; and the positions of the former."""
        keep = np.array([k for k, name in enumerate(self.ids) if name not in newer.ids], dtype=np.intp)
        return KnownGpus(
            (*(self.ids[k] for k in keep), *newer.ids),
            np.concatenate([self.architecture[:, keep], newer.architecture], axis=1),
            np.concatenate([self.figures[:, keep], newer.figures], axis=1),
        ), keep

    def find(self, gpus: GpuTable, j: Ints) -> Ints:
        """Return the position of GPU row `j[q]` among these, int [n]; -1 if unknown."""
        position = {name: k for k, name in enumerate(self.ids)}
        rows, back = np.unique(j, return_inverse=True)
        return np.array([position.get(gpus.ids[k], -1) for k in rows], dtype=np.intp)[back]

    def siblings(self, gpus: GpuTable, j: Ints) -> Bools:
        """Return True for GPUs with the architecture of GPU row `j[q]`, bool [k, n]."""
        rows, back = np.unique(j, return_inverse=True)
        asked = architectures(gpus)[:, rows]
        alike: Bools = (self.architecture[:, :, None] == asked[:, None, :]).all(axis=0)[:, back]
        return alike

    def situations(self, gpus: GpuTable, j: Ints, outside: Bools) -> Ints:
        """Return the situation of GPU row `j[q]`, code into SITUATIONS, [n]; `outside` the training range of shapes."""
        sibling = np.where(self.siblings(gpus, j).any(axis=0), S_SIBLING, S_UNSEEN)
        situation = np.where(self.find(gpus, j) >= 0, S_SEEN, sibling)
        return np.where(outside, _OUTSIDE[situation], situation)

    def state(self) -> dict[str, Any]:
        """Return plain containers and arrays."""
        return {"ids": list(self.ids), "architecture": self.architecture, "figures": self.figures}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        return cls(tuple(state["ids"]), state["architecture"], state["figures"])


def figures_of(gpus: GpuTable, j: Ints) -> Floats:
    """Return the figures of KnownGpus for GPU rows `j`, float64 [5, n]."""
    figures: Floats = gpus.values[_FIGURE_ROWS][:, j]
    return figures
