"""Rows of the decoder of an autoencoder of images: from the latent to pixels, once per image.

Convolutions take most of the time. A group norm reads its input twice and writes once; an RMS norm over channels moves
them to the end and back around it.
"""

from __future__ import annotations

from app.graphs.diffusion.architecture import Denoiser, ImageDecoder
from app.graphs.diffusion.rows import DenoiserRows
from app.graphs.refusal import refuse
from app.graphs.run import Run
from app.graphs.transformers.row_writer import Flow
from app.tables.workload import Workload

# Height and width of a level's plane.
_Plane = tuple[float, float]
_COLOURS = 3.0
# Traffic of a norm in PyTorch, in reads and writes of its input: group norm; RMS norm with two transpositions.
_GROUP_NORM, _CHANNEL_NORM = 3.0, 6.0
# Inner features of DC-AE's feed-forward part over its channels, and the window of its attention's second scale.
_GLU, _SCALE = 4.0, 5


def write_decoder(model: Denoiser, run: Run) -> Workload:
    """Return the rows of one device that decode `run.batch` images. Raises BadInput if the model makes videos."""
    if model.decoder is None:
        refuse(("workload", "part"), "the autoencoder of videos is not known here: use text_encoders or denoiser")
    decoder, rows = model.decoder, DenoiserRows(model.decoder.channels[-1], run)
    images, top = float(run.device_batch), len(decoder.channels) - 1
    scale = 2.0**top
    plane = run.image_size / scale, run.image_width / scale
    rows.builder.begin()
    rows.convolution((), images, (decoder.latent, decoder.channels[-1]), plane, "decoder.input", kernel=3)
    if decoder.grouped:
        _middle(rows, images, decoder.channels[-1], plane)
    for level in range(top, -1, -1):
        before = decoder.channels[min(level + 1, top)]
        plane = run.image_size / 2.0**level, run.image_width / 2.0**level
        _level(rows, decoder, level, (images, before), plane)
    rows.builder.begin()
    x = _norm(rows, decoder, (), images * plane[0] * plane[1], decoder.channels[0], "decoder.output_norm")
    rows.convolution(x, images, (decoder.channels[0], _COLOURS), plane, "decoder.output", kernel=3)
    return rows.builder.build()


def _level(rows: DenoiserRows, decoder: ImageDecoder, level: int, inputs: tuple[float, float], plane: _Plane) -> None:
    """Add the blocks of a level, behind the upsampling from the level before; `inputs` are images and channels."""
    (images, before), width = inputs, float(decoder.channels[level])
    count = images * plane[0] * plane[1]
    rows.builder.begin()
    if level < len(decoder.channels) - 1:
        # Stable Diffusion convolves before it changes the channels, DC-AE as it changes them.
        after = before if decoder.grouped else width
        rows.moved((), count * before, 1.25 * rows.size, "decoder.enlarged")
        rows.convolution((), images, (before, after), plane, "decoder.upsampling", kernel=3)
    blocks = decoder.blocks
    if decoder.grouped and before != width:
        _residual(rows, decoder, images, (before, width), plane)
        blocks -= 1
    rows.builder.begin(blocks)
    if level < decoder.residual:
        _residual(rows, decoder, images, (width, width), plane)
    else:
        _linear_attention(rows, images, width, plane)


def _residual(
    rows: DenoiserRows, decoder: ImageDecoder, images: float, channels: tuple[float, float], plane: _Plane
) -> None:
    """Add a residual block: two convolutions with their norms and activations, and the sum."""
    (inputs, outputs), count = channels, images * plane[0] * plane[1]
    x: Flow = ()
    for name, of in (("first", inputs), ("second", outputs)):
        if decoder.grouped:
            x = _norm(rows, decoder, x, count, of, f"decoder.{name}_norm")
        if decoder.grouped or name == "second":
            x = rows.each("silu", x, count, of, f"decoder.{name}_activation")
        x = rows.convolution(x, images, (of, outputs), plane, f"decoder.{name}", kernel=3)
    if not decoder.grouped:
        x = _norm(rows, decoder, x, count, outputs, "decoder.norm")
    if inputs != outputs:
        rows.convolution((), images, channels, plane, "decoder.shortcut")
    rows.summed_in(x, count, outputs, "decoder")


