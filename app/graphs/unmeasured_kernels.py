"""Interval of the kernels beside products and attention in diffusion models that run in PyTorch.

On no GPU were PyTorch's element-wise kernels, norms and convolutions measured in 16 bits. They may take longer than
predicted: operands are strided and repeated in more ways than are distinguished here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.graphs.run import Run
from app.ops import OP_CODE
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import Predictions

# Times the upper end that they have alone. Set with the images of ML.ENERGY in view.
_LONGER = 1.6
_MEASURED = [OP_CODE[name] for name in ("linear", "bmm", "attention_prefill")]


def with_unmeasured_kernels(
    answer: Predictions, table: OpTable, run: Run, gpus: GpuTable, targets: Sequence[int]
) -> Predictions:
    """Return predictions of the rows on GPU rows `targets`, GPU by GPU, with wider intervals of such kernels."""
    if run.part is None or run.stack is not None:
        return answer
    longer = np.where(np.isin(table.kind, _MEASURED), 1.0, _LONGER)
    return replace(answer, high_s=answer.high_s * np.tile(longer, len(targets)))
