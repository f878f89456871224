"""Rows of attention to compressed keys: multi-head latent attention (DeepSeek-V2, 2024), and modules that select keys.

A module is one operator with its projections, and the sum over devices. Tensor parallelism splits heads; what is
compressed or indexed is on every device.
"""

from __future__ import annotations

from app.networks.transformers.architecture import Attention, AttentionModule, Latent
from app.networks.transformers.attention import Span, rotated, rotation, softmax
from app.networks.transformers.row_writer import Flow, RowWriter
from app.ops.attention_module import INDEX_BYTES, KINDS, Sizes, weights


def latent_attention(rows: RowWriter, x: Flow, spec: Attention, latent: Latent, span: Span, width: float) -> Flow:
    """Add attention of the new tokens to all keys, from `width` features and back, and return its output rows."""
    x = rows.gathered(x, span.tokens, width)
    y = _attended(rows, x, spec, latent, span, width)
    inner = spec.heads * latent.value / rows.tensor
    if spec.gated:
        gate = rows.linear(x, span.tokens, inner, width, "attention.gate")
        y = rows.each("mul", (*y, *gate), span.tokens, inner, "attention.gated")
    y = rows.linear(y, span.tokens, width, inner, "attention.output", bias=spec.out_bias)
    return rows.summed(y, span.tokens, width)


def _attended(rows: RowWriter, x: Flow, spec: Attention, latent: Latent, span: Span, width: float) -> Flow:
    """Add the compression of queries and keys and the attention of all heads, and return the heads' output rows."""
    heads, tokens = spec.heads / rows.tensor, span.tokens
    scored, compressed = latent.plain + spec.rotary, latent.keys + spec.rotary
    q, k, depth = x, x, width
    if latent.query and rows.rules.merges_latent_down:
        q = k = rows.linear(x, tokens, latent.query + compressed, width, "attention.query_key_down", bias=spec.bias)
    elif latent.query:
        q = rows.linear(x, tokens, latent.query, width, "attention.query_down", bias=spec.bias)
    if latent.query:
        q, depth = rows.norm(q, tokens, latent.query, "attention.query_norm"), latent.query
    q = rows.linear(q, tokens, heads * scored, depth, "attention.query_up")
    if k is x:
        k = rows.linear(x, tokens, compressed, width, "attention.key_down", bias=spec.bias)
    k = rows.norm(k, tokens, latent.keys, "attention.key_norm")
    if rows.eager:
        expanded = heads * (latent.plain + latent.value)
        kv = rows.linear(k, tokens, expanded, latent.keys, "attention.key_up")
        q = rotation(rows, q, tokens * heads, spec.rotary, "attention.query")
        k = rotation(rows, k, tokens, spec.rotary, "attention.key")
        return _eager(rows, (q, (*k, *kv), kv), spec, latent, span)
    q = rotated(rows, (*q, *k), tokens, (heads + 1.0) * spec.rotary, compressed)
    return _fused(rows, q, k, spec, latent, span)


def _fused(rows: RowWriter, q: Flow, k: Flow, spec: Attention, latent: Latent, span: Span) -> Flow:
    """Add one fused kernel; in decode it reads the cached latent keys, and queries and values are expanded outside."""
    heads, tokens, decode = spec.heads / rows.tensor, span.tokens, rows.run.mode == "decode"
    if decode:
        into = (heads, tokens, latent.keys, latent.plain)
        q = rows.bmm(q, into, "attention.absorb", parameters=heads * latent.plain * latent.keys)
    else:
        expanded = heads * (latent.plain + latent.value)
        k = rows.linear(k, tokens, expanded, latent.keys, "attention.key_up")
    cached = span.batch * span.keys * (latent.keys + spec.rotary)
    together = span.together(rows.run.mode)
    y = rows.add(
        "attention_mla",
        (*q, *k),
        outputs=tokens * heads * (latent.keys if decode else latent.value),
        name="attention",
        kv_bytes=cached * rows.kv_size if rows.caches else 0.0,
        kv_dtype=rows.kv_code,
        batch=span.batch,
        heads=heads * together,
        head_dim=latent.plain,
        query_length=span.queries / together,
        context_length=span.keys,
        latent_dim=latent.keys,
        rope_dim=spec.rotary,
    )
    if not decode:
        return y
    out = (heads, tokens, latent.value, latent.keys)
    return rows.bmm(y, out, "attention.expand", parameters=heads * latent.value * latent.keys)


