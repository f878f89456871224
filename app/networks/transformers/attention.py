"""Rows of attention: eager as its Hugging Face module computes it, or fused as FlashAttention.

Tensor parallelism is Megatron's (Shoeybi et al. 2019): heads are split over devices; with fewer heads of keys and
values than devices, each device holds a copy of one.
"""

from __future__ import annotations

from typing import NamedTuple

from app.coefficients import Coefficients
from app.networks.build import FP32_BYTES
from app.networks.run import Mode
from app.networks.transformers.architecture import Attention
from app.networks.transformers.row_writer import Flow, RowWriter

_FITTED = Coefficients("networks")

# Times that FlashAttention 1 takes of the second: 1.3 to 2.5 in Triton, 1.7 to 3.0 in CUDA (Dao 2023, section 4.1).
_FIRST_FLASH = _FITTED.number("first_flash")


class Span(NamedTuple):
    """Sequences of one device, new tokens per sequence, and keys that these see."""

    batch: float
    queries: float
    keys: float

    @property
    def tokens(self) -> float:
        """New tokens of all sequences."""
        return self.batch * self.queries

    def together(self, mode: Mode) -> float:
        """Queries of a sequence that read its keys once: of decode all, as so many times the heads would."""
        return self.queries if mode == "decode" else 1.0


def self_attention(rows: RowWriter, x: Flow, spec: Attention, span: Span, width: float) -> Flow:
    """Add attention of the new tokens to all keys, from `width` features and back, and return its output rows."""
    x = rows.gathered(x, span.tokens, width)
    qkv = _rotated(rows, _projected(rows, x, spec, span.tokens, width), spec, span)
    if spec.relative_rows:
        y = disentangled(rows, qkv, spec, span, width)
        qkv = (*dict.fromkeys((*qkv[0], *y)),), qkv[1], qkv[2]
    y = _chunked(rows, qkv, spec, span) if spec.chunk else _attended(rows, qkv, spec, span)
    inner = spec.heads * spec.value_dim / rows.tensor
    if spec.gated:  # the gate comes from the queries' projection
        y = rows.each("mul", (*y, *qkv[0]), span.tokens, inner, "attention.gate")
    y = rows.linear(y, span.tokens, width, inner, "attention.output", bias=spec.out_bias)
    return rows.summed(y, span.tokens, width)


def cross_attention(rows: RowWriter, x: Flow, encoded: Flow, spec: Attention, span: Span, width: float) -> Flow:
    """Add attention to the encoder's output, and return its output rows.

    Keys and values are computed once, in prefill; in decode their weights are resident but unused.
    """
    heads, shared = _dealt(spec, rows.tensor)
    x = rows.gathered(x, span.tokens, width)
    wide, held = heads * spec.head_dim, shared * spec.head_dim
    decode = rows.run.mode == "decode"
    resident = wide + 2.0 * held if decode else wide
    weights = resident * (width + spec.bias)
    q = rows.linear(x, span.tokens, wide, width, "cross.query", parameters=weights)
    k, v = encoded, encoded
    if not decode:
        k, v = (
            rows.linear(encoded, span.batch * span.keys, held, width, f"cross.{name}", bias=spec.bias)
            for name in ("key", "value")
        )
    y = _attended(rows, (q, k, v), spec, span)
    y = rows.linear(y, span.tokens, width, wide, "cross.output", bias=spec.out_bias)
    return rows.summed(y, span.tokens, width)


def _dealt(spec: Attention, tensor: int) -> tuple[float, float]:
    """Return the query heads, and the heads of keys and values, of one device."""
    return spec.heads / tensor, max(spec.kv_heads / tensor, 1.0)


