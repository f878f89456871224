"""All-reduces of serving stacks: the quicker of the stack's own kernel and the library's, as stacks choose by size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from app.ops import OP_CODE
from app.ops.collective import CUSTOM, NCCL
from app.tables.ops import OpTable, concatenate
from app.tables.predictions import Predictions

_SUM = OP_CODE["all_reduce"]


def quickest_sums(ops: OpTable, targets: int, predict: Callable[[OpTable], Predictions]) -> Predictions:
    """Return the predictions of a network's rows on `targets` GPUs, GPU by GPU, from those of `predict`.

    Rows of a stack's own all-reduce are also predicted as the library's, and have the quicker prediction of both.
    """
    own = np.flatnonzero(ops.kind == _SUM)
    own = own[ops.column("implementation")[own] == CUSTOM] if len(own) else own
    if not len(own):
        return predict(ops)
    library = ops.take(own)
    dims = library.dims.copy()
    dims[library.fields["implementation"]] = NCCL
    every = predict(concatenate([ops, replace(library, dims=dims)]))
    n = len(ops)
    first = np.arange(targets)[:, None] * (n + len(own))
    as_asked, as_library = (first + rows for rows in (np.arange(n), n + np.arange(len(own))))
    as_asked[:, own] = np.where(
        every.latency_s[as_library] < every.latency_s[as_asked[:, own]], as_library, as_asked[:, own]
    )
    rows = as_asked.ravel()
    return Predictions(*(getattr(every, name)[rows] for name in Predictions.__dataclass_fields__))
