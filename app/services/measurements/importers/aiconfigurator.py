"""Read aiconfigurator's measurements of modern operators: gemm, attention, mixtures of experts and collectives.

Latencies are milliseconds of device time in CUDA graphs. The kernel's name is `kernel_source`, for collectives `impl`.
The software is the framework with its version, with vllm-eager for collectives launched by the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from app.errors import NotFound
from app.ops.moe import GATES, ROUTERS
from app.services.measurements.importers.base import Part, PartsImporter
from app.services.measurements.importers.table_columns import (
    constant_column,
    join_text,
    number_column,
    read_table,
    text_column,
)
from app.wire.measurements.upload import OperatorColumns
from app.wire.operators.operator_columns import Column, Numbers, Words

SOURCE = "aiconfigurator"
MOE = "moe"
_DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
_COLLECTIVES = {"alltoall": "all_to_all"}
_EAGER = "vLLM_custom_eager"
_IMPLEMENTATIONS = {_EAGER: "custom", "vLLM_custom_graph": "custom"}
_IMPL = "impl"
_STACK = ("gpu", "framework", "framework_version", "dtype")
_KERNEL = "kernel_source"


class _File(NamedTuple):
    """Meaning of a file's columns.

    op       the operator, or None if a column has it
    numbers  our field -> its column
    words    our field -> its column, and its spelling -> ours
    kernel   column of the kernel's name
    """

    op: str | None
    numbers: Mapping[str, str]
    words: Mapping[str, tuple[str, Mapping[str, str]]]
    kernel: str = _KERNEL


_ATTENTION_NUMBERS = {
    "batch": "batch_size",
    "heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "query_length": "new_tokens",
    "window": "window_size",
}
_ATTENTION_WORDS = {"kv_dtype": ("kv_dtype", _DTYPES)}
_PAST = "past_tokens"
# Layers of the data that its columns do not tell from others: hidden, intermediate, experts -> gate and router.
# Nemotron 3 (squared ReLU), Gemma 4 26B-A4B, MiniMax-M3 (clamped and shifted), Kimi K3 (SiTU), DeepSeek-V3.
_LAYERS = {
    (2688, 1856, 128): ("none", "plain"),
    (1024, 2688, 512): ("none", "plain"),
    (2048, 5120, 512): ("none", "plain"),
    (2816, 704, 128): ("gelu", "plain"),
    (6144, 3072, 128): ("other", "plain"),
    (3584, 3072, 896): ("other", "plain"),
    (7168, 2048, 256): ("silu", "grouped"),
}
FILES = {
    "gemm.parquet": _File("linear", {"m": "m", "n": "n", "k": "k"}, {}),
    "attention_prefill.parquet": _File("attention_prefill", _ATTENTION_NUMBERS, _ATTENTION_WORDS),
    "attention_decode.parquet": _File("attention_decode", _ATTENTION_NUMBERS, _ATTENTION_WORDS),
    "moe.parquet": _File(
        MOE,
        {
            "tokens": "num_tokens",
            "hidden": "hidden_size",
            "intermediate": "inter_size",
            "experts": "num_experts",
            "top_k": "topk",
            "tensor_parallel": "moe_tp_size",
            "expert_parallel": "moe_ep_size",
        },
        {"distribution": ("distribution", {})},
    ),
    "collective.parquet": _File(
        None,
        {"message_bytes": "message_bytes", "devices": "num_gpus"},
        {"op": ("operation", _COLLECTIVES), "implementation": (_IMPL, _IMPLEMENTATIONS)},
        _IMPL,
    ),
}


def read(folder: Path) -> Iterator[Part]:
    """Yield one part per file found."""
    names = [name for name in FILES if (folder / name).is_file()]
    if not names:
        raise NotFound(f"{folder} has none of {', '.join(FILES)}.")
    for name in names:
        yield _part(name, FILES[name], folder / name)


def _part(name: str, file: _File, path: Path) -> Part:
    past = (_PAST,) if "query_length" in file.numbers else ()
    theirs = dict.fromkeys((*_STACK, file.kernel, *(column for column, _ in file.words.values())))
    table = read_table(path, tuple(theirs), (*file.numbers.values(), *past, "latency_ms"))
    columns: dict[str, Column] = {
        "gpu": text_column(table, "gpu"),
        "software": join_text(_framework(table), text_column(table, "framework_version")),
        "source": constant_column(SOURCE),
        "dtype": text_column(table, "dtype", _DTYPES),
        "latency_ms": number_column(table, "latency_ms"),
        "kernel.name": text_column(table, file.kernel),
    }
    if file.op is not None:
        columns["op"] = constant_column(file.op)
    columns |= {ours: number_column(table, column) for ours, column in file.numbers.items()}
    columns |= {ours: text_column(table, column, spelled) for ours, (column, spelled) in file.words.items()}
    if file.op == MOE:
        columns |= _gates_and_routers(table)
    if past:
        columns["context_length"] = _context(table, file)
    return Part(name, OperatorColumns(columns, np.arange(table.num_rows)), None)


def _framework(table: pa.Table) -> Words:
    """Return the framework, with suffix `-eager` for collectives that the host launched instead of a graph."""
    framework = text_column(table, "framework")
    if _IMPL not in table.column_names:
        return framework
    impl = text_column(table, _IMPL)
    eager = np.array([word == _EAGER for word in (*impl.words, "")])[impl.codes]
    codes = np.where(eager, framework.codes + len(framework.words), framework.codes)
    return framework._replace(words=(*framework.words, *(f"{word}-eager" for word in framework.words)), codes=codes)


def _gates_and_routers(table: pa.Table) -> dict[str, Column]:
    """`gate` and `router` of every row, by the sizes of its layer."""
    sizes = np.stack([number_column(table, name).values for name in ("hidden_size", "inter_size", "num_experts")])
    gates, routers = np.zeros(table.num_rows, dtype=np.intp), np.zeros(table.num_rows, dtype=np.intp)
    for layer, (gate, router) in _LAYERS.items():
        rows = (sizes == np.array(layer)[:, None]).all(axis=0)
        gates[rows], routers[rows] = GATES.index(gate), ROUTERS.index(router)
    return {"gate": Words(GATES, gates, False), "router": Words(ROUTERS, routers, False)}


def _context(table: pa.Table, file: _File) -> Numbers:
    """Return the context length: past and new keys."""
    new, past = number_column(table, file.numbers["query_length"]), number_column(table, _PAST)
    return Numbers(new.values + past.values, new.absent | past.absent, False)


IMPORTER = PartsImporter(SOURCE, read)