def _projected(rows: RowWriter, x: Flow, spec: Attention, tokens: float, width: float) -> tuple[Flow, Flow, Flow]:
    """Add the projections to queries, keys and values of the new tokens, and return their rows."""
    heads, shared = _dealt(spec, rows.tensor)
    wide, held, valued = heads * spec.head_dim, shared * spec.head_dim, shared * spec.value_dim
    if spec.gated:
        wide = wide + heads * spec.value_dim
    if spec.keys_from_earlier:
        return rows.linear(x, tokens, wide, width, "attention.query", bias=spec.bias), (), ()
    if spec.query_rank:
        return _through_rank(rows, x, spec, (wide, held + valued), tokens, width)
    if spec.one_linear or rows.rules.merges_qkv:
        valued = 0.0 if spec.keys_as_values else valued
        qkv = rows.linear(x, tokens, wide + held + valued, width, "attention.qkv", bias=spec.bias)
        return qkv, qkv, qkv
    q = rows.linear(x, tokens, wide, width, "attention.query", bias=spec.bias)
    if spec.scale == "queries" and rows.in_parts:
        q = rows.each("mul_scalar", q, tokens, wide, "attention.scale")
    k = rows.linear(x, tokens, held, width, "attention.key", bias=spec.bias)
    if spec.keys_as_values:
        return q, k, k
    v = rows.linear(x, tokens, valued, width, "attention.value", bias=spec.bias)
    return q, k, v


def _through_rank(
    rows: RowWriter, x: Flow, spec: Attention, sizes: tuple[float, float], tokens: float, width: float
) -> tuple[Flow, Flow, Flow]:
    """Add the projection to compressed queries, keys and values, whole on each device, and that to all queries."""
    wide, keys_and_values = sizes
    first = rows.linear(x, tokens, spec.query_rank + keys_and_values, width, "attention.qkv_down", bias=spec.bias)
    q = rows.norm(first, tokens, spec.query_rank, "attention.query_norm", "rms_norm")
    q = rows.linear(q, tokens, wide, spec.query_rank, "attention.query_up")
    return q, first, first


def _rotated(rows: RowWriter, qkv: tuple[Flow, Flow, Flow], spec: Attention, span: Span) -> tuple[Flow, Flow, Flow]:
    """Add per-head norms and rotary positions of queries and keys, and return the rows of queries, keys and values."""
    q, k, v = qkv
    heads, shared = _dealt(spec, rows.tensor)
    if spec.keys_from_earlier:
        shared = 0.0
    if spec.head_norm:
        q = rows.norm(q, span.tokens * heads, spec.head_dim, "attention.query_norm", "rms_norm")
    if spec.head_norm and shared:
        k = rows.norm(k, span.tokens * shared, spec.head_dim, "attention.key_norm", "rms_norm")
    if spec.whole_norm:
        q = rows.norm(q, span.tokens, heads * spec.head_dim, "attention.query_norm", "rms_norm")
        k = rows.norm(k, span.tokens, shared * spec.head_dim, "attention.key_norm", "rms_norm")
    if spec.rotary and rows.in_parts and not rows.run.release.complex_rotary:
        q = rotation(rows, q, span.tokens * heads, spec.rotary, "attention.query")
        k = k if not shared else rotation(rows, k, span.tokens * shared, spec.rotary, "attention.key")
    elif spec.rotary:
        q = k = rotated(
            rows, (*q, *k), span.tokens, (heads + shared) * spec.rotary, shared * (spec.head_dim + spec.value_dim)
        )
    return q, k, v


def rotated(rows: RowWriter, x: Flow, tokens: float, turned: float, cached: float) -> Flow:
    """Add the rotary embedding of `turned` elements a token in one kernel, which a stack lets write `cached` ones."""
    if rows.rules.rotates_into_cache:
        return rows.each("rotary_cache", (*dict.fromkeys(x),), tokens, turned + cached, "attention.rotary_cache")
    if rows.run.release.complex_rotary:
        # Widened to FP32, multiplied and narrowed again, each by a kernel of its own; backward needs positions alone.
        moved = tokens * turned * (2.0 * rows.size + 4.0 * FP32_BYTES)
        return rows.add("memory", x, outputs=tokens * turned, saved=0.0, name="attention.rotary", bytes=moved)
    return rows.each("copy", x, tokens, turned, "attention.rotary")


def rotation(rows: RowWriter, x: Flow, b: float, h: float, name: str) -> Flow:
    """Add an eager rotary embedding, x cos + rotate_half(x) sin, and return its rows.

    It negates a half, swaps halves, and multiplies twice.
    """
    turned = rows.each("mul_scalar", x, b, h / 2.0, f"{name}.negated")
    turned = rows.each("copy", (*x, *turned), b, h, f"{name}.half")
    turned = rows.each("mul_scalar", turned, b, h, f"{name}.sine")
    straight = rows.each("mul_scalar", x, b, h, f"{name}.cosine")
    return rows.each("add", (*straight, *turned), b, h, f"{name}.rotary")


