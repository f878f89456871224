"""Rows of mixers without heads: the gated short convolution (LFM2), and the first Mamba's selective scan."""

from __future__ import annotations

from typing import Any

from app.graphs.transformers.architecture import Recurrence
from app.graphs.transformers.attention import Span
from app.graphs.transformers.row_writer import Flow, RowWriter
from app.ops.linear_attention import GDN, MAMBA2, SCAN, STATE_BYTES, STEP


def gated_convolution(rows: RowWriter, x: Flow, spec: Recurrence, span: Span, width: float) -> Flow:
    """Add a convolution between two gates, which one linear layer gives with its input; return the gated rows."""
    inner = spec.value_heads * spec.value_dim / rows.tensor
    y = rows.linear(x, span.tokens, 3.0 * inner, width, "mixer.in", bias=spec.bias)
    y = rows.each("mul", y, span.tokens, inner, "mixer.gated_in")
    y = _convolved(rows, y, spec, inner, span)
    return rows.each("mul", y, span.tokens, inner, "mixer.gated_out")


def selective_scan(rows: RowWriter, x: Flow, spec: Recurrence, span: Span, width: float) -> Flow:
    """Add Mamba's convolution and scan, whose rates and inputs come from the convolved features; return their rows.

    The state has `key_dim` elements per feature. It is priced as Mamba2's of as many elements.
    """
    inner, tokens, state = spec.value_heads * spec.value_dim / rows.tensor, span.tokens, float(spec.key_dim)
    y = rows.linear(x, tokens, 2.0 * inner, width, "mixer.in", bias=spec.bias)
    y = _convolved(rows, y, spec, inner, span)
    rates = rows.linear(y, tokens, spec.decay_rank + 2.0 * state, inner, "mixer.selected", dtype=rows.dtype)
    if spec.normed:
        rates = rows.norm(rates, tokens, spec.decay_rank + 2.0 * state, "mixer.norm", "rms_norm")
    rates = rows.linear(rates, tokens, inner, spec.decay_rank, "mixer.rates", bias=True, dtype=rows.dtype)
    y = _scanned(rows, (*y, *rates), spec, inner, span)
    return rows.each("mul", y, tokens, inner, "mixer.gated")


def _convolved(rows: RowWriter, x: Flow, spec: Recurrence, channels: float, span: Span) -> Flow:
    """Add the short convolution, which keeps the last tokens of every sequence in a cache."""
    kept = span.batch * channels * (spec.taps - 1.0) * rows.size
    row = rows.add(
        "short_convolution",
        x,
        outputs=span.tokens * channels,
        name="mixer.convolution",
        parameters=channels * (spec.taps + spec.filter_bias),
        kv_bytes=kept if rows.caches else 0.0,
        batch=span.batch,
        query_length=span.queries,
        channels=channels,
        taps=spec.taps,
        form=STEP if rows.run.mode == "decode" else SCAN,
        variant=MAMBA2 if spec.kind == "mamba" else GDN,
    )
    return (row,)


def _scanned(rows: RowWriter, x: Flow, spec: Recurrence, inner: float, span: Span) -> Flow:
    decode = rows.run.mode == "decode"
    chunk: dict[str, Any] = {} if decode else {"chunk": spec.chunk}
    row = rows.add(
        "linear_attention_step" if decode else "linear_attention",
        x,
        outputs=span.tokens * inner,
        name="mixer.state",
        parameters=inner * (spec.key_dim + 1.0),
        kv_bytes=span.batch * inner * spec.key_dim * STATE_BYTES if rows.caches else 0.0,
        batch=span.batch,
        key_heads=1.0,
        value_heads=inner / spec.value_dim,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        query_length=span.queries,
        variant=MAMBA2,
        **chunk,
    )
    return (row,)
