"""Meaning of the tables of aiconfigurator, in both forms in which they come: by operator, or by serving stack.

Tables by serving stack name the operation in `op_name` and count collectives' elements instead of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from app.formats.table_columns import join_text, number_column, text_column
from app.tables.arrays import Bools, Floats

Figures = Mapping[str, Floats]
# Of a column's words: those that are spelled otherwise here, or how all are.
Spelling = Mapping[str, str] | Callable[[str], str]
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "fp8_static": "fp8"}
_COLLECTIVES = {"alltoall": "all_to_all"}
_IMPLEMENTATIONS = {"NCCL": "nccl", "oneCCL": "oneccl"}
EAGER = "_eager"


def nothing_derived(table: pa.Table) -> Figures:
    """No fields beside those that columns hold."""
    return {}


class Table(NamedTuple):
    """Meaning of a table's columns.

    op       the operator, or None if a column has it
    numbers  our field -> its column
    words    our field -> its column, and its spelling -> ours
    derived  our fields computed from columns, each float64 [n]
    inputs   columns of numbers that `derived` reads; `labels`: of text
    rows     which rows it is of; None: all
    known    which of these are read, by the reason why others are not
    time     column of the time, and `unit_s`, the seconds of its unit
    added_ms what to add to that time, float64 [n], milliseconds; None: nothing
    shares   column of how many times a row's time holds the operator
    dtype    column of the number format; empty: `constant_dtype`
    kernel   column of the kernel's name
    floors   columns that tell kernels of all sizes apart, whose floors, and `sizes`, show which rows the host bounds;
             empty: not compared
    sizes    columns of sizes that times grow with, by which unsteady kernels are found; empty: not compared
    unused   columns that say nothing more
    formats  number formats that are read; empty: all
    custom   whether its rows are a stack's own collectives
    """

    op: str | None
    numbers: Mapping[str, str]
    words: Mapping[str, tuple[str, Spelling]] = {}
    derived: Callable[[pa.Table], Figures] = nothing_derived
    inputs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    rows: Callable[[pa.Table], Bools] | None = None
    known: Mapping[str, Callable[[pa.Table], Bools]] = {}
    time: str = "latency_ms"
    unit_s: float = 1e-3
    added_ms: Callable[[pa.Table], Floats] | None = None
    shares: str = ""
    dtype: str = "dtype"
    constant_dtype: str = "bf16"
    kernel: str = "kernel_source"
    floors: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    custom: bool = False


def values_of(table: pa.Table, name: str) -> Floats:
    """Return a column of numbers, NaN where missing, float64 [n]."""
    return number_column(table, name).values


def _context(table: pa.Table) -> Figures:
    """Past and new keys together."""
    return {"context_length": values_of(table, "new_tokens") + values_of(table, "past_tokens")}


def _unmasked(table: pa.Table) -> Figures:
    """Attention of all tokens to all: as causal attention over a window that holds every key."""
    tokens = values_of(table, "new_tokens")
    return {"query_length": tokens, "context_length": 2.0 * tokens - 1.0, "window": tokens}


def _latent(table: pa.Table) -> Figures:
    """DeepSeek-V3's heads of 128 elements."""
    return {**_context(table), "head_dim": np.full(table.num_rows, 128.0)}


def _absorbed(table: pa.Table) -> Figures:
    """DeepSeek-V3's products before and after latent attention: 128 elements of a head to 512 latent ones, and back."""
    into = np.array([name.endswith("pre") for name in table["op_name"].to_pylist()])
    return {"n": np.where(into, 512.0, 128.0), "k": np.where(into, 128.0, 512.0)}


def _elements(table: pa.Table) -> Figures:
    """Bytes of a message that is counted in elements."""
    size = np.array([1.0 if name == "int8" else 2.0 for name in table["dtype"].to_pylist()])
    return {"message_bytes": values_of(table, "message_size") * size}


# Stacks whose experts were measured with all `top_k` pairs of each token that has one on the rank, not with the rank's
# own: with balanced loads the time stays the same up to `top_k` ranks.
_ALL_PAIRS = ("sglang-0.5.10",)