def disentangled(rows: RowWriter, qkv: tuple[Flow, Flow, Flow], spec: Attention, span: Span, width: float) -> Flow:
    """Add scores of contents against positions and of positions against contents (DeBERTa), and return their rows.

    Positions are projected by the weights of queries and keys, and scores of each distance are gathered for its pairs.
    """
    heads = spec.heads / rows.tensor
    batched, table, wide = span.batch * heads, float(spec.relative_rows), heads * spec.head_dim
    total: Flow = ()
    for of, x, tokens in (("key", qkv[0], span.queries), ("query", qkv[1], span.keys)):
        positions = rows.linear((), table, wide, width, f"attention.position_{of}", parameters=0.0)
        scores = rows.bmm((*x, *positions), (batched, tokens, table, spec.head_dim), f"attention.to_position_{of}")
        scores = rows.each("copy", scores, batched * span.queries, span.keys, f"attention.gather_{of}")
        total = rows.each("add", (*total, *scores), batched * span.queries, span.keys, f"attention.position_{of}.sum")
    return total


def _chunked(rows: RowWriter, qkv: tuple[Flow, Flow, Flow], spec: Attention, span: Span) -> Flow:
    """Add attention within chunks of the sequence, each as a sequence of its own (Llama 4), and return its rows.

    In decode the new token sees the last chunk only. Eager masks the scores of all pairs instead.
    """
    if rows.eager or span.keys <= spec.chunk:
        return _attended(rows, qkv, spec, span)
    if rows.run.mode == "decode":
        return _attended(rows, qkv, spec, span._replace(keys=(span.keys - 1) % spec.chunk + 1))
    whole, rest = span.keys // spec.chunk, span.keys % spec.chunk
    y = _attended(rows, qkv, spec, Span(span.batch * whole, spec.chunk, spec.chunk))
    return (*y, *_attended(rows, qkv, spec, Span(span.batch, rest, rest))) if rest else y


