"""Convolutions of several groups of channels, as in ResNeXt and RegNet, by cuDNN's kernels.

On tensor units a tile has outputs of one group alone, in at least 64 columns (channels last: 128) and, of wider groups,
in steps of 16 channels, so narrow groups leave most of it empty. With channels last, narrow groups of a power of two
have kernels of their own. In FP32 threads compute outputs, at a rate of SMs and clock.

By whole networks, as there are no rows: on tensor units on an RTX 3090 and an RTX 4090, in FP32 on our H200
(docs/explanation/notebook.md).
"""

from __future__ import annotations

import numpy as np

from app.ops.depthwise import is_depthwise
from app.ops.images import CHANNELS_LAST
from app.ops.tiles import CANDIDATES, Grid
from app.tables.arrays import Bools, Floats
from app.tables.ops import DTYPE_CODE, OpTable

# FLOPs of an SM per clock in FP32, beside the products.
_THREADS_FLOPS = 57.0
# Columns of a tile at least, channels first and last; channels of a step; the widest groups with kernels of their own.
_COLUMNS, _STEP, _NARROW = (64.0, 128.0), 16.0, 32.0


def _is_grouped(table: OpTable) -> Bools:
    """Return where groups are several, of more than one channel each, bool [n]."""
    several: Bools = (table.column("groups") > 1.0) & ~is_depthwise(table)
    return several


def _by_threads(table: OpTable) -> Bools:
    by_threads: Bools = table.dtype == DTYPE_CODE["fp32"]
    return by_threads


def grouped_clocks(table: OpTable, flops: Floats) -> Floats:
    """Return the SM clocks of rows with several groups of channels in FP32, [n]; 0 of other convolutions."""
    clocks: Floats = np.where(_is_grouped(table) & _by_threads(table), flops / _THREADS_FLOPS, 0.0)
    return clocks


def fit_tiles_to_groups(table: OpTable, tiles: Grid) -> None:
    """Change `tiles`, in place, to those of kernels for several groups of channels."""
    rows = np.flatnonzero(_is_grouped(table))
    if not len(rows):
        return
    table = table.take(rows)
    channels, made = (table.column(name) / table.column("groups") for name in ("in_channels", "out_channels"))
    power_of_two = np.log2(channels) % 1.0 == 0.0
    last = table.column(CHANNELS_LAST.name) > 0.0
    own = last & (channels == made) & (channels <= _NARROW) & power_of_two
    columns = CANDIDATES[:, 1:]
    wider = np.maximum(columns, np.where(last, _COLUMNS[1], _COLUMNS[0]))
    fewer = np.ceil(made / wider) / np.ceil(made / columns)
    steps = np.where(channels > _STEP, channels / (np.ceil(channels / _STEP) * _STEP), 1.0)
    by_threads = _by_threads(table)
    fill = tiles.fill[:, rows] * np.where(own, 1.0, steps * columns / (fewer * wider))
    tiles.fill[:, rows] = np.where(by_threads, 1.0, fill)
    tiles.blocks[:, rows] *= np.where(by_threads | own, 1.0, fewer)
