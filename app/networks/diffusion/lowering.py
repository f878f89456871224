"""Lowering of diffusion pipelines: a Denoiser, its text encoders and its decoder of images to the rows of one device.

One forward pass of the denoiser has as blocks the embeddings of latent, text and time step, one per distinct block with
its repeats, and the output: `run.batch` samples, each `run.image_size` by `run.image_width` pixels and `run.frames`
frames, with `run.sequence` tokens of text. Prompts are encoded, and latents decoded, once per image.

Convolutions take most of the decoder's time. A group norm reads its input twice and writes once; an RMS norm over
channels moves them to the end and back around it.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.networks.diffusion.architecture import Denoiser, ImageDecoder, TextEncoder
from app.networks.diffusion.blocks import write_block
from app.networks.diffusion.rows import DenoiserRows, Tokens
from app.networks.run import Run, refuse
from app.networks.transformers.row_writer import Flow
from app.tables.workload import Workload


def write(model: Denoiser, run: Run) -> Workload:
    """Return the rows of one device. Raises BadInput for images and videos that are no whole number of tokens."""
    rows, tokens = DenoiserRows(model.width, run), tokens_of(model, run)
    rows.builder.begin()
    _embedded(rows, model, tokens)
    for block, repeats in model.blocks:
        rows.builder.begin(repeats)
        write_block(rows, block, model, tokens)
    rows.builder.begin()
    _output(rows, model, tokens)
    return rows.builder.build()


def tokens_of(model: Denoiser, run: Run) -> Tokens:
    """Return the tokens of a device. Raises BadInput that names a size which the autoencoder and patches refuse."""
    grid = model.grid
    for name, pixels in (("image_size", run.image_size), ("image_width", run.image_width)):
        if pixels % grid.side:
            refuse(("workload", name), f"must be a multiple of {grid.side} pixels, a token's side; found {pixels}")
    if run.frames > 1 and not grid.frames:
        refuse(("workload", "frames"), "this transformer makes images: it has one frame")
    latent = (run.frames - 1) // max(grid.frames, 1) + 1
    if grid.frames and (run.frames - 1) % grid.frames:
        why = f"must be one more than a multiple of {grid.frames}, which the autoencoder compresses"
        refuse(("workload", "frames"), f"{why}; found {run.frames}")
    return Tokens(
        float(run.device_batch),
        float(run.image_size // grid.side),
        float(run.image_width // grid.side),
        float(-(-latent // grid.depth)),  # pipelines pad to whole tokens
        float(run.sequence),
    )


def _embedded(rows: DenoiserRows, model: Denoiser, tokens: Tokens) -> None:
    """Add the embeddings: patches (their convolution does not overlap, so it is a product), text, time step."""
    width, channels = model.width, model.grid.channels
    held = channels * width + (width if model.patch_bias else 0) + model.held
    rows.linear((), tokens.batch * tokens.image, width, channels, "patches", parameters=held)
    rows.chained((), tokens.batch * tokens.text, model.text_layers, "text")
    for layers in model.conditioning:
        rows.chained((), tokens.batch, layers, "conditioning")


def _output(rows: DenoiserRows, model: Denoiser, tokens: Tokens) -> None:
    """Add the last norm with its modulation, and the projection to the latent's channels."""
    count = tokens.batch * tokens.image
    rows.chained((), tokens.batch, model.modulation_out, "modulation")
    x = rows.modulated_norm((), count, model.width, "final_norm")
    rows.linear(x, count, model.out, model.width, "output", bias=True)


def write_encoders(encoders: Sequence[TextEncoder], run: Run) -> Workload:
    """Return the rows of one device that encode the prompts of `run.batch` samples."""
    rows = DenoiserRows(encoders[0].width, run)
    for encoder in encoders:
        _prompts(rows, encoder, float(run.device_batch))
        rows.builder.begin(encoder.layers)
        _encoder_layer(rows, encoder, float(run.device_batch))
    return rows.builder.build()


def _prompts(rows: DenoiserRows, encoder: TextEncoder, batch: float) -> None:
    """Add the lookup of the prompts' tokens."""
    count, held = batch * encoder.tokens, float(encoder.vocabulary) * encoder.width
    rows.builder.begin()
    rows.add("memory", (), outputs=count * encoder.width, name="text_encoder.embedding", parameters=held,
             bytes=2.0 * count * encoder.width * rows.size)  # fmt: skip


def _encoder_layer(rows: DenoiserRows, encoder: TextEncoder, batch: float) -> None:
    """Add one layer: attention and a feed-forward part, each behind a norm."""
    width, count = encoder.width, batch * encoder.tokens
    x = _encoder_norm(rows, encoder, (), count, "text_encoder.norm")
    qkv: Flow = ()
    for part, heads in (("query", encoder.heads), ("key", encoder.kv_heads), ("value", encoder.kv_heads)):
        qkv += rows.linear(x, count, heads * encoder.head_dim, width, f"text_encoder.{part}", bias=encoder.biased)
    y = _encoder_attention(rows, encoder, qkv, batch)
    y = rows.linear(y, count, width, encoder.heads * encoder.head_dim, "text_encoder.output", bias=encoder.biased)
    x = rows.summed_in(y, count, width, "text_encoder.attention")
    y = _encoder_norm(rows, encoder, x, count, "text_encoder.mlp.norm")
    up = rows.linear(y, count, encoder.inner, width, "text_encoder.mlp.up", bias=encoder.biased)
    x = rows.each("gelu", up, count, encoder.inner, "text_encoder.mlp.activation")
    if encoder.gated:
        gate = rows.linear(y, count, encoder.inner, width, "text_encoder.mlp.gate")
        x = rows.each("mul", (*x, *gate), count, encoder.inner, "text_encoder.mlp.product")
    x = rows.linear(x, count, width, encoder.inner, "text_encoder.mlp.down", bias=encoder.biased)
    rows.summed_in(x, count, width, "text_encoder.mlp")


