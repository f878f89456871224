"""Convolutions: `conv2d`, NCHW input of `b` images.

Output h_o = floor((h + 2 padding - kernel) / stride) + 1 (PyTorch's conv2d). As an implicit matrix product per group
(cuDNN, Chetlur et al. 2014): m = b h_o w_o, n = out_channels / groups, k = in_channels / groups x kernel area. FLOPs
= 2 groups m n k; bytes = input + weights + output, each once. Backward is two such products, by data and by weight.

Windows of 3 x 3 in steps of one have two algorithms more in FP32 before Hopper (Lavin and Gray 2016). F(m x m, 3 x 3)
computes tiles of m x m outputs from (m + 2)^2 products per channel in and out, in place of 9 m^2:
- F(4 x 4) transforms tiles and weights in kernels of their own, between which 36 products go through memory, in blocks
  of 128 x 128 since Ampere, of about 128 x 64 before;
- F(2 x 2) is one kernel, whose blocks do 32 tiles by 32 channels out: tiles of one image, and before there were tensor
  units also of two or four, for images that one block does not fit.
The plain product runs in blocks of 128 x 64, and takes whole waves. Blocks are those of cuDNN 8's usual kernels, as
their grids in NeuSight's rows say; how fast they are, next to one another, is set there too
(docs/explanation/notebook.md).
"""

from __future__ import annotations

import numpy as np

from app.coefficients import Coefficients
from app.ops.base import COMMON, Dim, Op
from app.ops.figures import Broken, Grid, Prior, Products, Ratio, Rereads, Transformed, Work
from app.ops.gemm import LOAD_BYTES
from app.ops.gradient import OF_CONVOLUTION
from app.ops.grouped import THREADS, depthwise_clocks, fit_tiles_to_groups, grouped_clocks, is_depthwise
from app.ops.images import CHANNELS_LAST, ON_TENSOR_UNITS, PADDING, WINDOW_DIMS, Plane, plane, slid
from app.ops.suite import PRODUCTS, Log, Made, Maker, Pick, Row, Sizes, Space, pair
from app.tables.arrays import Bools, Floats
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OUTPUT_BYTES, WEIGHT_BYTES, OpTable

_FITTED = Coefficients("operators")

# Winograd's F(4x4, 3x3) needs 36 multiplications for 144 (Lavin and Gray 2016); the FFT saves no more on small windows.
WINOGRAD = 4.0
# F(4 x 4): images come in sixteens, tiles and channels out in blocks of as many, before and since Ampere.
_IMAGES, _TILES, _OLD, _NEW = 16.0, 128.0, 64.0, 128.0
# F(2 x 2): outputs and channels out that a block has; images, rows and columns that its outputs are of; and the part
# of the blocks of single images that groups must come to, to be taken.
_OUTPUTS, _CHANNELS = 128.0, 32.0
_GROUPS = (1.0, 8.0, 16.0), (2.0, 8.0, 8.0), (2.0, 4.0, 16.0), (4.0, 2.0, 16.0), (4.0, 4.0, 8.0)
_WORTH = _FITTED.number("winograd_groups_worth")
# Outputs and channels out of a block of the plain product.
_PLAIN = 128.0, 64.0
# Bytes that weights are worth: they lie in nines, one channel out after another, and tiles need them the other way.
_GATHERED = _FITTED.numbers("convolution_gathered")
# Of F(4 x 4), F(2 x 2) and the plain product: steps of the summed dimension in whose time a block takes to begin and to
# end, and the speed next to what products of such blocks usually have.
_AROUND, _SPEED = _FITTED.numbers("convolution_steps_around"), _FITTED.numbers("convolution_speed")
# Channels in that cuDNN pads images of fewer to, which it has kernels for.
_FEW_CHANNELS = 4.0
# Of the measuring suite: a group of all channels.
_ALL_CHANNELS = 0


def output(table: OpTable) -> Plane:
    """The output's height and width."""
    parts = [plane(table, name) for name in ("input_size", "kernel_size", "stride", "padding")]
    return Plane(*(slid(*sides) for sides in zip(*parts, strict=True)))


def products(table: OpTable) -> Products:
    """The implicit matrix product of every group."""
    groups = table.column("groups")
    depth = table.column("in_channels") / groups * plane(table, "kernel_size").area
    return Products(groups, table.column("b") * output(table).area, table.column("out_channels") / groups, depth)


def handed(table: OpTable) -> Floats:
    """Images in."""
    elements = table.column("b") * table.column("in_channels") * plane(table, "input_size").area
    images: Floats = elements * DTYPE_BYTES[table.dtype]
    return images


def work(table: OpTable) -> Work:
    """Work of convolutions."""
    groups, m, n, k = products(table)
    passes = 1.0 + table.column("backward")
    read = handed(table) + groups * n * k * WEIGHT_BYTES[table.dtype]
    written = groups * m * n * OUTPUT_BYTES[table.dtype]
    return Work(2.0 * passes * groups * m * n * k, passes * (read + written), passes * read + written)


