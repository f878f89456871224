"""What PyTorch's caching allocator costs a step that begins with nothing in it: the first one, or after `empty_cache`.

Tensors of 10 MiB or more get a segment of the driver each, those over 1 MiB share segments of 20 MiB, others of 2 MiB
(PyTorch's CUDACachingAllocator). What forward keeps for backward needs a new one each time, and the host waits for the
driver; what is not kept is used again. In a nearly full memory the allocator gives back what it can, waits for the
device to do so, and asks once more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.graphs.memory import memory
from app.graphs.run import Run
from app.tables.gpus import GpuTable
from app.tables.workload import FORWARD, Floats, Workload

_MIB = 2.0**20
LARGE_BYTES, SMALL_BYTES, SHARED_BYTES, SMALL_SEGMENT_BYTES = 10.0 * _MIB, _MIB, 20.0 * _MIB, 2.0 * _MIB
# Seconds that the driver takes for a segment, of CUDA and of HIP, and that giving back takes, from which part of the
# memory on: chosen on training runs of V100, MI100 and MI210 (docs/explanation/notebook.md).
SEGMENT_S, HIP_SEGMENT_S = 0.45e-3, 0.25e-3
FULL_FROM, FULL_S = 0.8, 0.57
_HIP = "cdna"


def allocating(w: Workload, run: Run, gpus: GpuTable, targets: Sequence[int]) -> tuple[Floats, Floats]:
    """Seconds that the host waits for the driver per launch, and that a launch waits for memory, float64 [n, g] each.

    `w` is the network with its passes; only what training keeps counts.
    """
    training = (w.phase == FORWARD) & (run.mode == "training")
    makes = gpus.architectures or ("",) * len(gpus)
    each = np.array([HIP_SEGMENT_S if makes[j].startswith(_HIP) else SEGMENT_S for j in targets])
    full = memory(w, run).required_bytes > FULL_FROM * gpus.column("memory_bytes")[list(targets)]
    launches = max(float(w.runs[w.phase == FORWARD].sum()), 1.0)
    return np.outer(training * _segments(w), each), np.outer(training, full * FULL_S / launches)


def _segments(w: Workload) -> Floats:
    """Segments that each launch asks for: what it wrote and is kept, and what it keeps besides, float64 [n]."""
    count = w.ops.column("count")
    written = np.minimum(w.saved_bytes, w.output_bytes)
    return _of(written / count) + _of((w.saved_bytes - written) / count)


def _of(size: Floats) -> Floats:
    shared = size / np.where(size > SMALL_BYTES, SHARED_BYTES, SMALL_SEGMENT_BYTES)
    return np.where(size >= LARGE_BYTES, 1.0, shared)