def _attended(rows: RowWriter, qkv: tuple[Flow, Flow, Flow], spec: Attention, span: Span) -> Flow:
    """Add attention of all heads, and return the rows of their concatenated outputs."""
    heads, shared = _dealt(spec, rows.tensor)
    cached = min(span.keys, spec.window or span.keys)
    both = spec.head_dim + spec.value_dim  # elements of a key and a value
    keeps = rows.caches and not spec.keys_from_earlier
    kv_bytes = span.batch * cached * shared * both * rows.kv_size if keeps else 0.0
    if rows.eager or spec.relative_rows:  # no fused kernel adds scores of positions
        return _eager(rows, qkv, spec, span, kv_bytes)
    if rows.run.parallelism.context > 1 and spec.causal:
        # The keys that a device's queries see on average: those of its share of the pairs, as one chunk at the end.
        span = span._replace(keys=(span.keys + span.queries) / 2.0)
    window: float = spec.window
    after, together = 0.0, span.together(rows.run.mode)
    if not spec.causal and span.queries > 1:
        # The same pairs of query and key as with a causal mask, for queries that stand later by the keys after each.
        after = min(spec.window // 2.0, span.queries - 1.0) if spec.window else span.queries - 1.0
        window = min(spec.window or span.keys, span.keys)
    return rows.add(
        "attention_decode" if rows.run.mode == "decode" else "attention_prefill",
        (*dict.fromkeys((*qkv[0], *qkv[1], *qkv[2])),),
        outputs=span.tokens * heads * spec.value_dim,
        name="attention",
        parameters=heads if spec.sinks else 0.0,
        kv_bytes=kv_bytes,
        kv_dtype=rows.kv_code,
        hybrid=rows.hybrid_code,
        count=_FIRST_FLASH if rows.run.release.first_flash else 1.0,
        batch=span.batch,
        heads=heads * together,
        kv_heads=shared,
        head_dim=both / 2.0,
        query_length=span.queries / together,
        context_length=span.keys + after,
        window=window,
    )


def _eager(rows: RowWriter, qkv: tuple[Flow, Flow, Flow], spec: Attention, span: Span, kv_bytes: float) -> Flow:
    """Add scores, softmax and the product with values as separate kernels, and a copy that concatenates the heads."""
    (q, k, v), (heads, shared) = qkv, _dealt(spec, rows.tensor)
    keys, batched = span.keys, span.batch * heads
    appends = rows.run.mode == "decode" and spec.causal  # the new token, to copies of the cache
    copies = not appends and (spec.copied == "always" or (spec.copied == "batched" and span.batch > 1))
    if appends:
        keys = min(keys, spec.window or keys)
        k = rows.each("copy", k, span.batch * shared * keys, spec.head_dim, "attention.key_cache")
        v = rows.each("copy", v, span.batch * shared * keys, spec.value_dim, "attention.value_cache")
    if shared < heads or copies:
        why = "repeat" if shared < heads else "copy"
        k = rows.each("copy", k, batched * keys, spec.head_dim, f"attention.key_{why}")
        v = rows.each("copy", v, batched * keys, spec.value_dim, f"attention.value_{why}")
    if copies:
        q = rows.each("copy", q, batched * span.queries, spec.head_dim, "attention.query_copy")
    scores = rows.bmm((*dict.fromkeys((*q, *k)),), (batched, span.queries, keys, spec.head_dim), "attention.scores")
    weights = softmax(rows, scores, spec, (batched, span.queries, keys))
    held = heads if spec.sinks else 0.0
    product = batched, span.queries, spec.value_dim, keys
    y = rows.bmm((*weights, *v), product, "attention.values", parameters=held, kv_bytes=kv_bytes)
    return rows.each("copy", y, batched * span.queries, spec.value_dim, "attention.merge")


def softmax(rows: RowWriter, scores: Flow, spec: Attention, sizes: tuple[float, float, float]) -> Flow:
    """Add scaling, softcap, bias, mask and softmax of the scores, and return the softmax's rows.

    sizes  heads of all sequences, queries, keys

    An added causal mask has a number for each score of a head; it is read again for every head, since a head's scores
    displace it from the cache. A mask of keys alone costs no traffic.
    """
    batched, queries, keys = sizes
    b = batched * queries
    if spec.scale in ("divided", "multiplied"):
        op = "div_scalar" if spec.scale == "divided" else "mul_scalar"
        scores = rows.each(op, scores, b, keys, "attention.scale")
    if spec.softcap:
        scores = softcapped(rows, scores, b, keys, "attention.softcap")
    if spec.biased == "heads_first":
        scores = rows.each("add", scores, b, keys, "attention.bias")
    elif spec.biased == "heads_last":
        scores = _biased(rows, scores, _dealt(spec, rows.tensor)[0], sizes)
    if spec.mask != "none":
        added = "add" if spec.causal and rows.run.mode != "decode" else "add_scalar"
        scores = rows.each(added if spec.mask == "added" else "copy", scores, b, keys, "attention.mask")
    if spec.floored:  # a maximum with a constant; its backward compares, halves and selects, which a power's resembles
        scores = rows.each("pow_scalar", scores, b, keys, "attention.floor")
    weights = rows.each("softmax", scores, b, keys, "attention.softmax")
    return rows.dropout(weights, b, keys, attention=True)


def _biased(rows: RowWriter, scores: Flow, heads: float, sizes: tuple[float, float, float]) -> Flow:
    """Add the scores' bias, which is stored with heads last (T5), and return the sum's rows."""
    batched, queries, keys = sizes
    return rows.add(
        "add_strided", scores, outputs=batched * queries * keys, name="attention.bias", b=batched, h=queries * keys,
        stride=heads,
    )  # fmt: skip


def softcapped(rows: RowWriter, x: Flow, b: float, h: float, name: str) -> Flow:
    """Add a softcap of scores or logits, cap tanh(x / cap) (Gemma 2), and return its rows."""
    x = rows.each("div_scalar", x, b, h, f"{name}.div")
    x = rows.each("tanh", x, b, h, f"{name}.tanh")
    return rows.each("mul_scalar", x, b, h, f"{name}.mul")
