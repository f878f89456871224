"""Linear attention: layers that keep a state per sequence and head in place of keys and values.

`linear_attention` computes many tokens in chunks (prefill), `linear_attention_step` one after another (decode, and
the few tokens of a draft that is verified); `short_convolution` runs over the projected inputs before either.

A head's state S has key_dim x value_dim elements, kept in FP32. `variant` says how a token with query q, key k and
value v changes and reads it; heads of queries and keys are shared by value_heads / key_heads heads of values:

gdn     gated delta rule: S = a S + b k (v - (a S)^T k)^T, o = S^T q, with scalars a, b (Yang et al. 2024)
kda     Kimi Delta Attention: the same with a decay per element of the key (Kimi Linear, 2025)
mamba2  S = a S + k v^T, o = S^T q, with k and q named B and C, key_heads groups (Dao and Gu 2024)

Step: FLOPs a token and head = 7 key_dim value_dim (decay 1, S^T k 2, update 2, S^T q 2), mamba2 5. Chunks of L tokens
(`chunk`, at most query_length): products with the state 6 key_dim value_dim (mamba2 4), and within the chunk, causal,
L (3 key_dim + 2 value_dim) for k k^T, q k^T, and what they multiply (mamba2 L (key_dim + value_dim)).
Bytes = q, k, v, o, the gates, and the state read and written once per sequence. Backward: 2.5 x FLOPs as of attention,
and all tensors with their gradients.

Convolution: 2 taps FLOPs a token and channel; bytes = x in, y out, and taps - 1 tokens of state in and out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.ops.attention_kernels import passes
from app.ops.base import COMMON, Dim, Op, choice
from app.ops.figures import Broken, Prior, Ratio, Work
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_BYTES, OUTPUT_BYTES, OpTable

KINDS = ("gdn", "kda", "mamba2")
GDN, KDA, MAMBA2 = (float(code) for code in range(len(KINDS)))
FORMS = ("scan", "step")
SCAN, STEP = (float(code) for code in range(len(FORMS)))
# Bytes of an element of a state: FP32 in every stack (mamba_ssm_dtype of the configurations).
STATE_BYTES = 4.0


def kind_class(table: OpTable) -> Floats:
    """GDN, KDA or MAMBA2 of each row, [n]."""
    return table.column("variant")


def form_class(table: OpTable) -> Floats:
    """SCAN or STEP of each row, [n]."""
    return table.column("form")


def _moved(table: OpTable) -> Floats:
    """Bytes of tokens and states, forward, [n]."""
    batch, tokens, keys, values, key_dim, value_dim = (
        table.column(name) for name in ("batch", "query_length", "key_heads", "value_heads", "key_dim", "value_dim")
    )
    gates = np.where(table.column("variant") == KDA, key_dim + 1.0, 2.0)
    read = 2.0 * keys * key_dim + values * (value_dim + gates)
    size, written = DTYPE_BYTES[table.dtype], OUTPUT_BYTES[table.dtype]
    states = 2.0 * batch * values * key_dim * value_dim * STATE_BYTES
    moved: Floats = batch * tokens * (read * size + values * value_dim * written) + states
    return moved


def scan_work(table: OpTable) -> Work:
    """Work of a scan in chunks."""
    tokens, key_dim, value_dim = (table.column(name) for name in ("query_length", "key_dim", "value_dim"))
    simple = table.column("variant") == MAMBA2
    chunk = np.minimum(table.column("chunk"), tokens)
    within = chunk * np.where(simple, key_dim + value_dim, 3.0 * key_dim + 2.0 * value_dim)
    states = np.where(simple, 4.0, 6.0) * key_dim * value_dim
    flops = table.column("batch") * tokens * table.column("value_heads") * (within + states)
    back, moved = table.column("backward"), _moved(table)
    moved = (1.0 + back) * moved
    return Work(passes(table) * flops, moved, moved)


def step_work(table: OpTable) -> Work:
    """Work of tokens one after another."""
    each = np.where(table.column("variant") == MAMBA2, 5.0, 7.0) * table.column("key_dim") * table.column("value_dim")
    flops = table.column("batch") * table.column("query_length") * table.column("value_heads") * each
    moved = _moved(table)
    return Work(flops, moved, moved)


def convolution_work(table: OpTable) -> Work:
    """Work of a causal convolution per channel."""
    batch, channels, taps = (table.column(name) for name in ("batch", "channels", "taps"))
    elements = batch * table.column("query_length") * channels
    size, back = DTYPE_BYTES[table.dtype], table.column("backward")
    states = 2.0 * batch * channels * (taps - 1.0) * size
    moved = (1.0 + back) * (elements * (size + OUTPUT_BYTES[table.dtype]) + states)
    return Work(2.0 * (1.0 + back) * taps * elements, moved, moved)


def check(table: OpTable) -> list[Broken]:
    """Heads of keys divide those of values."""
    uneven = table.column("value_heads") % table.column("key_heads") != 0
    return [Broken("key_heads must divide value_heads", uneven, "key_heads")]


def check_step(table: OpTable) -> list[Broken]:
    """The same, and nothing to learn."""
    trained = table.column("backward") > 0
    return [*check(table), Broken("a step has no backward phase", trained, "backward")]


_BATCH = Dim("batch", "sequences")
_HEADS = (
    Dim("key_heads", "heads of queries and keys (mamba2: groups)"),
    Dim("value_heads", "heads of values, each with a state"),
    Dim("key_dim", "elements of a query or key (mamba2: the state's size)"),
    Dim("value_dim", "elements of a value"),
)
_KIND = choice("variant", "rule by which the state changes", KINDS, GDN, "class")
_RATIOS = (
    Ratio(("batch", "value_heads")),
    Ratio(("batch", "query_length")),
    Ratio(("value_heads",), ("key_heads",)),
    Ratio(("batch", "value_heads", "key_dim", "value_dim")),
)
_LAYER = ("key_heads", "value_heads", "key_dim", "value_dim")
_EXAMPLE = {"batch": 8, "key_heads": 16, "value_heads": 32, "key_dim": 128, "value_dim": 128}
# A scan writes and reads its chunks' states in between.
LINEAR_ATTENTION_OPS = (
    Op(
        "linear_attention",
        "linear_attention",
        (
            _BATCH,
            *_HEADS,
            Dim("query_length", "new tokens per sequence"),
            Dim("chunk", "tokens of a chunk, computed at once", default=64.0),
            _KIND,
            *COMMON,
        ),
        scan_work,
        check=check,
        prior=Prior.of("linear_attention"),
        ratios=_RATIOS,
        kernel_class=kind_class,
        configuration=_LAYER,
        few_configurations=True,
        interval_apart=True,
        saves=("input", "output"),
        example=_EXAMPLE | {"query_length": 2048},
    ),
    Op(
        "linear_attention_step",
        "linear_attention",
        (
            _BATCH,
            *_HEADS,
            Dim("query_length", "new tokens per sequence, one after another", default=1.0),
            _KIND,
            *COMMON,
        ),
        step_work,
        check=check_step,
        prior=Prior.of("linear_attention_step"),
        ratios=_RATIOS,
        kernel_class=kind_class,
        configuration=_LAYER,
        few_configurations=True,
        interval_apart=True,
        example=_EXAMPLE,
    ),
    Op(
        "short_convolution",
        "linear_attention",
        (
            _BATCH,
            Dim("query_length", "new tokens per sequence"),
            Dim("channels", "features, each with a filter of its own"),
            Dim("taps", "tokens that a filter spans", default=4.0),
            choice(
                "form",
                "scan: many tokens, as in prefill; step: few, after a state that is kept, as in decode",
                FORMS,
                SCAN,
                "class",
            ),
            replace(
                _KIND,
                help="kind of the layer that it is part of; kda convolves queries, keys and values apart",
                feature="code",
            ),
            *COMMON,
        ),
        convolution_work,
        prior=Prior.of("short_convolution"),
        ratios=(Ratio(("batch", "channels")), Ratio(("batch", "query_length"))),
        kernel_class=form_class,
        configuration=("channels", "taps"),
        few_configurations=True,
        interval_apart=True,
        saves=("input",),
        example={"batch": 8, "query_length": 2048, "channels": 8192},
    ),
)
