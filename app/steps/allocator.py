"""Cost of PyTorch's caching allocator in a step that starts with an empty cache (the first, or after `empty_cache`).

Tensors of 10 MiB or more get a driver segment each, tensors over 1 MiB share segments of 20 MiB, smaller ones share
segments of 2 MiB (PyTorch's CUDACachingAllocator). Tensors saved for backward need new segments, and the host waits for
the driver; other memory is reused. When memory is nearly full, the allocator frees its cached segments, which
synchronises the device, and tries again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.graphs.batched import by_row
from app.graphs.run import Run
from app.steps.memory import memory
from app.tables.arrays import Floats
from app.tables.gpus import GpuTable
from app.tables.workload import FORWARD, Workload

_MIB = 2.0**20
LARGE_BYTES, SMALL_BYTES, SHARED_BYTES, SMALL_SEGMENT_BYTES = 10.0 * _MIB, _MIB, 20.0 * _MIB, 2.0 * _MIB
# Seconds per driver segment in CUDA and in HIP; the share of memory from which segments are freed, and the seconds that
# freeing takes. Chosen on training runs of V100, MI100 and MI210 (docs/explanation/notebook.md).
SEGMENT_S, HIP_SEGMENT_S = 0.45e-3, 0.25e-3
FULL_FROM, FULL_S = 0.8, 0.57
_HIP = "cdna"


def allocating(w: Workload, run: Run, gpus: GpuTable, targets: Sequence[int]) -> tuple[Floats, Floats]:
    """Return host seconds per launch spent in the driver, and seconds a launch waits for memory, float64 [n, g] each.

    `w` is the network after all passes, on each target, or with one configuration per target; both are 0 outside of
    training.
    """
    training = (w.phase == FORWARD) & (run.mode == "training")
    keys = gpus.architectures or ("",) * len(gpus)
    segment_s = np.array([HIP_SEGMENT_S if keys[j].startswith(_HIP) else SEGMENT_S for j in targets])
    full = memory(w, run).required_bytes > FULL_FROM * gpus.column("memory_bytes")[list(targets)]
    launches = np.maximum(w.runs[..., w.phase == FORWARD].sum(axis=-1), 1.0)
    return by_row(training * _segments(w)) * segment_s, np.outer(training, full * FULL_S / launches)


def _segments(w: Workload) -> Floats:
    """Return driver segments per launch, [n] or [c, n]: of its saved output, and of what else it saves for backward."""
    count = w.ops.column("count")
    written = np.minimum(w.saved_bytes, w.output_bytes)
    return _segments_of(written / count) + _segments_of((w.saved_bytes - written) / count)


def _segments_of(size: Floats) -> Floats:
    shared = size / np.where(size > SMALL_BYTES, SHARED_BYTES, SMALL_SEGMENT_BYTES)
    return np.where(size >= LARGE_BYTES, 1.0, shared)