def _eager(rows: RowWriter, qkv: tuple[Flow, Flow, Flow], spec: Attention, latent: Latent, span: Span) -> Flow:
    """Add eager attention on expanded keys and values, which eager also caches."""
    (q, k, v), heads = qkv, spec.heads / rows.tensor
    batched, scored = span.batch * heads, latent.plain + spec.rotary
    cached = batched * span.keys
    k = rows.each("copy", k, cached, scored, "attention.key_cache")
    if rows.run.mode == "decode":
        v = rows.each("copy", v, cached, latent.value, "attention.value_cache")
    q = rows.each("copy", q, batched * span.queries, scored, "attention.query_join")
    scores = rows.bmm((*q, *k), (batched, span.queries, span.keys, scored), "attention.scores")
    weights = softmax(rows, scores, spec, (batched, span.queries, span.keys))
    kv_bytes = cached * (scored + latent.value) * rows.size if rows.caches else 0.0
    product = batched, span.queries, latent.value, span.keys
    y = rows.bmm((*weights, *v), product, "attention.values", kv_bytes=kv_bytes)
    return rows.each("copy", y, batched * span.queries, latent.value, "attention.merge")


def attention_module(rows: RowWriter, x: Flow, spec: AttentionModule, span: Span, width: float) -> Flow:
    """Add attention of the new tokens, from `width` features and back, and return its output rows."""
    x = rows.gathered(x, span.tokens, width)
    sizes, together = _sizes(spec, rows.tensor, width), span.together(rows.run.mode)
    y = rows.add(
        "attention_module",
        x,
        outputs=span.tokens * width,
        name="attention",
        dtype=rows.format_of("attention"),
        parameters=weights(sizes) + _norms(spec, sizes),
        kv_bytes=_kept_bytes(rows, spec, sizes, span) if rows.caches else 0.0,
        batch=span.batch * together,
        query_length=span.queries / together,
        context_length=span.keys,
        window=spec.window,
        kv_dtype=rows.kv_code,
        index_keys=spec.index_keys,
        **sizes._asdict(),
    )
    return rows.summed(y, span.tokens, width)


def _sizes(spec: AttentionModule, tensor: int, width: float) -> Sizes:
    """Return the sizes of one device."""
    return Sizes(
        variant=float(KINDS.index(spec.kind)),
        hidden=width,
        heads=spec.heads / tensor,
        kv_heads=max(spec.kv_heads / tensor, 1.0),
        head_dim=spec.head_dim,
        value_dim=spec.value_dim,
        latent_dim=spec.latent_dim,
        rope_dim=spec.rope_dim,
        query_rank=spec.query_rank,
        output_rank=spec.output_rank,
        output_groups=spec.output_groups / tensor if spec.output_rank else 1.0,
        index_heads=spec.index_heads,
        index_dim=spec.index_dim,
        compression=spec.compression,
    )


def _norms(spec: AttentionModule, sizes: Sizes) -> float:
    """Return the elements of norms, sinks, and the positions within a compressed key."""
    norms = spec.query_rank + spec.latent_dim + (2 * spec.head_dim if spec.head_norm else 0)
    norms = norms + (2 * spec.index_dim if spec.index_heads else 0)
    if spec.kind in ("csa", "hca"):
        both = 2 if spec.kind == "csa" else 1
        norms = norms + spec.head_dim + spec.compression * both * (spec.head_dim + spec.index_dim)
    return float(norms + (sizes.heads if spec.sinks else 0.0))


def _kept_bytes(rows: RowWriter, spec: AttentionModule, sizes: Sizes, span: Span) -> float:
    """Return the bytes of the cache: keys and values, and keys of the indexer."""
    if spec.kind in ("csa", "hca"):
        compressed = span.keys // spec.compression if spec.compression else 0.0
        elements = (min(span.keys, spec.window or span.keys) + compressed) * spec.head_dim
        indexed = compressed
    else:
        latent = spec.latent_dim + spec.rope_dim
        elements = span.keys * (latent or sizes.kv_heads * (spec.head_dim + spec.value_dim))
        indexed = span.keys
    index = indexed * spec.index_dim * INDEX_BYTES if spec.index_heads else 0.0
    kept: float = span.batch * (elements * rows.kv_size + index)
    return kept
