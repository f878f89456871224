"""Rows of attention that selects or compresses keys: one operator with its projections, and the sum over devices.

Tensor parallelism splits heads; what is compressed or indexed is on every device.
"""

from __future__ import annotations

from app.graphs.transformers.architecture import AttentionModule
from app.graphs.transformers.attention import Span
from app.graphs.transformers.row_writer import Flow, RowWriter
from app.ops.attention_module_work import INDEX_BYTES, KINDS, Sizes, weights


def attention_module(rows: RowWriter, x: Flow, spec: AttentionModule, span: Span, width: float) -> Flow:
    """Add attention of the new tokens, from `width` features and back, and return its output rows."""
    x = rows.gathered(x, span.tokens, width)
    sizes = _sizes(spec, rows.tensor, width)
    row = rows.add(
        "attention_module",
        x,
        outputs=span.tokens * width,
        name="attention",
        dtype=rows.format_of("attention"),
        parameters=weights(sizes) + _norms(spec, sizes),
        kv_bytes=_kept_bytes(rows, spec, sizes, span) if rows.caches else 0.0,
        batch=span.batch,
        query_length=span.queries,
        context_length=span.keys,
        window=spec.window,
        kv_dtype=rows.kv_code,
        index_keys=spec.index_keys,
        **sizes._asdict(),
    )
    return rows.summed((row,), span.tokens, width)


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
