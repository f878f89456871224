"""Convolutions of several groups of channels.

Depthwise ones, whose groups are single channels, have PyTorch's own kernels: a thread computes an output; it finds its
place by divisions of integers and then visits its window (ATen's DepthwiseConv2d.cu). Backward, a second kernel visits
every window for the input's gradient and a third one for the weights', which meet in sums. In FP16 cuDNN has kernels of
its own from some channels on. SM clocks are by eye from our H200's rows in FP32 and BF16; an H100 takes the same
(docs/explanation/notebook.md).

Wider groups, as in ResNeXt and RegNet, have cuDNN's kernels. On tensor units a tile has outputs of one group alone, in
at least 64 columns (channels last: 128) and, of wider groups, in steps of 16 channels, so narrow groups leave most of
it empty. With channels last, narrow groups of a power of two have kernels of their own. In FP32 threads compute
outputs, at a rate of SMs and clock. By whole networks, as there are no rows: on tensor units on an RTX 3090 and an
RTX 4090, in FP32 on our H200 (docs/explanation/notebook.md).
"""

from __future__ import annotations

import numpy as np

from app.coefficients import Coefficients
from app.ops.figures import Grid
from app.ops.gemm import CANDIDATES
from app.ops.images import CHANNELS_LAST, ON_TENSOR_UNITS
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


_FP32 = DTYPE_CODE["fp32"]
# FLOPs of an SM per clock in FP32, beside the products.
_THREADS_FLOPS = _FITTED.number("grouped_threads_flops")
# Columns of a tile at least, channels first and last; channels of a step; the widest groups with kernels of their own.
_COLUMNS, _STEP, _NARROW = (64.0, 128.0), 16.0, 32.0


def _is_grouped(table: OpTable) -> Bools:
    """Return where groups are several, of more than one channel each, bool [n]."""
    several: Bools = (table.column("groups") > 1.0) & ~is_depthwise(table)
    return several


def grouped_clocks(table: OpTable, outputs: Floats, window: Floats) -> Floats:
    """Return the SM clocks of rows of several groups in FP32, [n], of `window` elements a channel; 0 of others."""
    by_threads = _is_grouped(table) & (table.dtype == _FP32)
    channels, passes = table.column("in_channels") / table.column("groups"), 1.0 + table.column("backward")
    clocks: Floats = np.where(by_threads, 2.0 * passes * outputs * window * channels / _THREADS_FLOPS, 0.0)
    return clocks


def fit_tiles_to_groups(table: OpTable, tiles: Grid) -> None:
    """Change `tiles`, in place, to those of kernels for several groups of channels."""
    grouped = _is_grouped(table)
    tiles.fill[:, grouped & (table.dtype == _FP32)] = 1.0
    rows = np.flatnonzero(grouped & np.isin(table.dtype, ON_TENSOR_UNITS))
    if not len(rows):
        return
    table = table.take(rows)
    channels, made = (table.column(name) / table.column("groups") for name in ("in_channels", "out_channels"))
    last = table.column(CHANNELS_LAST.name) > 0.0
    own = last & (channels == made) & (channels <= _NARROW) & (np.log2(channels) % 1.0 == 0.0)
    columns = CANDIDATES[:, 1:]
    wider = np.where(own, columns, np.maximum(columns, np.where(last, _COLUMNS[1], _COLUMNS[0])))
    fewer = np.ceil(made / wider) / np.ceil(made / columns)
    steps = np.where(own | (channels <= _STEP), 1.0, channels / (np.ceil(channels / _STEP) * _STEP))
    tiles.fill[:, rows] *= steps * columns / (fewer * wider)
    tiles.blocks[:, rows] *= fewer
