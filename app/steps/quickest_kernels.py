"""Kernels that a serving stack chooses among: each row has the quickest.

An all-reduce is the stack's own or the library's, by size. SGLang multiplies in FP8 by blocks with DeepGEMM or with
TensorRT-LLM's kernels from FlashInfer, by GPU (srt/layers/quantization/fp8_utils.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from app.ops import OP_CODE
from app.ops.collective import CUSTOM, NCCL
from app.ops.stacks import stack_of
from app.tables.arrays import Bools
from app.tables.ops import DTYPE_CODE, OpTable, concatenate
from app.tables.predictions import Predictions

_SUM, _PRODUCT, _BY_BLOCKS = OP_CODE["all_reduce"], OP_CODE["linear"], DTYPE_CODE["fp8_block"]
_SGLANG, _TRTLLM = stack_of("sglang"), stack_of("trtllm")


def quickest_kernels(ops: OpTable, targets: int, predict: Callable[[OpTable], Predictions]) -> Predictions:
    """Return the predictions of a network's rows on `targets` GPUs, GPU by GPU, from those of `predict`.

    Rows whose stack has another kernel are also predicted with that one, and have the quicker prediction of both.
    """
    sums, products = _with_choice(ops, _SUM, "implementation", CUSTOM), _products(ops)
    own = np.flatnonzero(sums | products)
    if not len(own):
        return predict(ops)
    others = ops.take(own)
    dims = others.dims.copy()
    for rows, field, value in ((sums, "implementation", NCCL), (products, "stack", _TRTLLM)):
        if rows.any():
            dims[others.fields[field], rows[own]] = value
    every = predict(concatenate([ops, replace(others, dims=dims)]))
    n = len(ops)
    first = np.arange(targets)[:, None] * (n + len(own))
    as_asked, as_other = (first + rows for rows in (np.arange(n), n + np.arange(len(own))))
    as_asked[:, own] = np.where(
        every.latency_s[as_other] < every.latency_s[as_asked[:, own]], as_other, as_asked[:, own]
    )
    chosen = as_asked.ravel()
    return Predictions(*(getattr(every, name)[chosen] for name in Predictions.__dataclass_fields__))


def _products(ops: OpTable) -> Bools:
    """Return SGLang's products in FP8 by blocks, bool [n]."""
    by_blocks: Bools = ops.dtype == _BY_BLOCKS
    return by_blocks & _with_choice(ops, _PRODUCT, "stack", _SGLANG)


def _with_choice(ops: OpTable, kind: int, field: str, value: float) -> Bools:
    """Return the rows of one operator whose `field` has this value, bool [n]."""
    found: Bools = ops.kind == kind
    return found & (ops.column(field) == value) if found.any() else found
