"""Normalisations of `b` rows of `h`: layer_norm, rms_norm, softmax, and batch_norm (`h` channels, `b` batch x area).

y = (x - mean) / sqrt(var + eps) gamma + beta (Ba et al. 2016; Ioffe and Szegedy 2015; RMS: Zhang and Sennrich 2019);
softmax is exp(x - max) / sum. FLOPs = operations per element x b h; bytes = each tensor once: x in, y out, and `h`
parameters; backward reads dY and x (softmax: y) and writes dX and the parameters' gradients.

Their kernels (PyTorch's) read a row for its statistics and again for its result; softmax up to 1,024 elements keeps it
in registers, beyond it takes three passes. Backward, softmax multiplies dY by y in a kernel of its own first, and norms
find the gradients of their parameters in a kernel of its own, which reads dY and x once more. Batch norm in training
has one block per channel, backward and forward, where it first finds the batch's statistics (batch_norm_training), so
few channels keep few SMs busy; not with channels last. The stacks that run formats of 16 bits are newer than PyTorch
2.1: they keep a row of whole loads in shared memory, which its two reductions then read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import isqrt

import numpy as np

from app.coefficients import Coefficients
from app.ops.base import COMMON, Dim, Op
from app.ops.figures import Prior, Ratio, Rereads, Work
from app.ops.gradient import BOTH_READ, ITSELF, UNFUSED, step
from app.ops.images import CHANNELS_LAST
from app.ops.suite import PLAIN, ROWS, WIDTH, Axis, Log, Made, Maker, Row, Sizes, Space, unary
from app.tables.arrays import Bools, Floats
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OUTPUT_BYTES, OpTable

_FITTED = Coefficients("operators")


def _work(flops: tuple[float, float], parameters: float) -> Callable[[OpTable], Work]:
    """Operations per element forward and backward, and vectors of `h` parameters or statistics."""

    def work(table: OpTable) -> Work:
        width, back = table.column("h"), table.column("backward")
        elements = table.column("b") * width
        size = DTYPE_BYTES[table.dtype]
        moved = elements * ((1.0 + back) * size + OUTPUT_BYTES[table.dtype])
        moved = moved + parameters * (1.0 + back) * width * size
        return Work((flops[0] + back * (flops[1] - flops[0])) * elements, moved, moved)

    return work


# Rows between their first and last read on an SM: softmax has two blocks of 1,024 threads there, the others many small
# ones, of which about half are so far at a time.
_SOFTMAX_ROWS, _NORM_ROWS = _FITTED.each("softmax_rows_apart", "norm_rows_apart")
# Elements and bytes of a row of softmax that stay in registers (PyTorch 2.1).
_IN_REGISTERS, _REGISTER_BYTES = 1024.0, 4096.0
# Bytes of a row that stay in shared memory in newer stacks, and the most bytes of an element in the formats that these
# run. On MI100 and MI210 (newer too, FP32) such rows take 0.7 of the time of others; of 16 bits no data.
_SHARED_BYTES, _NEWER_BYTES = 48.0 * 1024.0, 2.0
# Threads that share a row: layer norm's, and at most softmax's, a power of two for which a row is one or two loads of
# 16 bytes each. A short row has work for a few warps only: no data, which begin at 260 elements.
_NORM_THREADS, _SOFTMAX_THREADS, _WARP, _LOAD_BYTES = 128.0, 512.0, 32.0, 16.0
# What it costs an SM that they meet to reduce it, clocks per thread: of layer norm (Welford's means and squares).
_CLOCKS_PER_THREAD = _FITTED.number("layer_norm_clocks_per_thread")
# The same of softmax, which reduces twice, and for each turn of a loop over the row: of a load per thread, of an
# element for what is left.
_MEETING_CLOCKS, _TURN_CLOCKS = _FITTED.each("softmax_meeting_clocks", "softmax_turn_clocks")
# One sum, of squares, as one of softmax's two: no data.
_RMS_CLOCKS_PER_THREAD = _MEETING_CLOCKS / 2.0
# A row of PyTorch's layer_norm and rms_norm has one block, whose threads load four elements at once: SM clocks of the
# block per element (serving stacks have a kernel of more threads). Rows that are no multiple of four take two kernels
# that load one: SM clocks per row and per element, forward, and of the two blocks of a row alone.
_BLOCK_CLOCKS, _AT_ONCE = _FITTED.number("norm_block_clocks"), 4.0
# Elements from which on the same counts in FP32, whose shorter rows were learned without it.
_LONG_ROW = _FITTED.number("norm_long_row")
_SINGLE_CLOCKS, _SINGLE_BLOCKS_CLOCKS = (
    _FITTED.numbers("norm_single_clocks"),
    _FITTED.numbers("norm_single_blocks_clocks"),
)
# Backward, SM clocks per row and per element, of rows that are multiples of four and of others, and how often each
# reads a row again. The kernel of the parameters' gradients has a block per 32 columns, which goes through all rows,
# up to so many: beyond, several blocks share them.
_BACK_CLOCKS, _BACK_SINGLE_CLOCKS = _FITTED.numbers("norm_back_clocks"), _FITTED.numbers("norm_back_single_clocks")
_BACK_AGAIN, _BACK_SINGLE_AGAIN = _FITTED.each("norm_back_again", "norm_back_single_again")
_CLOCKS_OF_ROW, _ROWS_OF_BLOCK = _FITTED.each("norm_clocks_of_row", "norm_rows_of_block")
# Batch norm in training has one block per channel, two of which an SM runs at a time: SM clocks of a block per
# element that it reads or writes.
_CHANNEL_CLOCKS, _CHANNELS_OF_SM = _FITTED.each("batch_norm_channel_clocks", "batch_norm_channels_of_sm")
# With statistics that are kept, cuDNN's kernel takes so much longer than its bytes, channels first and last. In BF16
# PyTorch has one of its own, and FP64's bytes bound it.
_SLOWED, _SLOWED_LAST = _FITTED.each("batch_norm_slowed", "batch_norm_slowed_last")
_BY_CUDNN = [DTYPE_CODE[name] for name in ("fp32", "tf32", "fp16")]


def _softmax_rereads(table: OpTable) -> Rereads:
    """Two passes more, of rows that do not stay on the SM; backward three, of what its first kernel writes."""
    length, back = table.column("h"), table.column("backward") > 0.0
    size = DTYPE_BYTES[table.dtype]
    row = length * size
    long = (length > _IN_REGISTERS) | (row > _REGISTER_BYTES)
    kept = (size <= _NEWER_BYTES) & (row % _LOAD_BYTES == 0.0) & (row <= _SHARED_BYTES)
    again = np.where(back, 3.0, np.where(long & ~kept, 2.0, 0.0)) * table.column("b") * row
    threads = np.clip(2.0 ** np.ceil(np.log2(row / (2.0 * _LOAD_BYTES))), _WARP, _SOFTMAX_THREADS)
    loaded = threads * _LOAD_BYTES / size
    single = np.ceil(length % loaded / np.where(kept, loaded, threads))
    turns = length // loaded + single
    clocks = threads * table.column("b") * (_MEETING_CLOCKS + _TURN_CLOCKS * turns)
    passed = np.where(back, 2.0, 0.0) * table.column("b") * row
    nothing = np.zeros(table.kind.size)
    return Rereads(again, _SOFTMAX_ROWS * row, passed, nothing, np.where(long, clocks, 0.0), nothing)


def _per_row(clocks: tuple[float, ...], length: Floats) -> Floats:
    return clocks[0] + clocks[1] * length


def _in_torch(table: OpTable) -> Bools:
    """Whether PyTorch's kernel runs a row forward: the software is known, and no serving stack."""
    return np.isnan(table.column("stack")) & ~np.isnan(table.column("eager"))