def _outputs(table: OpTable) -> Floats:
    """Elements of the images out."""
    elements: Floats = table.column("b") * table.column("out_channels") * output(table).area
    return elements


def relaid(table: OpTable) -> Floats:
    """Bytes read and written where images pass to channels last, which kernels of tensor units take, and back."""
    converted = np.isin(table.dtype, ON_TENSOR_UNITS) & (table.column(CHANNELS_LAST.name) == 0.0)
    written = _outputs(table) * OUTPUT_BYTES[table.dtype]
    return np.where(converted, 2.0 * (1.0 + table.column("backward")) * (handed(table) + written), 0.0)


def saving(table: OpTable) -> Floats:
    """By how much Winograd's algorithm may cut the FLOPs of windows in steps of one."""
    winograd = (plane(table, "kernel_size").area > 1.0) & (plane(table, "stride").area == 1.0)
    return np.where(winograd, WINOGRAD, 1.0)


def transformed(table: OpTable) -> Transformed:
    """The products in the order of app.ops.gemm.TRANSFORMED: F(4 x 4) and F(2 x 2), of each two, and plain."""
    possible = (table.dtype == DTYPE_CODE["fp32"]) & (table.column("groups") == 1.0)
    for name, size in (("kernel_size", 3.0), ("stride", 1.0)):
        possible &= (plane(table, name).height == size) & (plane(table, name).width == size)
    rows = np.flatnonzero(possible)
    table = table.take(rows)
    images, channels, made = (table.column(name) for name in ("b", "in_channels", "out_channels"))
    out, passes = output(table), 1.0 + table.column("backward")

    tiles = _IMAGES * np.ceil(images / _IMAGES) * np.ceil(out.height / 4.0) * np.ceil(out.width / 4.0)
    separate = [36.0 * np.ceil(tiles / _TILES) * np.ceil(made / channels_out) for channels_out in (_OLD, _NEW)]
    single, grouped = (count * np.ceil(made / _CHANNELS) for count in _groups(images, out))
    plain = np.ceil(images * out.area / _PLAIN[0]) * np.ceil(made / _PLAIN[1])
    blocks = np.array([separate[0], single, separate[1], grouped, plain])
    # A block of F(2 x 2) has 16 products of a quarter of its outputs; the plain product has 9 per channel in.
    fused = 4.0 * _OUTPUTS * _CHANNELS * (channels + _AROUND[1]) / _SPEED[1]
    old, new = (_TILES * size * (channels + _AROUND[0]) / _SPEED[0] for size in (_OLD, _NEW))
    usual = _PLAIN[0] * _PLAIN[1] * (9.0 * channels + _AROUND[2]) / _SPEED[2]
    fill = images * out.area * made * 9.0 * channels / (blocks * np.array([old, fused, new, fused, usual]))

    data, weights = images * (channels * plane(table, "input_size").area + made * out.area), 9.0 * channels * made
    around = data + 36.0 * tiles * (channels + made) + _GATHERED[0] * (weights + 36.0 * channels * made)
    gathered = _GATHERED[1] * weights
    moved = np.array([around, gathered, around, gathered, np.zeros(len(rows))])
    return Transformed(rows, blocks, fill, passes * moved * DTYPE_BYTES[table.dtype])


def _groups(images: Floats, out: Plane) -> tuple[Floats, Floats]:
    """Groups of outputs that blocks of F(2 x 2) have, of single images, and of several where that makes them fewer."""
    counts = np.array(
        [
            np.ceil(images / together) * np.ceil(out.height / height) * np.ceil(out.width / width)
            for together, height, width in _GROUPS
        ]
    )
    fewest = counts.min(axis=0)
    return counts[0], np.where(fewest < _WORTH * counts[0], fewest, counts[0])


def _rereads(table: OpTable) -> Rereads:
    """Nothing is read again; threads compute outputs of depthwise convolutions, and of several groups in FP32."""
    outputs, window = _outputs(table), plane(table, "kernel_size").area
    clocks = depthwise_clocks(table, outputs, window) + grouped_clocks(table, outputs, window)
    return Rereads.of_clocks(clocks)


def _weights(table: OpTable) -> Floats:
    """Elements of the filters."""
    return (
        table.column("out_channels")
        * table.column("in_channels")
        / table.column("groups")
        * (plane(table, "kernel_size").area)
    )


def fits(table: OpTable) -> list[Broken]:
    """The window fits into the padded input."""
    return [
        Broken(f"the kernel is {more} than the padded input", rows, "kernel_size")
        for more, rows in zip(("higher", "wider"), _too_large(table), strict=True)
    ]


