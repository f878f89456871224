"""Convolutions of several groups of channels, as in ResNeXt and RegNet, by cuDNN's kernels.

On tensor units a tile has outputs of one group alone, in at least 64 columns (channels last: 128) and, of wider groups,
in steps of 16 channels, so narrow groups leave most of it empty. With channels last, narrow groups of a power of two
have kernels of their own. In FP32 threads compute outputs, at a rate of SMs and clock.

By whole networks, as there are no rows: on tensor units on an RTX 3090 and an RTX 4090, in FP32 on our H200
(docs/explanation/notebook.md).
"""

from __future__ import annotations

import numpy as np

from app.coefficients import Coefficients
from app.ops.depthwise import is_depthwise
from app.ops.images import CHANNELS_LAST, ON_TENSOR_UNITS
from app.ops.tiles import CANDIDATES, Grid
from app.tables.arrays import Bools, Floats
from app.tables.ops import DTYPE_CODE, OpTable

_FITTED = Coefficients("operators")

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