def _norm_rereads(clocks_per_thread: float) -> Callable[[OpTable], Rereads]:
    """One pass more, and clocks per thread that shares a row; backward of both inputs, and one for the parameters."""

    def rereads(table: OpTable) -> Rereads:
        length, rows, back = table.column("h"), table.column("b"), table.column("backward")
        size = DTYPE_BYTES[table.dtype]
        row, newer = length * size, _in_torch(table) & ((size <= _NEWER_BYTES) | (length > _LONG_ROW))
        threads = np.minimum(_WARP * np.ceil(row / (_WARP * _LOAD_BYTES)), _NORM_THREADS)
        odd = length % _AT_ONCE != 0.0
        single = newer & odd
        clocks = np.where(single, _per_row(_SINGLE_CLOCKS, length), clocks_per_thread * threads)
        backward = np.where(odd, _per_row(_BACK_SINGLE_CLOCKS, length), _per_row(_BACK_CLOCKS, length))
        block = np.where(single, _per_row(_SINGLE_BLOCKS_CLOCKS, length), _BLOCK_CLOCKS * length)
        by_columns = np.where(rows <= _ROWS_OF_BLOCK, _CLOCKS_OF_ROW * rows, 0.0)
        longest = np.where(back > 0.0, by_columns, np.where(newer, block, 0.0))
        whole, nothing = rows * row, np.zeros(table.kind.size)
        again = np.where(back > 0.0, np.where(odd, _BACK_SINGLE_AGAIN, _BACK_AGAIN), 1.0) * whole
        clocks = rows * np.where(back > 0.0, backward, clocks)
        return Rereads(again, (1.0 + back) * _NORM_ROWS * row, nothing, 2.0 * back * whole, clocks, longest)

    return rereads


