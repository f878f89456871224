"""`attention_module`: an attention layer as a whole, from `hidden` features and back, as serving stacks measure it.

Layers whose attention is more than one kernel: projections, an indexer that selects keys, compression, attention, the
output projection, and the glue between them (attention_module_work). `variant`:

mla   multi-head latent attention (DeepSeek-V2, 2024); `latent_dim` + `rope_dim` elements kept per key
dsa   the same on the `index_keys` keys per query that an indexer selects (DeepSeek-V3.2, GLM-5); where `index_heads` is
      0 the selection of an earlier layer is used again (GLM-5.2)
msa   grouped heads on selected blocks of keys (MiniMax-M3)
csa   DeepSeek-V4: keys that are values too, one head of `head_dim`: the last `window` as they are, and of one key for
      every `compression` tokens those that an indexer selects
hca   the same on all compressed keys; with `compression` 0 on the window alone
"""

from __future__ import annotations

import numpy as np

from app.ops.attention import KV_DTYPE
from app.ops.attention_module_parts import ModuleParts, parts
from app.ops.attention_module_work import DSA, KINDS, MLA, work
from app.ops.base import COMMON, Dim, Op
from app.ops.figures import Broken, Ratio
from app.ops.prior import Prior
from app.tables.arrays import Floats
from app.tables.ops import DTYPES, OpTable


def check(table: OpTable) -> list[Broken]:
    """New queries are part of the context, and heads of keys divide the heads."""
    queries, context = table.column("query_length"), table.column("context_length")
    latent, kind = table.column("latent_dim"), table.column("variant")
    return [
        Broken("query_length exceeds context_length, which counts all keys", queries > context, "query_length"),
        Broken("kv_heads must divide heads", table.column("heads") % table.column("kv_heads") != 0, "kv_heads"),
        Broken("mla and dsa need latent_dim", (kind <= DSA) & (latent == 0), "latent_dim"),
    ]


def kind_class(table: OpTable) -> Floats:
    """Code of the kind of each row, [n]."""
    return table.column("variant")


def _optional(name: str, meaning: str) -> Dim:
    return Dim(name, meaning, least=0.0, default=0.0)


ATTENTION_MODULE = Op(
    "attention_module",
    "attention",
    (
        Dim("batch", "sequences"),
        Dim("heads", "query heads"),
        Dim("kv_heads", "heads of keys and values of a layer without latent keys", default=1.0),
        Dim("head_dim", "elements of a head's key, without those of rope_dim"),
        Dim("value_dim", "elements of a head's value"),
        Dim(
            "query_length", "new queries per sequence; absent: context_length", default=np.nan, absent="context_length"
        ),
        Dim("context_length", "all keys, those of the new queries included"),
        Dim("window", "last keys that are seen as they are (csa, hca); 0: all", least=0.0, default=0.0),
        KV_DTYPE,
        Dim("hidden", "features in and out"),
        _optional("latent_dim", "compressed elements kept per key (mla, dsa)"),
        _optional("rope_dim", "elements kept per key for the position (mla, dsa)"),
        _optional("query_rank", "features that queries are projected through; 0: none"),
        _optional("output_rank", "features that each group of heads is projected through after attention; 0: none"),
        Dim("output_groups", "groups of heads of output_rank", default=1.0, feature="unseen"),
        _optional("index_heads", "heads of the indexer; 0: none, or an earlier layer's selection"),
        _optional("index_dim", "elements of an indexer's head"),
        _optional("index_keys", "most keys that a query attends to; 0: all"),
        _optional("compression", "tokens per compressed key (csa, hca); 0: no compressed keys"),
        Dim("variant", "how keys are kept and selected", least=0.0, default=MLA, choices=KINDS, feature="class"),
        *COMMON,
    ),
    work,
    check=check,
    dtypes=DTYPES,
    prior=Prior.of("attention_module"),
    ratios=(
        Ratio(("batch", "heads")),
        Ratio(("batch", "query_length")),
        Ratio(("query_length",), ("context_length",)),
        Ratio(("batch", "context_length")),
    ),
    kernel_class=kind_class,
    interval_apart=True,
    configuration=("heads", "hidden", "head_dim", "latent_dim"),
    few_configurations=True,
    parts=parts,
    part_names=ModuleParts._fields,
    saves=("input", "output"),
    example={
        "batch": 8, "heads": 16, "head_dim": 128, "value_dim": 128, "context_length": 4096, "hidden": 7168,
        "latent_dim": 512, "rope_dim": 64, "query_rank": 1536,
    },
)  # fmt: skip
ATTENTION_MODULE_OPS = (ATTENTION_MODULE,)