def _of_one_rank(table: pa.Table) -> Bools:
    """Return the rows of experts that were measured with the pairs of one rank, bool [n]."""
    stacks = join_text(text_column(table, "framework"), text_column(table, "framework_version"))
    all_pairs = np.array([stack in _ALL_PAIRS for stack in stacks.words], dtype=np.bool_)[stacks.codes]
    own: Bools = ~all_pairs | (values_of(table, "moe_ep_size") == 1.0)
    return own


_ATTENTION = {
    "batch": "batch_size",
    "heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "query_length": "new_tokens",
    "window": "window_size",
}
_EXPERTS = {
    "tokens": "num_tokens",
    "hidden": "hidden_size",
    "intermediate": "inter_size",
    "experts": "num_experts",
    "tensor_parallel": "moe_tp_size",
    "expert_parallel": "moe_ep_size",
}
_PRODUCT = {"m": "m", "n": "n", "k": "k"}
_PAST = ("past_tokens",)
_KERNELS = ("framework", "dtype", "kernel_source")
_KV = {"kv_dtype": ("kv_dtype", DTYPES)}
_KV_CACHE = {"kv_dtype": ("kv_cache_dtype", DTYPES)}
_SPREAD: Mapping[str, tuple[str, Mapping[str, str]]] = {"distribution": ("distribution", {})}


def _by_operator() -> dict[str, Table]:
    attention = {
        f"attention_{phase}.parquet": Table(f"attention_{phase}", _ATTENTION, _KV, _context, _PAST)
        for phase in ("prefill", "decode")
    }
    return attention | {
        "gemm.parquet": Table("linear", _PRODUCT),
        "moe.parquet": Table("moe", {**_EXPERTS, "top_k": "topk"}, _SPREAD),
        "collective.parquet": Table(
            None,
            {"message_bytes": "message_bytes", "devices": "num_gpus"},
            {
                "op": ("operation", _COLLECTIVES),
                "implementation": ("impl", {"vLLM_custom_eager": "custom", "vLLM_custom_graph": "custom"}),
            },
            kernel="impl",
        ),
    }


def _by_stack() -> dict[str, Table]:
    named = ("op_name",)
    attention = {
        f"attention_{phase}.parquet": Table(f"attention_{phase}", _ATTENTION, _KV_CACHE, _context, _PAST, unused=named)
        for phase in ("prefill", "decode")
    }
    message, devices = ("message_size",), {"devices": "num_gpus"}
    return attention | {
        "gemm.parquet": Table(
            "linear",
            _PRODUCT,
            unused=named,
            formats=("bf16", "fp8", "fp8_block", "nvfp4"),
            floors=_KERNELS,
            sizes=("m", "n", "k"),
        ),
        "attention_encoder.parquet": Table(
            "attention_prefill",
            {"batch": "batch_size", "heads": "num_heads", "head_dim": "head_dim"},
            {},
            _unmasked,
            ("new_tokens",),
            unused=named,
        ),
        "mla.parquet": Table(
            "attention_mla",
            {"batch": "batch_size", "heads": "num_heads", "query_length": "new_tokens"},
            _KV_CACHE,
            _latent,
            _PAST,
            dtype="mla_dtype",
            unused=(*named, "table", "tp_size"),
            floors=("framework", "kernel_source"),
            sizes=("num_heads", "batch_size", "new_tokens", "past_tokens"),
        ),
        "mla_bmm.parquet": Table(
            "bmm", {"b": "num_heads", "m": "num_tokens"}, {}, _absorbed, labels=("op_name",), unused=("table",)
        ),
        "moe.parquet": Table(
            "moe",
            {**_EXPERTS, "top_k": "top_k"},
            _SPREAD,
            known={"loads of all ranks on one": _of_one_rank},
            unused=named,
        ),
        "collective.parquet": Table(
            None,
            devices,
            {"op": ("op_name", _COLLECTIVES), "implementation": ("kernel_source", _IMPLEMENTATIONS)},
            _elements,
            message,
            unused=("table",),
        ),
        "all_reduce_custom.parquet": Table(
            "all_reduce", devices, {}, _elements, message, unused=(*named, "table", "implementation"), custom=True
        ),
    }


BY_OPERATOR, BY_STACK = _by_operator(), _by_stack()
