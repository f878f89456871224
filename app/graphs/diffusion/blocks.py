"""Rows of a denoiser's blocks; each block reads its own input and writes the residual stream."""

from __future__ import annotations

from app.graphs.diffusion.architecture import Block, CrossBlock, Denoiser, JointBlock, SingleBlock, TextBlock
from app.graphs.diffusion.cross_block import write_cross_block
from app.graphs.diffusion.rows import DenoiserRows, Tokens
from app.graphs.transformers.row_writer import Flow


def write_block(rows: DenoiserRows, block: Block, model: Denoiser, tokens: Tokens) -> None:
    """Add one block."""
    if isinstance(block, JointBlock):
        _joint(rows, block, model, tokens)
    elif isinstance(block, SingleBlock):
        _single(rows, block, model, tokens)
    elif isinstance(block, CrossBlock):
        write_cross_block(rows, block, model, tokens)
    else:
        _text(rows, block, model, tokens)


def _projected(
    rows: DenoiserRows, x: Flow, count: float, model: Denoiser, block: JointBlock | SingleBlock, name: str
) -> Flow:
    """Add queries, keys and values of `count` tokens with their norms, and return their rows."""
    heads, inner = (model.heads, model.head_dim), model.heads * model.head_dim
    bias = block.bias if isinstance(block, JointBlock) else True
    out: Flow = ()
    for part in ("query", "key", "value"):
        y = rows.linear(x, count, inner, model.width, f"{name}.{part}", bias=bias)
        out += y if part == "value" else rows.head_norm(y, count, heads, block.head_norm, f"{name}.{part}_norm")
    return out


def _joint(rows: DenoiserRows, block: JointBlock, model: Denoiser, tokens: Tokens) -> None:
    width, batch = model.width, tokens.batch
    image, text = batch * tokens.image, batch * tokens.text
    heads, inner = (model.heads, model.head_dim), model.heads * model.head_dim
    rows.modulations(block.modulations, batch, "modulation")
    x = rows.modulated_norm((), image, width, "norm", affine=block.affine)
    c = rows.modulated_norm((), text, width, "text.norm")
    if block.shared:
        x = rows.joined((*x, *c), image + text, width, "joined")
        qkv = _projected(rows, x, image + text, model, block, "attention")
    else:
        qkv = _projected(rows, x, image, model, block, "attention")
        qkv += _projected(rows, c, text, model, block, "attention.text")
        for part in ("query", "key", "value"):
            qkv = (*qkv, *rows.joined(qkv, image + text, inner, f"attention.{part}_joined"))
    qkv = rows.turned(qkv, image if block.shared else image + text, heads, "attention") if block.rotary else qkv
    both = tokens.image + tokens.text
    y = rows.attended(qkv, heads, batch, (both, both), "attention")
    if block.image_again:
        again = rows.modulated_norm((), image, width, "attention.again_norm")
        again = _projected(rows, again, image, model, block, "attention.again")
        again = rows.attended(again, heads, batch, (tokens.image, tokens.image), "attention.again")
        rows.gated_sum(
            rows.linear(again, image, width, inner, "attention.again_output", bias=True),
            image,
            width,
            "attention.again",
        )
    if block.shared:
        y = rows.linear(y, image + text, width, inner, "attention.output", bias=True)
        _both_fed(rows, block, y, (image, text), width)
        return
    _fed(rows, block, rows.linear(y, image, width, inner, "attention.output", bias=True), image, width, "")
    if not block.text_ends:
        _fed(rows, block, rows.linear(y, text, width, inner, "attention.text_output", bias=True), text, width, "text.")


def _fed(rows: DenoiserRows, block: JointBlock, y: Flow, count: float, width: float, prefix: str) -> None:
    """Add a stream's residual sum and its feed-forward part."""
    x = rows.gated_sum(y, count, width, f"{prefix}attention")
    y = rows.modulated_norm(x, count, width, f"{prefix}mlp.norm")
    rows.gated_sum(rows.fed(y, count, width, block.inner, f"{prefix}mlp"), count, width, f"{prefix}mlp")


def _both_fed(rows: DenoiserRows, block: JointBlock, y: Flow, counts: tuple[float, float], width: float) -> None:
    """Add the residual sums of both streams and the feed-forward part that they share."""
    total, x = sum(counts), y
    for name, count, affine in (("", counts[0], block.affine), ("text.", counts[1], False)):
        z = rows.gated_sum(y, count, width, f"{name}attention")
        x = (*x, *rows.modulated_norm(z, count, width, f"{name}mlp.norm", affine=affine))
    x = rows.fed(rows.joined(x, total, width, "mlp.joined"), total, width, block.inner, "mlp")
    rows.gated_sum(x, total, width, "mlp")


def _single(rows: DenoiserRows, block: SingleBlock, model: Denoiser, tokens: Tokens) -> None:
    width, inner, both = model.width, model.heads * model.head_dim, tokens.image + tokens.text
    count = tokens.batch * both
    rows.modulations(block.modulations, tokens.batch, "modulation")
    x = rows.modulated_norm((), count, width, "norm")
    up = rows.linear(x, count, block.inner, width, "mlp.up", bias=True)
    up = rows.each("gelu", up, count, block.inner, "mlp.activation")
    qkv = _projected(rows, x, count, model, block, "attention")
    qkv = rows.turned(qkv, count, (model.heads, model.head_dim), "attention") if block.rotary else qkv
    y = rows.attended(qkv, (model.heads, model.head_dim), tokens.batch, (both, both), "attention")
    y = rows.joined((*y, *up), count, inner + block.inner, "joined")
    rows.gated_sum(rows.linear(y, count, width, inner + block.inner, "output", bias=True), count, width, "block")


def _text(rows: DenoiserRows, block: TextBlock, model: Denoiser, tokens: Tokens) -> None:
    width, inner, count = model.width, model.heads * model.head_dim, tokens.batch * tokens.text
    rows.modulations(block.modulations, tokens.batch, "modulation")
    x = rows.plain_norm((), count, width, "text.norm", affine=True)
    qkv: Flow = ()
    for part in ("query", "key", "value"):
        qkv += rows.linear(x, count, inner, width, f"text.{part}", bias=True)
    y = rows.attended(qkv, (model.heads, model.head_dim), tokens.batch, (tokens.text, tokens.text), "text.attention")
    x = rows.gated_sum(rows.linear(y, count, width, inner, "text.output", bias=True), count, width, "text.attention")
    x = rows.plain_norm(x, count, width, "text.mlp.norm", affine=True)
    rows.gated_sum(rows.fed(x, count, width, block.inner, "text.mlp"), count, width, "text.mlp")
