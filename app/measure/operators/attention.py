"""Attention (app.ops.attention): scaled_dot_product_attention, and products where latent attention decodes."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from app.measure.operators.made import Made, Maker, Row


def prefill(make: Maker, row: Row) -> Made:
    """Causal: the last query sees every key; queries may be fewer than keys (a chunk of a longer prompt)."""
    query, key, value = _operands(make, row, row.get("query_length", row["context_length"]))
    mask = None if query.shape[2] == key.shape[2] else causal_lower_right(query.shape[2], key.shape[2])
    grouped = query.shape[1] != key.shape[1]

    def forward() -> Any:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
        )

    return Made(forward, (query, key, value))


def decode(make: Maker, row: Row) -> Made:
    """One query per sequence, which sees every key."""
    query, key, value = _operands(make, row, 1)
    grouped = query.shape[1] != key.shape[1]
    return Made(lambda: functional.scaled_dot_product_attention(query, key, value, enable_gqa=grouped), ())


def _operands(make: Maker, row: Row, queries: int) -> tuple[Any, Any, Any]:
    """Queries, keys, values: [batch, heads, length, head_dim]."""
    batch, heads, width = row["batch"], row["heads"], row["head_dim"]
    kept = (batch, row.get("kv_heads", heads), row["context_length"], width)
    return make.normal(batch, heads, queries, width), make.normal(*kept), make.normal(*kept)


def latent(make: Maker, row: Row) -> Made:
    """Multi-head latent attention: one query on what is kept of every key, more on keys and values expanded of it."""
    width, rope, kept = row["head_dim"], row.get("rope_dim", 64), row.get("latent_dim", 512)
    batch, heads, context = row["batch"], row["heads"], row["context_length"]
    queries = row.get("query_length", context)
    if queries == 1:
        query, cache = make.normal(batch, heads, kept + rope), make.normal(batch, context, kept + rope)
        return Made(lambda: absorbed(query, cache, kept, width + rope), ())
    query = make.normal(batch, heads, queries, width + rope)
    key, value = make.normal(batch, heads, context, width + rope), make.normal(batch, heads, context, width)
    mask = None if queries == context else causal_lower_right(queries, context)

    def forward() -> Any:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)

    return Made(forward, (query, key, value))


def absorbed(query: Any, cache: Any, kept: int, scaled_by: int) -> Any:
    """Attention of one query [batch, heads, kept + rope] on the cache [batch, keys, kept + rope] itself.

    Expansion to keys and values is absorbed into the products before and after it (DeepSeek-V2, 2024, section 2.1.2);
    scores are divided by the root of `scaled_by`, the width of an expanded key.
    """
    scores = torch.bmm(query, cache.transpose(1, 2)) / scaled_by**0.5
    return torch.bmm(torch.softmax(scores, -1), cache[..., :kept])
