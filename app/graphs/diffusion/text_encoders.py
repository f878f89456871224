"""Rows of a pipeline's text encoders: all prompts of a batch, once per image."""

from __future__ import annotations

from collections.abc import Sequence

from app.graphs.diffusion.architecture import TextEncoder
from app.graphs.diffusion.rows import DenoiserRows
from app.graphs.run import Run
from app.graphs.transformers.row_writer import Flow
from app.tables.workload import Workload


def write_encoders(encoders: Sequence[TextEncoder], run: Run) -> Workload:
    """Return the rows of one device that encode the prompts of `run.batch` samples."""
    rows = DenoiserRows(encoders[0].width, run)
    for encoder in encoders:
        _embedded(rows, encoder, float(run.device_batch))
        rows.builder.begin(encoder.layers)
        _layer(rows, encoder, float(run.device_batch))
    return rows.builder.build()


def _embedded(rows: DenoiserRows, encoder: TextEncoder, batch: float) -> None:
    """Add the lookup of the prompts' tokens."""
    count, held = batch * encoder.tokens, float(encoder.vocabulary) * encoder.width
    rows.builder.begin()
    rows.add("memory", (), outputs=count * encoder.width, name="text_encoder.embedding", parameters=held,
             bytes=2.0 * count * encoder.width * rows.size)  # fmt: skip


def _layer(rows: DenoiserRows, encoder: TextEncoder, batch: float) -> None:
    """Add one layer: attention and a feed-forward part, each behind a norm."""
    width, count = encoder.width, batch * encoder.tokens
    x = _norm(rows, encoder, (), count, "text_encoder.norm")
    qkv: Flow = ()
    for part, heads in (("query", encoder.heads), ("key", encoder.kv_heads), ("value", encoder.kv_heads)):
        qkv += rows.linear(x, count, heads * encoder.head_dim, width, f"text_encoder.{part}", bias=encoder.biased)
    y = _attended(rows, encoder, qkv, batch)
    y = rows.linear(y, count, width, encoder.heads * encoder.head_dim, "text_encoder.output", bias=encoder.biased)
    x = rows.summed_in(y, count, width, "text_encoder.attention")
    y = _norm(rows, encoder, x, count, "text_encoder.mlp.norm")
    up = rows.linear(y, count, encoder.inner, width, "text_encoder.mlp.up", bias=encoder.biased)
    x = rows.each("gelu", up, count, encoder.inner, "text_encoder.mlp.activation")
    if encoder.gated:
        gate = rows.linear(y, count, encoder.inner, width, "text_encoder.mlp.gate")
        x = rows.each("mul", (*x, *gate), count, encoder.inner, "text_encoder.mlp.product")
    x = rows.linear(x, count, width, encoder.inner, "text_encoder.mlp.down", bias=encoder.biased)
    rows.summed_in(x, count, width, "text_encoder.mlp")


def _norm(rows: DenoiserRows, encoder: TextEncoder, x: Flow, count: float, name: str) -> Flow:
    """Add a norm: a layer norm where linear layers have biases (CLIP), else an RMS norm."""
    if encoder.biased:
        return rows.plain_norm(x, count, encoder.width, name, affine=True)
    return rows.rms_norm(x, count, encoder.width, name)


def _attended(rows: DenoiserRows, encoder: TextEncoder, qkv: Flow, batch: float) -> Flow:
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
    x = (rows.add("softmax", x, outputs=heads * tokens**2, name="text_encoder.softmax", b=heads * tokens, h=tokens),)
    return rows.bmm((*x, *qkv), (heads, tokens, size, tokens), "text_encoder.weighted")
