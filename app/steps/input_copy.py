"""Copy of a step's input from host memory to its devices, which the step waits for.

Shares of the slot's bandwidth that copies attain: pinned memory 5 to 6 of 8 GB/s over PCIe 2 and 11 of 15.75 GB/s over
PCIe 3 ("How to Optimize Data Transfers in CUDA C/C++", NVIDIA 2012); pageable memory about half of that, as the driver
copies it to pinned memory first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.graphs.run import Run
from app.tables.arrays import Floats
from app.tables.complete import PCIE_3_BYTES_PER_S, PCIE_4_BYTES_PER_S, PCIE_4_NODE_NM
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE, OUTPUT_BYTES

_SHARES = {"pageable": 0.4, "pinned": 0.7}
# A copy may be that many times as fast, or as slow: hosts and their memories differ.
COPY_SPREAD = 1.6
# Bytes of a token's id, and colours of a pixel.
_TOKEN_BYTES, _COLOURS = 8.0, 3.0


def input_copy_s(run: Run, gpus: GpuTable, targets: Sequence[int]) -> Floats:
    """Return the seconds of the copy on GPU rows `targets`, float64 [g, 1], or [g, c] where batches or sizes are.

    A CPU's memory is the host's.
    """
    rows = gpus.take(np.asarray(targets, dtype=np.intp))
    seconds = _bytes_of(run) / (_SHARES[run.input_copy] * _host_link_bytes_per_s(rows))[:, None]
    return np.where(rows.column("warp_size")[:, None] == 1.0, 0.0, seconds)


def _bytes_of(run: Run) -> Floats:
    """Return the bytes that each device receives in a step, [c]: images in the format of computation, or tokens."""
    if run.of_images:
        sample = _COLOURS * run.image_size**2 * OUTPUT_BYTES[DTYPE_CODE[run.dtype]]
    else:
        sample = _TOKEN_BYTES * (1 if run.mode == "decode" else run.sequence)
    return np.atleast_1d(np.asarray(sample * run.batch / run.parallelism.data, dtype=np.float64))


def _host_link_bytes_per_s(gpus: GpuTable) -> Floats:
    """Return the bandwidth between host and device, one way, [g]: that of the slot, else PCIe of the GPU's age."""
    older = gpus.column("process_node_nm") > PCIE_4_NODE_NM
    by_age = np.where(older, PCIE_3_BYTES_PER_S, PCIE_4_BYTES_PER_S)
    return np.fmin(
        np.fmin(gpus.column("slot_bandwidth_bytes_per_s"), gpus.column("link_bandwidth_bytes_per_s")), by_age
    )