def _too_large(table: OpTable) -> list[Bools]:
    size, kernel, padding = (plane(table, name) for name in ("input_size", "kernel_size", "padding"))
    return [inner > outer + 2.0 * pad for outer, inner, pad in zip(size, kernel, padding, strict=True)]


def check(table: OpTable) -> list[Broken]:
    """Groups divide both channels, and the window fits."""
    groups = table.column("groups")
    return [
        *fits(table),
        *(
            Broken(f"groups must divide {name}", table.column(name) % groups != 0, "groups")
            for name in ("in_channels", "out_channels")
        ),
    ]


def _row_sizes(table: OpTable) -> tuple[Floats, ...]:
    """Channels of images in and out; where each is a group, PyTorch has a kernel of its own, which needs no rows."""
    own = is_depthwise(table)
    return tuple(np.where(own, 0.0, table.column(name)) for name in ("in_channels", "out_channels"))


def _padded(table: OpTable) -> Bools:
    """Where cuDNN copies images and weights to channels of whole loads: windows of several elements."""
    windows: Bools = plane(table, "kernel_size").area > 1.0
    return windows


def _retile(table: OpTable, aligned: Bools, tiles: Grid) -> None:
    """Count padded channels in, fit tiles to groups, and fill blocks of depthwise kernels: an output is a thread."""
    channels = table.column("in_channels") / table.column("groups")
    loaded = np.where(channels <= _FEW_CHANNELS, _FEW_CHANNELS, LOAD_BYTES / DTYPE_BYTES[table.dtype])
    part = np.where(_padded(table) & ~aligned, channels / (np.ceil(channels / loaded) * loaded), 1.0)
    np.multiply(tiles.fill, part, out=tiles.fill)
    fit_tiles_to_groups(table, tiles)
    own = is_depthwise(table)
    tiles.fill[:, own] = 1.0
    tiles.blocks[:, own] = np.ceil(_outputs(table) / THREADS)[own]


def _grouped(sizes: Sizes) -> Sizes | None:
    """Groups of `group_width` channels, as many out as in; _ALL_CHANNELS: one group, with channels out of its own."""
    width, kernel = sizes.pop("group_width"), sizes["kernel_size"]
    groups, sizes = 1, sizes | {"padding": kernel // 2}
    if width != _ALL_CHANNELS:
        groups = -(-sizes["in_channels"] // width)
        sizes |= {"in_channels": groups * width, "out_channels": groups * width}
    return sizes | {"groups": groups}


def _build(make: Maker, row: Row) -> Made:
    """NCHW, without a bias."""
    groups, kernel = row.get("groups", 1), pair(row["kernel_size"])
    x = make.normal(row["b"], row["in_channels"], *pair(row["input_size"]))
    weight = make.normal(row["out_channels"], row["in_channels"] // groups, *kernel)
    stride, padding = pair(row.get("stride", 1)), pair(row.get("padding", 0))
    conv2d = make.torch.nn.functional.conv2d
    return Made(lambda: conv2d(x, weight, None, stride, padding, 1, groups), (x, weight))


CONV_OPS = (
    Op(
        "conv2d",
        "conv2d",
        (
            Dim("b", "images"),
            Dim("in_channels", "channels in"),
            Dim("out_channels", "channels out"),
            *WINDOW_DIMS,
            Dim("stride", "step of the window", default=1.0, pair=True),
            PADDING,
            Dim("groups", "groups of channels (in_channels: depthwise)", default=1.0),
            CHANNELS_LAST,
            *COMMON,
        ),
        work,
        check=check,
        products=products,
        transformed=transformed,
        handed=handed,
        relaid=relaid,
        saving=saving,
        row_sizes=_row_sizes,
        padded=_padded,
        retile=_retile,
        rereads=_rereads,
        prior=Prior.of("conv2d"),
        weights=_weights,
        ratios=(Ratio(("out_channels",), ("groups",)),),
        backward=OF_CONVOLUTION,
        saves=("input",),
        suite=Space(
            {
                "b": Log(1, 256),
                "in_channels": Log(3, 2048),
                "out_channels": Log(8, 2048),
                "kernel_size": Pick((1, 3, 5, 7)),
                "input_size": Log(7, 256),
                "stride": Pick((1, 1, 2)),
                # Depthwise, and as in ResNeXt and RegNet.
                "group_width": Pick((*[_ALL_CHANNELS] * 6, 1, 1, 8, 32)),
            },
            PRODUCTS,
            _build,
            _grouped,
            share=2,
        ),
        usual={
            "b": (1, 64),
            "in_channels": (16, 512),
            "out_channels": (16, 512),
            "input_size": (8, 128),
            "kernel_size": 3,
            "padding": 1,
        },
        example={"b": 32, "in_channels": 128, "out_channels": 128, "kernel_size": 3, "input_size": 56},
    ),
)
