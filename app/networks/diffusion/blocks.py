"""Rows of a denoiser's blocks; each block reads its own input and writes the residual stream."""

from __future__ import annotations

from app.networks.diffusion.architecture import Block, CrossBlock, Denoiser, JointBlock, SingleBlock, TextBlock
from app.networks.diffusion.rows import DenoiserRows, Tokens
from app.networks.transformers.row_writer import Flow


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


def write_cross_block(rows: DenoiserRows, block: CrossBlock, model: Denoiser, tokens: Tokens) -> None:
    """Add one block."""
    width, count = model.width, tokens.batch * tokens.image
    # Norms with weights are those of the attention to the text first, as in Wan.
    affine = block.affine > 1
    rows.modulations(block.modulations, tokens.batch, "modulation")
    if block.table:
        _table(rows, block, width, tokens.batch)
    x: Flow = ()
    if block.skip:
        x = rows.joined(x, count, 2.0 * width, "skip.joined")
        x = rows.plain_norm(x, count, 2.0 * width, "skip.norm", affine=True, precise=block.precise)
        x = rows.linear(x, count, width, 2.0 * width, "skip", bias=True)
    if block.modulates:
        y = rows.modulated_norm(x, count, width, "norm", affine=affine, precise=block.precise)
    else:
        y = rows.plain_norm(x, count, width, "norm", affine=affine, precise=block.precise)
        y = rows.each("add_scalar", y, count, width, "norm.shift") if rows.eager else y
    y = _attended_image(rows, block, model, tokens, y)
    x = _summed(rows, block, (*x, *y), count, width, "attention")
    y = (
        rows.plain_norm(x, count, width, "cross.norm", affine=block.affine > 0, precise=block.precise)
        if block.text_norm
        else x
    )
    y = _attended_text(rows, block, model, tokens, y)
    x = rows.each("add", (*dict.fromkeys((*x, *y)),), count, width, "cross.residual")
    norm = rows.modulated_norm if block.modulates else rows.plain_norm
    y = norm(x, count, width, "mlp.norm", affine=affine, precise=block.precise)
    y = _convolved(rows, block, y, tokens, width) if block.convolves else rows.fed(y, count, width, block.inner, "mlp")
    _summed(rows, block, (*dict.fromkeys((*x, *y)),), count, width, "mlp")


def _summed(rows: DenoiserRows, block: CrossBlock, x: Flow, count: float, width: float, name: str) -> Flow:
    """Add the residual sum, behind a gate where the block has them."""
    return (rows.gated_sum if block.modulates else rows.summed_in)(x, count, width, name)


def _table(rows: DenoiserRows, block: CrossBlock, width: float, batch: float) -> None:
    """Add the sum of the shared modulation and the block's learned vectors."""
    held = float(block.table) * width
    rows.add("add_scalar", outputs=batch * held, name="modulation.table", parameters=held, b=batch, h=held)


def _attended_image(rows: DenoiserRows, block: CrossBlock, model: Denoiser, tokens: Tokens, x: Flow) -> Flow:
    """Add the attention over the image's tokens with its projections."""
    width, inner, count = model.width, model.heads * model.head_dim, tokens.batch * tokens.image
    heads = model.heads, model.head_dim
    qkv: Flow = ()
    for part in ("query", "key", "value"):
        y = rows.linear(x, count, inner, width, f"attention.{part}", bias=block.bias)
        qkv += y if part == "value" else rows.head_norm(y, count, heads, block.head_norm, f"attention.{part}_norm")
    qkv = rows.turned(qkv, count, heads, "attention") if block.rotary else qkv
    if block.linear:
        y = _linear_attention(rows, qkv, model, tokens)
    else:
        y = rows.attended(qkv, heads, tokens.batch, (tokens.image, tokens.image), "attention")
    return rows.linear(y, count, width, inner, "attention.output", bias=True)


def _linear_attention(rows: DenoiserRows, qkv: Flow, model: Denoiser, tokens: Tokens) -> Flow:
    """Add attention with ReLU kernels: values times keys, that times queries, and a division by the keys' sum; FP32.

    The keys' sum is one more row of values, of ones.
    """
    heads, size, image = model.heads, float(model.head_dim), tokens.image
    batched, count = tokens.batch * heads, tokens.batch * tokens.image
    inner, elements = heads * size, count * heads * size
    q = rows.cast(rows.each("relu", qkv, count, inner, "attention.query_relu"), elements, "attention.query_cast")
    k = rows.cast(rows.each("relu", qkv, count, inner, "attention.key_relu"), elements, "attention.key_cast")
    v = rows.cast(qkv, elements, "attention.value_cast")
    v = rows.fp32("copy", v, batched, (size + 1.0) * image, "attention.value_padded")
    state = rows.bmm((*v, *k), (batched, size + 1.0, size, image), "attention.state", dtype="fp32")
    y = rows.bmm((*state, *q), (batched, size + 1.0, image, size), "attention.read", dtype="fp32")
    divided = rows.fp32("div_scalar", y, batched, size * image, "attention.divided")
    return rows.cast(divided, elements, "attention.cast_back")


def _attended_text(rows: DenoiserRows, block: CrossBlock, model: Denoiser, tokens: Tokens, x: Flow) -> Flow:
    """Add the attention of the image's tokens to the text's with its projections."""
    width, heads = model.width, (block.text_heads, block.text_head_dim)
    inner, image, text = heads[0] * heads[1], tokens.batch * tokens.image, tokens.batch * tokens.text
    q = rows.linear(x, image, inner, width, "cross.query", bias=True)
    k = rows.linear((), text, inner, block.text, "cross.key", bias=True)
    v = rows.linear((), text, inner, block.text, "cross.value", bias=True)
    q = rows.head_norm(q, image, heads, block.head_norm, "cross.query_norm")
    k = rows.head_norm(k, text, heads, block.head_norm, "cross.key_norm")
    q = rows.rotated(q, image * heads[0], heads[1], "cross.query_rotary") if block.text_rotary else q
    y = rows.attended((*q, *k, *v), heads, tokens.batch, (tokens.image, tokens.text), "cross.attention")
    return rows.linear(y, image, width, inner, "cross.output", bias=True)


def _convolved(rows: DenoiserRows, block: CrossBlock, x: Flow, tokens: Tokens, width: float) -> Flow:
    """Add the feed-forward part of convolutions: to twice the inner features, a depthwise one, a gate, and back."""
    both, count = 2.0 * block.inner, tokens.batch * tokens.image
    plane = (tokens.high, tokens.wide)
    x = rows.joined(x, count, width, "mlp.channels_first")
    x = rows.convolution(x, tokens.batch, (width, both), plane, "mlp.up")
    x = rows.each("silu", x, count, both, "mlp.activation")
    x = rows.convolution(x, tokens.batch, (both, both), plane, "mlp.depthwise", kernel=3, groups=both)
    gate = rows.each("silu", x, count, block.inner, "mlp.gate_activation")
    x = rows.each("mul", (*x, *gate), count, block.inner, "mlp.gate")
    return rows.convolution(x, tokens.batch, (block.inner, width), plane, "mlp.down", bias=False)
