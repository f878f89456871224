"""Layout of images in memory, PyTorch's memory format: channels of an image one after another, or of an element.

Kernels differ by it (app.ops.conv, app.ops.norm). PyTorch has channels first unless images and network are converted:
`model.to(memory_format=torch.channels_last)`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.graphs.inserted_rows import with_column
from app.graphs.run import Run
from app.ops import OPS
from app.ops.images import CHANNELS_LAST
from app.tables.workload import Workload

_OF_IMAGES = np.array([CHANNELS_LAST.name in op.fields for op in OPS])


def in_memory_format(w: Workload, run: Run) -> Workload:
    """Return the network with its images as the run keeps them."""
    if run.memory_format == "channels_first":
        return w
    return replace(w, ops=with_column(w.ops, CHANNELS_LAST.name, np.where(_OF_IMAGES[w.ops.kind], 1.0, np.nan)))