def _encoder_norm(rows: DenoiserRows, encoder: TextEncoder, x: Flow, count: float, name: str) -> Flow:
    """Add a norm: a layer norm where linear layers have biases (CLIP), else an RMS norm."""
    if encoder.biased:
        return rows.plain_norm(x, count, encoder.width, name, affine=True)
    return rows.rms_norm(x, count, encoder.width, name)


def _encoder_attention(rows: DenoiserRows, encoder: TextEncoder, qkv: Flow, batch: float) -> Flow:
    """Add the attention of all tokens to all, in one kernel or in parts."""
    tokens, size = float(encoder.tokens), float(encoder.head_dim)
    if not (encoder.eager and rows.eager):
        return rows.attended(
            qkv, (encoder.heads, encoder.head_dim), batch, (tokens, tokens), "text_encoder.attention",
            kv_heads=encoder.kv_heads,
        )  # fmt: skip
    heads = batch * encoder.heads
    x = rows.bmm(qkv, (heads, tokens, tokens, size), "text_encoder.scores")
    x = rows.each("add", x, heads * tokens, tokens, "text_encoder.bias")
    x = rows.each("softmax", x, heads * tokens, tokens, "text_encoder.softmax")
    return rows.bmm((*x, *qkv), (heads, tokens, size, tokens), "text_encoder.weighted")


# Height and width of a level's plane.
_Plane = tuple[float, float]
_COLOURS = 3.0
# Traffic of a norm in PyTorch, in reads and writes of its input: group norm; RMS norm with two transpositions.
_GROUP_NORM, _CHANNEL_NORM = 3.0, 6.0
# Inner features of DC-AE's feed-forward part over its channels, and the window of its attention's second scale.
_GLU, _SCALE = 4.0, 5


def write_decoder(decoder: ImageDecoder | None, run: Run) -> Workload:
    """Return the rows of one device that decode `run.batch` images. Raises BadInput if the model makes videos."""
    if decoder is None:
        refuse(("workload", "part"), "the autoencoder of videos is not known here: use text_encoders or denoiser")
    rows = DenoiserRows(decoder.channels[-1], run)
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
    x = _decoder_norm(rows, decoder, (), images * plane[0] * plane[1], decoder.channels[0], "decoder.output_norm")
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
            x = _decoder_norm(rows, decoder, x, count, of, f"decoder.{name}_norm")
        if decoder.grouped or name == "second":
            x = rows.each("silu", x, count, of, f"decoder.{name}_activation")
        x = rows.convolution(x, images, (of, outputs), plane, f"decoder.{name}", kernel=3)
    if not decoder.grouped:
        x = _decoder_norm(rows, decoder, x, count, outputs, "decoder.norm")
    if inputs != outputs:
        rows.convolution((), images, channels, plane, "decoder.shortcut")
    rows.summed_in(x, count, outputs, "decoder")


def _decoder_norm(rows: DenoiserRows, decoder: ImageDecoder, x: Flow, count: float, width: float, name: str) -> Flow:
    passes = _GROUP_NORM if decoder.grouped else _CHANNEL_NORM
    moved = passes * count * width * rows.size
    return rows.add("memory", x, outputs=count * width, name=name, parameters=2.0 * width, bytes=moved)


def _middle(rows: DenoiserRows, images: float, width: float, plane: _Plane) -> None:
    """Add the middle of Stable Diffusion's decoder: attention with one head between two residual blocks."""
    grouped = ImageDecoder((int(width),), 0, 1, 0, grouped=True)
    count, pixels = images * plane[0] * plane[1], plane[0] * plane[1]
    for _ in range(2):
        _residual(rows, grouped, images, (width, width), plane)
    x = _decoder_norm(rows, grouped, (), count, width, "decoder.attention.norm")
    qkv: Flow = ()
    for part in ("query", "key", "value"):
        qkv += rows.linear(x, count, width, width, f"decoder.attention.{part}", bias=True)
    # A head of as many elements as channels, which no fused kernel takes.
    y = rows.bmm(qkv, (images, pixels, pixels, width), "decoder.attention.scores")
    y = rows.each("softmax", y, images * pixels, pixels, "decoder.attention.softmax")
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
    for name, sizes in (("state", (33.0, size, plane[0] * plane[1])), ("read", (33.0, plane[0] * plane[1], size))):
        x = rows.bmm(x, (images * heads, *sizes), f"decoder.attention.{name}", dtype="fp32")
    x = rows.linear(x, count, width, both, "decoder.attention.output")
    x = rows.summed_in(x, count, width, "decoder.attention")
    x = rows.convolution(x, images, (width, 2.0 * inner), plane, "decoder.mlp.up")
    x = rows.each("silu", x, count, 2.0 * inner, "decoder.mlp.activation")
    x = rows.convolution(x, images, (2.0 * inner, 2.0 * inner), plane, "decoder.mlp.depthwise", kernel=3,
                         groups=2.0 * inner)  # fmt: skip
    x = rows.each("mul", x, count, inner, "decoder.mlp.gate")
    x = rows.convolution(x, images, (inner, width), plane, "decoder.mlp.down", bias=False)
    rows.summed_in(x, count, width, "decoder.mlp")
