"""Rows of linear attention: projections, a short convolution, the state of each head, a gated norm, and back.

Tensor parallelism splits heads of values, and heads of keys (Mamba2: groups), of which a device holds at least one. Two
mixers have no heads: the gated short convolution (LFM2), and the first Mamba's selective scan.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from app.networks.transformers.architecture import Recurrence
from app.networks.transformers.attention import Span
from app.networks.transformers.row_writer import Flow, RowWriter
from app.ops.linear_attention import GDN, KDA, MAMBA2, SCAN, STATE_BYTES, STEP

# Kernels by kind of mixer: those without heads run others'.
_VARIANTS = {"gdn": GDN, "kda": KDA, "mamba2": MAMBA2, "mamba": MAMBA2, "convolution": GDN}


class _Dealt(NamedTuple):
    """Sizes of one device: heads of keys and of values; features of all keys and of all values."""

    key_heads: float
    value_heads: float
    keys: float
    values: float

    @property
    def channels(self) -> float:
        """Features that the convolution filters: queries, keys and values."""
        return 2.0 * self.keys + self.values


def recurrence(rows: RowWriter, x: Flow, spec: Recurrence, span: Span, width: float) -> Flow:
    """Add linear attention of the new tokens, from `width` features and back, and return its output rows."""
    x = rows.gathered(x, span.tokens, width)
    dealt = _dealt(spec, rows.tensor)
    if spec.kind == "mamba":
        y = _selective_scan(rows, x, spec, dealt, span, width)
    elif spec.kind == "convolution":
        y = _gated_convolution(rows, x, spec, dealt, span, width)
    else:
        y, gate = _projected(rows, x, spec, dealt, span.tokens, width)
        y = _convolved(rows, y, spec, dealt.channels, span)
        y = _normed(rows, _stated(rows, y, spec, dealt, span), gate, spec, dealt, span.tokens)
    y = rows.linear(y, span.tokens, width, dealt.values, "mixer.output", bias=spec.bias)
    return rows.summed(y, span.tokens, width)


def _dealt(spec: Recurrence, tensor: int) -> _Dealt:
    keys, values = max(spec.key_heads / tensor, 1.0), spec.value_heads / tensor
    return _Dealt(keys, values, keys * spec.key_dim, values * spec.value_dim)


def _projected(
    rows: RowWriter, x: Flow, spec: Recurrence, dealt: _Dealt, tokens: float, width: float
) -> tuple[Flow, Flow]:
    """Add the projections as the published modules have them; return the rows of the inputs and of the output gate."""
    if spec.kind == "mamba2":
        columns = dealt.channels + dealt.values + dealt.value_heads
        y = rows.linear(x, tokens, columns, width, "mixer.in", bias=spec.bias)
        return y, y
    if spec.kind == "gdn":
        y = rows.linear(x, tokens, dealt.channels + dealt.values, width, "mixer.in", bias=spec.bias)
        rates = rows.linear(x, tokens, 2.0 * dealt.value_heads, width, "mixer.rates", dtype=rows.dtype)
        return (*y, *rates), y
    sizes = {"query": dealt.keys, "key": dealt.keys, "value": dealt.values}
    qkv = tuple(row for name, n in sizes.items() for row in rows.linear(x, tokens, n, width, f"mixer.{name}"))
    rates = rows.linear(x, tokens, dealt.value_heads, width, "mixer.rates", dtype=rows.dtype)
    decay = _through(rows, x, (width, spec.decay_rank, dealt.value_heads * spec.key_dim), tokens, "mixer.decay")
    return (*qkv, *rates, *decay), _through(rows, x, (width, spec.gate_rank, dealt.values), tokens, "mixer.gate")


def _through(rows: RowWriter, x: Flow, sizes: tuple[float, float, float], tokens: float, name: str) -> Flow:
    """Add a linear layer from the first to the last size, by way of the middle one unless it is 0."""
    width, rank, out = sizes
    if not rank:
        return rows.linear(x, tokens, out, width, name)
    return rows.linear(rows.linear(x, tokens, rank, width, f"{name}_down"), tokens, out, rank, f"{name}_up")


def _convolved(rows: RowWriter, x: Flow, spec: Recurrence, channels: float, span: Span) -> Flow:
    """Add the short convolution, which keeps the last tokens of every sequence in a cache."""
    kept = span.batch * channels * (spec.taps - 1.0) * rows.size
    return rows.add(
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
        variant=_VARIANTS[spec.kind],
    )


def _stated(rows: RowWriter, x: Flow, spec: Recurrence, dealt: _Dealt, span: Span) -> Flow:
    """Add the state's change by every token and what it gives."""
    # Decay and its bias per head; mamba2 has a third scalar, kda a bias per element of a key, mamba rates.
    scalars = {"gdn": 2.0, "kda": 1.0 + spec.key_dim, "mamba2": 3.0, "mamba": spec.value_dim * (spec.key_dim + 1.0)}
    states = span.batch * dealt.value_heads * spec.key_dim * spec.value_dim * STATE_BYTES
    decode = rows.run.mode == "decode"
    chunk: dict[str, Any] = {} if decode else {"chunk": spec.chunk}
    return rows.add(
        "linear_attention_step" if decode else "linear_attention",
        x,
        outputs=span.tokens * dealt.values,
        name="mixer.state",
        parameters=dealt.value_heads * scalars[spec.kind],
        kv_bytes=states if rows.caches else 0.0,
        batch=span.batch,
        key_heads=dealt.key_heads,
        value_heads=dealt.value_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        query_length=span.queries,
        variant=_VARIANTS[spec.kind],
        **chunk,
    )


