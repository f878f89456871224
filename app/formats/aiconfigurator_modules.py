"""Meaning of aiconfigurator's tables of whole layers: latent and sparse attention, linear attention, residual streams.

A table names a model; the sizes that it does not hold are those of the model's config.json. Heads are those of one
device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from app.formats.aiconfigurator_tables import DTYPES, Figures, Table, values_of
from app.formats.table_columns import text_column
from app.ops.attention_module_work import KINDS
from app.tables.arrays import Bools, Floats

_VARIANT = {"mla": "mla", "dsa": "dsa", "dsv4_csa": "csa", "dsv4_hca": "hca", "msa": "msa"}


class _Layer(NamedTuple):
    """Sizes of a model's attention layers, as the fields of attention_module; `groups` of all heads together."""

    hidden: float
    heads: float
    kv_heads: float
    head_dim: float
    value_dim: float
    latent_dim: float
    rope_dim: float
    query_rank: float
    output_rank: float
    groups: float
    index_heads: float
    index_dim: float
    index_keys: float
    window: float


_V3 = _Layer(7168, 128, 1, 128, 128, 512, 64, 1536, 0, 1, 64, 128, 2048, 0)
_GLM = _Layer(6144, 64, 1, 192, 256, 512, 64, 2048, 0, 1, 32, 128, 2048, 0)
_V4_FLASH = _Layer(4096, 64, 1, 512, 512, 0, 0, 1024, 1024, 8, 64, 128, 512, 128)
_V4_PRO = _Layer(7168, 128, 1, 512, 512, 0, 0, 1536, 1024, 16, 64, 128, 1024, 128)
_M3 = _Layer(6144, 64, 4, 128, 128, 0, 0, 0, 0, 1, 4, 128, 2048, 0)
_MODELS = {
    "deepseek-ai/DeepSeek-V3": _V3,
    "deepseek-ai/DeepSeek-V3.2": _V3,
    "zai-org/GLM-5": _GLM,
    "zai-org/GLM-5-FP8": _GLM,
    "zai-org/GLM-5.2": _GLM,
    "zai-org/GLM-5.2-FP8": _GLM,
    "nvidia/GLM-5.2-NVFP4": _GLM,
    "sgl-project/DeepSeek-V4-Flash-FP8": _V4_FLASH,
    "sgl-project/DeepSeek-V4-Pro-FP8": _V4_PRO,
    "deepseek-ai/DeepSeek-V4-Pro": _V4_PRO,
    "MiniMaxAI/MiniMax-M3": _M3,
}


def known_models(table: pa.Table) -> Bools:
    """Return the rows whose model's sizes are known, bool [n]."""
    models = text_column(table, "model")
    return np.array([name in _MODELS for name in models.words])[models.codes]


def module_fields(table: pa.Table) -> Figures:
    """Return the fields of attention_module that follow from the model and the operation."""
    models, names = text_column(table, "model"), text_column(table, "op_name")
    columns = zip(*(_MODELS[name] for name in models.words), strict=True)
    sizes = {name: np.array(column)[models.codes] for name, column in zip(_Layer._fields, columns, strict=True)}
    variant = np.array([_variant_of(name) for name in names.words])[names.codes]
    reused = np.array(["skip_indexer" in name for name in names.words])[names.codes]
    latent, heads = variant <= KINDS.index("dsa"), values_of(table, "num_heads")
    selects = ~np.isin(variant, [KINDS.index("mla"), KINDS.index("hca")])
    ratio = np.nan_to_num(values_of(table, "compress_ratio")) if "compress_ratio" in table.column_names else 0.0 * heads
    nothing = np.zeros(table.num_rows)
    return {
        "context_length": values_of(table, "new_tokens") + values_of(table, "past_tokens"),
        "hidden": sizes["hidden"],
        # Each device holds at least one head of keys.
        "kv_heads": np.maximum(np.floor(sizes["kv_heads"] * heads / sizes["heads"]), 1.0),
        "head_dim": sizes["head_dim"],
        "value_dim": sizes["value_dim"],
        "latent_dim": np.where(latent, sizes["latent_dim"], nothing),
        "rope_dim": np.where(latent, sizes["rope_dim"], nothing),
        "query_rank": sizes["query_rank"],
        "output_rank": sizes["output_rank"],
        "output_groups": np.maximum(sizes["groups"] * heads / sizes["heads"], 1.0),
        "index_heads": np.where(selects & ~reused, sizes["index_heads"], nothing),
        "index_dim": np.where(selects, sizes["index_dim"], nothing),
        "index_keys": np.where(selects, sizes["index_keys"], nothing),
        "window": sizes["window"],
        "compression": ratio,
    }


def _variant_of(name: str) -> int:
    """Return the code of an operation's variant."""
    return KINDS.index(next(variant for prefix, variant in _VARIANT.items() if name.startswith(prefix)))


def _variant_words() -> dict[str, str]:
    """Return the variant of every operation's name."""
    forms = ("context_module", "generation_module", "context_module_skip_indexer", "generation_module_skip_indexer")
    named = {f"{prefix}_{form}": variant for prefix, variant in _VARIANT.items() for form in forms}
    return named | {"mla_context": "mla", "mla_generation": "mla"}


