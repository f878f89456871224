"""FlashAttention 2 on Hopper, as the fused attention of PyTorch before 2.11 runs there in inference.

Attention on Hopper is learned of serving stacks, which run FlashAttention 3. Times of the second over the third: the
forward pass in FP16 without a causal mask on an H100 SXM (Shah et al. 2024, arXiv 2407.08608, figure 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.graphs.run import Run
from app.ops import OP_CODE
from app.tables.arrays import Floats
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE, OpTable
from app.tables.predictions import Predictions

_HOPPER = "hopper"
_ATTENTION, _DTYPES = OP_CODE["attention_prefill"], [DTYPE_CODE[name] for name in ("fp16", "bf16")]
# TFLOP/s of both by the keys of a query, for heads of 64 and of 128 elements.
_KEYS = np.log2([512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0])
_OF_64 = np.array([333.0, 392.0, 460.0, 476.0, 496.0, 497.0]) / np.array([282.0, 306.0, 318.0, 321.0, 322.0, 324.0])
_OF_128 = np.array([467.0, 565.0, 625.0, 638.0, 646.0, 648.0]) / np.array([309.0, 350.0, 362.0, 368.0, 370.0, 370.0])
# Its kernels are for heads of multiples of 32 elements; others are padded (flash_attn 2.7, static_switch.h).
_KERNEL_STEP = 32.0


def with_second_flash(
    answer: Predictions, table: OpTable, run: Run, gpus: GpuTable, targets: Sequence[int]
) -> Predictions:
    """Return predictions of the rows on GPU rows `targets`, GPU by GPU, with FlashAttention 2 where that runs."""
    on_hopper = [bool(gpus.architectures) and gpus.architectures[target].startswith(_HOPPER) for target in targets]
    rows = (table.kind == _ATTENTION) & np.isin(table.dtype, _DTYPES)
    others = run.attention == "eager" or run.first_flash or run.cudnn_attention
    if run.mode != "inference" or run.stack is not None or others or not rows.any() or not any(on_hopper):
        return answer
    on_rows = np.repeat(on_hopper, len(table)) & np.tile(rows, len(targets))
    ratio = np.where(on_rows, np.tile(_ratios(table), len(targets)), 1.0)
    return replace(answer, latency_s=answer.latency_s * ratio, low_s=answer.low_s * ratio, high_s=answer.high_s * ratio)


def _ratios(table: OpTable) -> Floats:
    """Return the time of FlashAttention 2 over the third's by keys and head size, of every row, float64 [n]."""
    keys, window = table.column("context_length"), table.column("window")
    keys = np.log2(np.where(window > 0.0, np.fmin(keys, window), keys))
    share = np.clip((_KERNEL_STEP * np.ceil(table.column("head_dim") / _KERNEL_STEP) - 64.0) / 64.0, 0.0, 1.0)
    ratios: Floats = (1.0 - share) * np.interp(keys, _KEYS, _OF_64) + share * np.interp(keys, _KEYS, _OF_128)
    return ratios