def _channel_rereads(in_training: float) -> Callable[[OpTable], Rereads]:
    """Backward, and forward where `in_training` is 1, read a channel for its sums and again, by a block of its own.

    Forward otherwise is cuDNN's kernel in some formats: as if part of its bytes moved again.
    """

    def rereads(table: OpTable) -> Rereads:
        back, rows, channels = table.column("backward"), table.column("b"), table.column("h")
        inputs = back + np.maximum(back, in_training)  # dY and X; X
        read = inputs * rows * DTYPE_BYTES[table.dtype]
        last = table.column(CHANNELS_LAST.name) > 0.0
        longest = _CHANNEL_CLOCKS * rows * np.where((inputs > 0.0) & ~last, 2.0 * inputs + 1.0, 0.0)
        by_cudnn = (inputs == 0.0) & np.isin(table.dtype, _BY_CUDNN)
        moved = rows * channels * (DTYPE_BYTES[table.dtype] + OUTPUT_BYTES[table.dtype])
        slowed = np.where(by_cudnn, np.where(last, _SLOWED_LAST, _SLOWED), 0.0) * moved
        nothing, blocks = np.zeros(table.kind.size), longest * channels / _CHANNELS_OF_SM
        return Rereads(read * channels, read, nothing, slowed, blocks, longest)

    return rereads


_DIMS = (Dim("b", "rows (batch_norm: batch x height x width)"), Dim("h", "elements of a row (batch_norm: channels)"))


def _build_layer_norm(make: Maker, row: Row) -> Made:
    width, compute = row["h"], make.torch.nn.functional.layer_norm
    x, weight, bias = make.normal(row["b"], width), make.normal(width), make.normal(width)
    return Made(lambda: compute(x, (width,), weight, bias), (x, weight, bias))


def _build_rms_norm(make: Maker, row: Row) -> Made:
    x, weight = make.normal(row["b"], row["h"]), make.normal(row["h"])
    return Made(lambda: make.torch.nn.functional.rms_norm(x, (row["h"],), weight), (x, weight))


# Images of batch normalisation have at most this side.
_LARGEST_SIDE = 112


def _build_batch_norm(make: Maker, row: Row, *, training: bool = False) -> Made:
    """Images as square as `b` allows; forward with statistics that are kept unless in `training`, backward without."""
    channels, compute = row["h"], make.torch.nn.functional.batch_norm
    side = max(side for side in range(1, min(_LARGEST_SIDE, isqrt(row["b"])) + 1) if row["b"] % side**2 == 0)
    x = make.normal(row["b"] // side**2, channels, side, side)
    mean, variance = make.normal(channels), make.positive(channels)
    weight, bias = make.normal(channels), make.normal(channels)
    training = training or row.get("phase") == "backward"
    return Made(lambda: compute(x, mean, variance, weight, bias, training=training), (x, weight, bias))


def _images(sizes: Sizes) -> Sizes | None:
    """Rows of batch_norm: images times their area."""
    return {"b": sizes["images"] * sizes["side"] ** 2, "h": sizes["channels"]}


# One norm: dX from dY and X, which PyTorch reads twice, then by parameters, which reads both once more.
_BACKWARD = (
    step("mul", "b", "h"),
    step("memory", bytes=BOTH_READ),
    step("memory", bytes=BOTH_READ, needs=UNFUSED),
)
_NORM = Op(
    "layer_norm",
    "norm",
    (*_DIMS, *COMMON),
    _work((8.0, 14.0), 2.0),
    prior=Prior.of("layer_norm"),
    rereads=_norm_rereads(_CLOCKS_PER_THREAD),
    handed="rows",
    traffic="moves",
    ratios=(Ratio(("b",)), Ratio(("b", "h"))),
    backward=_BACKWARD,
    saves=("input",),
    fusible=True,
    suite=Space({"b": ROWS, "h": WIDTH}, PLAIN, _build_layer_norm),
    usual={"b": (64, 65536), "h": (128, 16384)},
    example={"b": 4096, "h": 4096},
)
_IMAGES: Mapping[str, Axis] = {"images": Log(1, 256), "side": Log(1, 112), "channels": Log(8, 2048)}
_BATCH_NORM = replace(
    _NORM,
    name="batch_norm",
    dims=(*_DIMS, CHANNELS_LAST, *COMMON),
    work=_work((8.0, 14.0), 4.0),
    rereads=_channel_rereads(0.0),
    backward=(ITSELF,),
    in_training="batch_norm_training",
    suite=Space(_IMAGES, PLAIN, _build_batch_norm, _images),
    usual={},
)
NORM_OPS = (
    _NORM,
    replace(
        _NORM,
        name="rms_norm",
        work=_work((5.0, 10.0), 1.0),
        rereads=_norm_rereads(_RMS_CLOCKS_PER_THREAD),
        suite=Space({"b": ROWS, "h": WIDTH}, PLAIN, _build_rms_norm),
        usual={},
    ),
    _BATCH_NORM,
    replace(
        _BATCH_NORM,
        name="batch_norm_training",
        rereads=_channel_rereads(1.0),
        in_training="",
        suite=Space(_IMAGES, PLAIN, partial(_build_batch_norm, training=True), _images, back=False),
    ),
    replace(
        _NORM,
        name="softmax",
        group="softmax",
        work=_work((6.0, 4.0), 0.0),
        prior=Prior.of("softmax"),
        rereads=_softmax_rereads,
        backward=(step("mul", "b", "h"), step("mul", "b", "h", needs=UNFUSED)),
        saves=("output",),
        suite=Space({"b": ROWS, "h": WIDTH}, PLAIN, unary(lambda torch, x: torch.softmax(x, -1))),
    ),
)
