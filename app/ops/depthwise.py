"""Depthwise convolutions, whose groups are single channels, by PyTorch's own kernels.

A thread computes an output: it finds its place by divisions of integers and then visits its window (ATen's
DepthwiseConv2d.cu). Backward, a second kernel visits every window for the input's gradient and a third one for the
weights', which meet in sums. In FP16 cuDNN has kernels of its own from some channels on.

SM clocks are by eye from our H200's rows in FP32 and BF16; an H100 takes the same (docs/explanation/notebook.md).
"""

from __future__ import annotations

import numpy as np

from app.coefficients import Coefficients
from app.tables.arrays import Bools, Floats
from app.tables.ops import DTYPE_CODE, OpTable

_FITTED = Coefficients("operators")

# Outputs of a block.
THREADS = 256.0
# SM clocks of an output, and of each element of its window: forward, and of both gradients. Forward has kernels for
# some windows, whose loops are unrolled, by elements; others take longer per element.
_FORWARD, _BOTH_GRADIENTS = _FITTED.numbers("depthwise_forward"), _FITTED.numbers("depthwise_gradients")
_UNROLLED, _IN_LOOPS = (1.0, 9.0, 25.0), _FITTED.number("depthwise_in_loops")
# In FP16: channels from which cuDNN's kernels run, and their part of these clocks forward, which each gradient takes
# too.
_CUDNN_CHANNELS, _CUDNN_PART = 32.0, _FITTED.number("depthwise_cudnn_part")


def is_depthwise(table: OpTable) -> Bools:
    """Return where each channel in is a group, bool [n]; of a batch of configurations [c, n]."""
    groups = table.column("groups")
    own: Bools = (groups > 1.0) & (groups == table.column("in_channels"))
    return own


def depthwise_clocks(table: OpTable, outputs: Floats, window: Floats) -> Floats:
    """Return the SM clocks of rows with `outputs` elements of `window` elements each, [n]; 0 of other convolutions."""
    back = table.column("backward") > 0.0
    by_cudnn = (table.dtype == DTYPE_CODE["fp16"]) & (table.column("in_channels") >= _CUDNN_CHANNELS)
    of_output, of_element = (np.where(back & ~by_cudnn, *pair) for pair in zip(_BOTH_GRADIENTS, _FORWARD, strict=True))
    of_element = np.where(back | np.isin(window, _UNROLLED), of_element, _IN_LOOPS * of_element)
    passes = np.where(by_cudnn, _CUDNN_PART * (1.0 + back), 1.0)
    clocks: Floats = np.where(is_depthwise(table), passes * outputs * (of_output + of_element * window), 0.0)
    return clocks