def _state_fields(table: pa.Table) -> Figures:
    """Return the sizes of a layer of linear attention: those of mamba2 have other columns."""
    groups = {"key_heads": "n_groups", "value_heads": "nheads", "key_dim": "d_state", "value_dim": "head_dim"}
    heads = {
        "key_heads": "num_k_heads",
        "value_heads": "num_v_heads",
        "key_dim": "head_k_dim",
        "value_dim": "head_v_dim",
    }
    fields = {}
    for name, column in heads.items():
        mine, other = values_of(table, column), values_of(table, groups[name])
        fields[name] = np.where(np.isnan(mine), other, mine)
    return fields


def _filter_fields(table: pa.Table) -> Figures:
    """Return the channels of the convolution: queries, keys and values."""
    sizes = _state_fields(table)
    keys, values = sizes["key_heads"] * sizes["key_dim"], sizes["value_heads"] * sizes["value_dim"]
    return {"channels": 2.0 * keys + values}


def _scan_fields(table: pa.Table) -> Figures:
    """Return the sizes and the chunk, 64 tokens where the table names none."""
    chunk: Floats = values_of(table, "chunk_size")
    return {**_state_fields(table), "chunk": np.where(np.isnan(chunk), 64.0, chunk)}


_MODULE = {"batch": "batch_size", "heads": "num_heads", "query_length": "new_tokens"}
_KV = {"kv_dtype": ("kv_cache_dtype", {**DTYPES, "fp8_e4m3": "fp8"}), "variant": ("op_name", _variant_words())}
_STATES = ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "d_state", "nheads", "head_dim", "n_groups")
_SEQUENCES = {"batch": "batch_size", "query_length": "seq_len"}
_OF_STATES = ("num_tokens", "d_model", "model_name", "table")
_CONVOLUTION = "causal_conv1d"


def is_convolution(table: pa.Table) -> Bools:
    """Return the rows of the short convolution, bool [n]."""
    kernels = text_column(table, "kernel_source")
    return np.array([name.startswith(_CONVOLUTION) for name in kernels.words])[kernels.codes]


def is_scan(table: pa.Table) -> Bools:
    """Return the rows of many tokens at once, bool [n]."""
    phases = text_column(table, "phase")
    return np.array([name == "context" for name in phases.words])[phases.codes]


def _decodes_one_token(table: pa.Table) -> Bools:
    """Return the rows whose one new token, if no more, is a decode, as stacks run it, bool [n]."""
    names = text_column(table, "op_name")
    decodes = np.array(["generation" in name for name in names.words])[names.codes]
    return decodes | (values_of(table, "new_tokens") > 1.0)


_KNOWN = {
    "models whose sizes are not known": known_models,
    "prefills of one token, which stacks decode": _decodes_one_token,
}
_STATE = Table(
    "linear_attention",
    _SEQUENCES,
    {"variant": ("op_name", {})},
    _scan_fields,
    (*_STATES, "chunk_size", "d_conv"),
    dtype="",
    unused=_OF_STATES,
    labels=("phase",),
)
_SIZES = ("num_heads", "batch_size", "new_tokens", "past_tokens")
MODULES: dict[str, tuple[Table, ...]] = {
    "mla_module.parquet": (
        Table(
            "attention_module",
            _MODULE,
            _KV,
            module_fields,
            ("past_tokens",),
            dtype="gemm_type",
            unused=("mla_dtype", "tp_size", "table"),
            labels=("model",),
            known=_KNOWN,
            floors=("framework", "op_name", "kernel_source"),
            sizes=_SIZES,
        ),
    ),
    "sparse_attention_module.parquet": (
        Table(
            "attention_module",
            _MODULE,
            _KV,
            module_fields,
            ("past_tokens", "compress_ratio"),
            dtype="gemm_type",
            unused=("mla_dtype", "tp_size", "table"),
            labels=("model",),
            known=_KNOWN,
            sizes=_SIZES,
        ),
    ),
    "linear_attention.parquet": (
        _STATE._replace(rows=lambda table: is_scan(table) & ~is_convolution(table)),
        _STATE._replace(
            op="linear_attention_step",
            derived=_state_fields,
            rows=lambda table: ~is_scan(table) & ~is_convolution(table),
        ),
        _STATE._replace(
            op="short_convolution",
            numbers={**_SEQUENCES, "taps": "d_conv"},
            words={
                "variant": ("op_name", {}),
                "form": ("phase", {"context": "scan", "generation": "step", "verify": "step"}),
            },
            derived=_filter_fields,
            inputs=(*_STATES, "chunk_size"),
            rows=is_convolution,
            floors=("framework", "kernel_source"),
            sizes=tuple(_SEQUENCES.values()),
        ),
    ),
    "hyper_connections.parquet": (
        Table(
            "hyper_connections",
            {"b": "num_tokens", "h": "hidden_size", "streams": "hc_mult"},
            {"part": ("op_name", {})},
            dtype="",
            unused=("sinkhorn_iters", "table"),
            shares="num_sites",
        ),
    ),
}