def _norm(rows: DenoiserRows, decoder: ImageDecoder, x: Flow, count: float, width: float, name: str) -> Flow:
    passes = _GROUP_NORM if decoder.grouped else _CHANNEL_NORM
    return (rows.add("memory", x, outputs=count * width, name=name, parameters=2.0 * width,
                     bytes=passes * count * width * rows.size),)  # fmt: skip


def _middle(rows: DenoiserRows, images: float, width: float, plane: _Plane) -> None:
    """Add the middle of Stable Diffusion's decoder: attention with one head between two residual blocks."""
    grouped = ImageDecoder((int(width),), 0, 1, 0, grouped=True)
    count, pixels = images * plane[0] * plane[1], plane[0] * plane[1]
    for _ in range(2):
        _residual(rows, grouped, images, (width, width), plane)
    x = _norm(rows, grouped, (), count, width, "decoder.attention.norm")
    qkv: Flow = ()
    for part in ("query", "key", "value"):
        qkv += rows.linear(x, count, width, width, f"decoder.attention.{part}", bias=True)
    # A head of as many elements as channels, which no fused kernel takes.
    y = rows.bmm(qkv, (images, pixels, pixels, width), "decoder.attention.scores")
    y = (rows.add("softmax", y, outputs=images * pixels**2, name="decoder.attention.softmax",
                  b=images * pixels, h=pixels),)  # fmt: skip
    y = rows.bmm((*y, *qkv), (images, pixels, width, pixels), "decoder.attention.weighted")
    rows.summed_in(rows.linear(y, count, width, width, "decoder.attention.output", bias=True), count, width, "decoder")


def _linear_attention(rows: DenoiserRows, images: float, width: float, plane: _Plane) -> None:
    """Add a block of DC-AE: linear attention at two scales, and a feed-forward part that convolves."""
    count, both, inner = images * plane[0] * plane[1], 2.0 * width, _GLU * width
    x = rows.linear((), count, 3.0 * width, width, "decoder.attention.qkv")
    x = rows.convolution(x, images, (3.0 * width, 3.0 * width), plane, "decoder.attention.scale", kernel=_SCALE,
                         groups=3.0 * width, bias=False)  # fmt: skip
    x = rows.fp32("relu", x, count, both, "decoder.attention.relu")[:1]
    heads, size = 2.0 * width / 32.0, 32.0
    for name, (m, n, k) in (("state", (33.0, size, plane[0] * plane[1])), ("read", (33.0, plane[0] * plane[1], size))):
        x = (rows.add("bmm", x, outputs=images * heads * m * n, name=f"decoder.attention.{name}", dtype="fp32",
                      b=images * heads, m=m, n=n, k=k),)  # fmt: skip
    x = rows.linear(x, count, width, both, "decoder.attention.output")
    x = rows.summed_in(x, count, width, "decoder.attention")
    x = rows.convolution(x, images, (width, 2.0 * inner), plane, "decoder.mlp.up")
    x = rows.each("silu", x, count, 2.0 * inner, "decoder.mlp.activation")
    x = rows.convolution(x, images, (2.0 * inner, 2.0 * inner), plane, "decoder.mlp.depthwise", kernel=3,
                         groups=2.0 * inner)  # fmt: skip
    x = rows.each("mul", x, count, inner, "decoder.mlp.gate")
    x = rows.convolution(x, images, (inner, width), plane, "decoder.mlp.down", bias=False)
    rows.summed_in(x, count, width, "decoder.mlp")
