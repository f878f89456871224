"""Lowering of diffusion transformers: a Denoiser to the rows of one device, one forward pass of it.

Blocks: the embeddings of latent, text and time step, one per distinct block with its repeats, the output. `run.batch`
samples, each `run.image_size` by `run.image_width` pixels and `run.frames` frames, with `run.sequence` tokens of text.
"""

from __future__ import annotations

from app.graphs.diffusion.architecture import Denoiser
from app.graphs.diffusion.blocks import write_block
from app.graphs.diffusion.rows import DenoiserRows, Tokens
from app.graphs.refusal import refuse
from app.graphs.run import Run
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