def _normed(rows: RowWriter, x: Flow, gate: Flow, spec: Recurrence, dealt: _Dealt, tokens: float) -> Flow:
    """Add the output gate and the norm: one kernel, unless eager."""
    if rows.eager or not spec.normed:
        gate = rows.activation(gate, tokens, dealt.values, "silu", "mixer.gate.silu") if rows.eager else gate
        x = rows.each("mul", (*x, *gate), tokens, dealt.values, "mixer.gated")
    else:
        x = (*x, *gate)
    if not spec.normed:
        return x
    if spec.whole_norm:
        return rows.norm(x, tokens, dealt.values, "mixer.norm", "rms_norm")
    return rows.norm(x, tokens * dealt.value_heads, spec.value_dim, "mixer.norm", "rms_norm")


def _gated_convolution(rows: RowWriter, x: Flow, spec: Recurrence, dealt: _Dealt, span: Span, width: float) -> Flow:
    """Add a convolution between two gates, which one linear layer gives with its input; return the gated rows."""
    inner = dealt.values
    y = rows.linear(x, span.tokens, 3.0 * inner, width, "mixer.in", bias=spec.bias)
    y = rows.each("mul", y, span.tokens, inner, "mixer.gated_in")
    y = _convolved(rows, y, spec, inner, span)
    return rows.each("mul", y, span.tokens, inner, "mixer.gated_out")


def _selective_scan(rows: RowWriter, x: Flow, spec: Recurrence, dealt: _Dealt, span: Span, width: float) -> Flow:
    """Add Mamba's convolution and scan, whose rates and inputs come from the convolved features; return their rows.

    The state has `key_dim` elements per feature. It is priced as Mamba2's of as many elements.
    """
    inner, tokens, state = dealt.values, span.tokens, float(spec.key_dim)
    y = rows.linear(x, tokens, 2.0 * inner, width, "mixer.in", bias=spec.bias)
    y = _convolved(rows, y, spec, inner, span)
    rates = rows.linear(y, tokens, spec.decay_rank + 2.0 * state, inner, "mixer.selected", dtype=rows.dtype)
    if spec.normed:
        rates = rows.norm(rates, tokens, spec.decay_rank + 2.0 * state, "mixer.norm", "rms_norm")
    rates = rows.linear(rates, tokens, inner, spec.decay_rank, "mixer.rates", bias=True, dtype=rows.dtype)
    y = _stated(rows, (*y, *rates), spec, dealt, span)
    return rows.each("mul", y, tokens, inner, "mixer.gated")
