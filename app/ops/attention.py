"""Attention, fused: `attention_prefill`, `attention_decode` and multi-head latent attention, `attention_mla`.

`context_length` C counts all keys, those of the Q new queries included. Causal: the query at position p sees min(p +
1, w) keys, w the window (0, or C and more: all). Pairs = sum of these over p = C - Q ... C - 1, which is half of Q C
for a whole prefill. FLOPs = 4 batch heads head_dim pairs (scores, and values; the softmax is left out, as in
FlashAttention, Dao 2023); bytes = Q + O + K and V of every key that some query sees, each once. Backward recomputes
the scores: five products for two (2.5 x FLOPs), and moves Q K V O dO in, dQ dK dV out.

Latent attention (DeepSeek-V2, 2024): of every key `latent_dim` + `rope_dim` numbers are kept, shared by all heads.
One query (decode) works on them directly, 2 (latent + rope) + 2 latent FLOPs a pair and head; more queries (prefill)
on keys and values expanded to `head_dim` per head, 2 (head + rope) + 2 head.

`attention_mixed`: a chunk of one prompt beside decodes, as serving stacks batch them in one launch. The chunk's
`query_length` new queries see `context_length` keys, theirs included; each of `decodes` sequences has one new query
that sees `decode_context` keys. FLOPs and bytes are those of prefill and decode together. The launch takes longer than
either: kernels that hold a chunk do not split the decodes' keys over idle SMs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from app.ops.attention_kernels import (
    DECODE_COSTS,
    LatentParts,
    attended,
    decode_loops,
    decode_products,
    either,
    key_bytes,
    latent_parts,
    passes,
    products,
    queries_of,
    shared_heads,
)
from app.ops.base import COMMON, Dim, Op
from app.ops.figures import Broken, Prior, Ratio, Work
from app.ops.gradient import BY_DATA_AND_WEIGHT
from app.ops.suite import NARROW, Axis, Log, Made, Maker, Pick, Row, Sizes, Space
from app.stacks.libraries import Choice, libraries_of
from app.tables.arrays import Floats
from app.tables.ops import ACTIVATION_DTYPES, DTYPE_BYTES, OUTPUT_BYTES, OpTable

# Kinds of linear attention beside attention in a hybrid model, by which stacks may choose: on the B200 aiconfigurator
# has the layers of Qwen3-Next and Qwen3.5, and of Nemotron 3, by other libraries than the same layers of other models.
HYBRIDS = ("gdn", "mamba2")
# Kinds of layer by which stacks choose libraries: usual ones, the sizes of heads that models with attention sinks have,
# and those of hybrid models; and what tells each, a size of heads or -1 - the kind of hybrid.
_LAYERS = ("usual", "narrow", "wide", *HYBRIDS)
_LAYER_VALUES = np.array([0.0, 64.0, 192.0, -1.0, -2.0])
_LIBRARIES = libraries_of("attention", _LAYERS)


def attention_libraries(table: OpTable) -> Choice:
    """Return what libraries of attention with keys and values per KV head depend on."""
    hybrid = table.column("hybrid")
    layer = np.where(np.isnan(hybrid), table.column("head_dim"), -1.0 - hybrid)
    return Choice(_LIBRARIES, table.column("kv_dtype"), layer, _LAYER_VALUES)


def _fused(table: OpTable, flops: Floats, queries: Floats, keys: Floats) -> Work:
    """Work from forward FLOPs, and elements that belong to queries and keys; forward writes one output per query."""
    back = table.column("backward")
    into, out = queries * DTYPE_BYTES[table.dtype], queries * OUTPUT_BYTES[table.dtype]
    read = keys * key_bytes(table)
    moved = into + out + read + back * (into + out + read)
    return Work(passes(table) * flops, moved, moved)


def work(table: OpTable) -> Work:
    """Work of attention with keys and values per KV head."""
    queries, pairs, keys = attended(table)
    heads, batch, width = table.column("heads"), table.column("batch"), table.column("head_dim")
    shared = shared_heads(table)
    flops = 4.0 * batch * heads * width * pairs
    return _fused(table, flops, batch * heads * queries * width, 2.0 * batch * shared * keys * width)


def mla_work(table: OpTable) -> Work:
    """Work of latent attention."""
    queries, pairs, keys = attended(table)
    batch, heads = table.column("batch"), table.column("heads")
    latent, rope, width = (table.column(name) for name in ("latent_dim", "rope_dim", "head_dim"))
    decode = queries == 1
    scored, valued = np.where(decode, latent, width) + rope, np.where(decode, latent, width)
    flops = 2.0 * batch * heads * pairs * (scored + valued)
    kept = np.where(decode, latent + rope, heads * (2.0 * width + rope))
    return _fused(table, flops, batch * heads * queries * 0.5 * (scored + valued), batch * keys * kept)


def check(table: OpTable) -> list[Broken]:
    """KV heads divide the heads; new queries are part of the context."""
    heads, context = table.column("heads"), table.column("context_length")
    shared, queries = shared_heads(table), either(table.column("query_length"), context)
    return [
        Broken("kv_heads must divide heads", heads % shared != 0, "kv_heads"),
        Broken("query_length exceeds context_length, which counts all keys", queries > context, "query_length"),
    ]


def check_decode(table: OpTable) -> list[Broken]:
    """One new query, and nothing to learn."""
    return [
        *check(table),
        Broken("decode has query_length 1", table.column("query_length") != 1, "query_length"),
        Broken("decode has no backward phase", table.column("backward") > 0, "backward"),
    ]


def build_prefill(make: Maker, row: Row) -> Made:
    """Causal: the last query sees every key; queries may be fewer than keys (a chunk of a longer prompt)."""
    query, key, value = _operands(make, row, row.get("query_length", row["context_length"]))
    grouped = query.shape[1] != key.shape[1]
    return Made(lambda: _causal(make, query, key, value, enable_gqa=grouped), (query, key, value))


def build_decode(make: Maker, row: Row) -> Made:
    """One query per sequence, which sees every key."""
    query, key, value = _operands(make, row, 1)
    grouped, compute = query.shape[1] != key.shape[1], make.torch.nn.functional.scaled_dot_product_attention
    return Made(lambda: compute(query, key, value, enable_gqa=grouped), ())


def build_latent(make: Maker, row: Row) -> Made:
    """Multi-head latent attention: one query on what is kept of every key, more on keys and values expanded of it."""
    width, rope, kept = row["head_dim"], row.get("rope_dim", 64), row.get("latent_dim", 512)
    batch, heads, context = row["batch"], row["heads"], row["context_length"]
    queries = row.get("query_length", context)
    if queries == 1:
        query, cache = make.normal(batch, heads, kept + rope), make.normal(batch, context, kept + rope)
        return Made(lambda: absorbed(make.torch, query, cache, kept, width + rope), ())
    query = make.normal(batch, heads, queries, width + rope)
    key, value = make.normal(batch, heads, context, width + rope), make.normal(batch, heads, context, width)
    return Made(lambda: _causal(make, query, key, value), (query, key, value))


def _operands(make: Maker, row: Row, queries: int) -> tuple[Any, Any, Any]:
    """Queries, keys, values: [batch, heads, length, head_dim]."""
    batch, heads, width = row["batch"], row["heads"], row["head_dim"]
    kept = (batch, row.get("kv_heads", heads), row["context_length"], width)
    return make.normal(batch, heads, queries, width), make.normal(*kept), make.normal(*kept)


def _causal(make: Maker, query: Any, key: Any, value: Any, **more: bool) -> Any:
    queries, keys, nn = query.shape[2], key.shape[2], make.torch.nn
    mask = None if queries == keys else nn.attention.bias.causal_lower_right(queries, keys)
    attention = nn.functional.scaled_dot_product_attention
    return attention(query, key, value, attn_mask=mask, is_causal=mask is None, **more)


def absorbed(torch: Any, query: Any, cache: Any, kept: int, scaled_by: int) -> Any:
    """Attention of one query [batch, heads, kept + rope] on the cache [batch, keys, kept + rope] itself.

    Expansion to keys and values is absorbed into the products before and after it (DeepSeek-V2, 2024, section 2.1.2);
    scores are divided by the root of `scaled_by`, the width of an expanded key.
    """
    scores = torch.bmm(query, cache.transpose(1, 2)) / scaled_by**0.5
    return torch.bmm(torch.softmax(scores, -1), cache[..., :kept])


def _shared(sizes: Sizes) -> Sizes:
    """KV heads from heads and how many of them share one."""
    sharing = sizes.pop("sharing")
    kv_heads = sizes["heads"] // sharing if sizes["heads"] % sharing == 0 else sizes["heads"]
    return sizes | {"kv_heads": kv_heads}


def _chunk(sizes: Sizes) -> Sizes | None:
    """New queries: the share of the context that `new` says; decode where it is 0."""
    new = sizes.pop("new")
    queries = max(2, sizes["context_length"] // new) if new else 1
    return sizes | {"query_length": min(queries, sizes["context_length"])}


def _prefill(sizes: Sizes) -> Sizes | None:
    return _chunk(_shared(sizes))


_CONTEXT = Log(16, 1 << 17)
_AXES: Mapping[str, Axis] = {
    "batch": Log(1, 128),
    "heads": Pick((8, 12, 16, 20, 32, 40, 64, 128)),
    "sharing": Pick((1, 4, 8)),
    "head_dim": Pick((64, 128, 80, 96, 256)),
    "context_length": _CONTEXT,
}
_USUAL = {"heads": (8, 64), "kv_heads": (1, 8), "head_dim": (64, 128)}
_EXAMPLE = {"batch": 8, "heads": 32, "head_dim": 128, "context_length": 2048}
_LAYER = ("heads", "kv_heads", "head_dim", "window")


WINDOW = Dim(
    "window",
    "keys a query looks back on, itself included; 0: all",
    least=0.0,
    default=0.0,
    absent="context_length",
)
# Other kernels read a KV cache in another number format, which one GPU has to convert and another reads as is.
KV_DTYPE = Dim(
    "kv_dtype",
    "number format of the KV cache; absent: dtype",
    default=np.nan,
    choices=ACTIVATION_DTYPES,
    feature="code",
    stretch=3.0,
)
_HYBRID = Dim(
    "hybrid",
    "kind of the linear attention of a hybrid model, by which a stack may choose its kernels; absent: none",
    default=np.nan,
    choices=HYBRIDS,
    feature="class",
)


def _dims(query_length: Dim, *own: Dim) -> tuple[Dim, ...]:
    return (
        Dim("batch", "sequences"),
        Dim("heads", "query heads"),
        Dim("kv_heads", "heads of keys and values; absent: heads", default=np.nan, absent="heads"),
        Dim("head_dim", "elements of a head"),
        query_length,
        Dim("context_length", "all keys, those of the new queries included"),
        WINDOW,
        KV_DTYPE,
        *own,
        *COMMON,
    )


_QUERIES = Dim(
    "query_length", "new queries per sequence; absent: context_length", default=np.nan, absent="context_length"
)
_PRIOR = Prior.of("attention")
_RATIOS = (
    Ratio(("batch", "kv_heads")),
    Ratio(("batch", "heads")),
    Ratio(("heads",), ("kv_heads",)),
    Ratio(("query_length",), ("context_length",)),
    Ratio(("batch", "query_length")),
    Ratio(("batch", "kv_heads", "context_length", "head_dim")),
)
ATTENTION_OPS = (
    Op(
        "attention_prefill",
        "attention",
        _dims(_QUERIES, _HYBRID),
        work,
        check=check,
        prior=_PRIOR._replace(compute=0.60),  # on tiles whose padding is counted
        products=products,
        queries=queries_of,
        libraries=attention_libraries,
        ratios=_RATIOS,
        configuration=_LAYER,
        saves=("input", "output"),
        suite=Space({**_AXES, "new": Pick((1, 1, 4))}, NARROW, build_prefill, _prefill, share=2),
        usual={"batch": (1, 16), **_USUAL, "context_length": (128, 8192)},
        example=_EXAMPLE,
    ),
    Op(
        "attention_decode",
        "attention",
        _dims(Dim("query_length", "1", default=1.0, absent="context_length"), _HYBRID),
        work,
        check=check_decode,
        prior=_PRIOR,
        products=decode_products,
        loops=decode_loops,
        libraries=attention_libraries,
        library_costs=DECODE_COSTS,
        ratios=_RATIOS,
        waits=True,
        interval_apart=True,  # decoding has little in common with other attention
        configuration=_LAYER,
        backward=BY_DATA_AND_WEIGHT,
        saves=("input", "output"),
        suite=Space(_AXES, NARROW, build_decode, _shared, back=False, share=2),
        usual={"batch": (1, 256), **_USUAL, "context_length": (128, 32768)},
        example=_EXAMPLE,
    ),
    Op(
        "attention_mla",
        "attention",
        _dims(
            _QUERIES,
            Dim("latent_dim", "compressed elements kept per key", default=512.0),
            Dim("rope_dim", "elements kept per key for the position", default=64.0, least=0.0),
        ),
        mla_work,
        check=check,
        prior=_PRIOR,
        ratios=_RATIOS,
        interval_apart=True,
        configuration=_LAYER,
        parts=latent_parts,
        part_names=LatentParts._fields,
        saves=("input", "output"),
        suite=Space(
            {
                "batch": Log(1, 128),
                "heads": Pick((16, 32, 64, 128)),
                "head_dim": Pick((128,)),
                "context_length": _CONTEXT,
                "new": Pick((0, 1, 4)),
            },
            NARROW,
            build_latent,
            _chunk,
            back=False,
        ),
        example=_EXAMPLE,
    ),
)


def _decoded_keys(table: OpTable) -> Floats:
    """Keys that the new query of a decode sees, [n]."""
    context, window = table.column("decode_context"), table.column("window")
    return np.where((window == 0) | (window > context), context, window)


def mixed_work(table: OpTable) -> Work:
    """Work of the chunk and of the decodes."""
    queries, pairs, keys = attended(table)
    decodes, decoded = table.column("decodes"), _decoded_keys(table)
    heads, width = table.column("heads"), table.column("head_dim")
    flops = 4.0 * heads * width * (pairs + decodes * decoded)
    rows = (queries + decodes) * heads * width * (DTYPE_BYTES[table.dtype] + OUTPUT_BYTES[table.dtype])
    moved = rows + 2.0 * shared_heads(table) * width * key_bytes(table) * (keys + decodes * decoded)
    return Work(flops, moved, moved)


def check_mixed(table: OpTable) -> list[Broken]:
    """Rules of attention, and nothing is learned."""
    return [*check(table), Broken("a mixed batch has no backward phase", table.column("backward") > 0, "backward")]


ATTENTION_MIXED = Op(
    "attention_mixed",
    "attention",
    (
        Dim("heads", "query heads"),
        Dim("kv_heads", "heads of keys and values; absent: heads", default=np.nan, absent="heads"),
        Dim("head_dim", "elements of a head"),
        Dim("query_length", "new queries of the chunk"),
        Dim("context_length", "keys of the chunk's prompt, those of its queries included"),
        Dim("decodes", "sequences that decode beside it"),
        Dim("decode_context", "keys that each of them sees, its own included"),
        WINDOW,
        KV_DTYPE,
        *COMMON,
    ),
    mixed_work,
    check=check_mixed,
    prior=Prior.of("attention_mixed"),
    ratios=(
        Ratio(("decodes", "kv_heads")),
        Ratio(("heads",), ("kv_heads",)),
        Ratio(("query_length",), ("context_length",)),
        Ratio(("decodes", "kv_heads", "decode_context", "head_dim")),
        Ratio(("query_length", "heads", "context_length", "head_dim")),
    ),
    waits=True,
    interval_apart=True,
    configuration=("heads", "kv_heads", "head_dim", "window"),
    backward=(),
    example={
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "query_length": 512,
        "context_length": 2048,
        "decodes": 32,
        "decode_context": 2048,
    },
)
