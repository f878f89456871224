"""Rows of multi-head latent attention (DeepSeek-V2, 2024)."""

from __future__ import annotations

from app.graphs.transformers.architecture import Attention, Latent
from app.graphs.transformers.attention import Span, rotated, rotation, softmax
from app.graphs.transformers.row_writer import Flow, RowWriter


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
    row = rows.add(
        "attention_mla",
        (*q, *k),
        outputs=tokens * heads * (latent.keys if decode else latent.value),
        name="attention",
        kv_bytes=cached * rows.kv_size if rows.caches else 0.0,
        kv_dtype=rows.kv_code,
        batch=span.batch,
        heads=heads,
        head_dim=latent.plain,
        query_length=span.queries,
        context_length=span.keys,
        latent_dim=latent.keys,
        rope_dim=spec.rotary,
    )
    if not decode:
        return (row,)
    out = (heads, tokens, latent.value, latent.keys)
    return rows.bmm((row,), out, "attention.expand", parameters=heads * latent.value * latent.keys)


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
    row = rows.add(
        "bmm",
        (*weights, *v),
        outputs=batched * span.queries * latent.value,
        name="attention.values",
        dtype=rows.product_dtype,
        kv_bytes=cached * (scored + latent.value) * rows.size if rows.caches else 0.0,
        b=batched,
        m=span.queries,
        n=latent.value,
        k=span.keys,
    )
    return rows.each("copy", (row,), batched * span.queries, latent.value, "attention.merge")
