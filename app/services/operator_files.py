"""Measured operators in two published forms, as operator tables: NeuSight's, and aiconfigurator's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from app.errors import BadInput, NotFound
from app.ops import OP_CODE, OPS
from app.ops.collective import IMPLEMENTATIONS
from app.ops.moe import distribution
from app.tables.ops import DTYPE_CODE, OpTable

Floats = NDArray[np.float64]


class Measured(NamedTuple):
    """Rows of one operator in one dtype, n of them, as the file has them.

    gpu, split, stack, kernel  names [n]; None where the file has none
    grid, block  float64 [3, n], NaN where not known
    """

    op: str
    dtype: str
    table: OpTable
    latency_s: Floats
    gpu: list[str]
    split: list[str | None]
    stack: list[str | None]
    kernel: list[str | None]
    grid: Floats
    block: Floats


NEUSIGHT_FILE = "neusight/operators_fp32.parquet"
# NeuSight's names; a trailing u is tensor with scalar.
_NEUSIGHT = {"linear": "linear", "bmm": "bmm", "conv": "conv2d", "ln": "layer_norm", "softmax": "softmax"} | {
    f"{name}{suffix}": f"{name}{ours}"
    for name in ("add", "mul", "div", "pow")
    for suffix, ours in (("", ""), ("u", "_scalar"))
}
_SAME_NAME = ("relu", "gelu", "tanh")
_COLLECTIVES = {"alltoall": "all_to_all"}
_DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
_ATTENTION = {
    "batch": "batch_size",
    "heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "query_length": "new_tokens",
    "window": "window_size",
}
# File of aiconfigurator's data -> our column: its column.
_MODERN: dict[str, Mapping[str, str]] = {
    "gemm": {"m": "m", "n": "n", "k": "k"},
    "attention_prefill": _ATTENTION,
    "attention_decode": _ATTENTION,
    "moe": {
        "tokens": "num_tokens",
        "hidden": "hidden_size",
        "intermediate": "inter_size",
        "experts": "num_experts",
        "top_k": "topk",
        "tensor_parallel": "moe_tp_size",
        "expert_parallel": "moe_ep_size",
    },
    "collective": {"message_bytes": "message_bytes", "devices": "num_gpus"},
}
# vLLM's own all_reduce, launched by the host or in a CUDA graph.
_CUSTOM = {"vLLM_custom_eager": "custom", "vLLM_custom_graph": "custom"}
_CODED: dict[str, tuple[str, str, Callable[[str], float]]] = {
    "attention_prefill": ("kv_dtype", "kv_dtype", lambda word: DTYPE_CODE[_DTYPES.get(word, word)]),
    "attention_decode": ("kv_dtype", "kv_dtype", lambda word: DTYPE_CODE[_DTYPES.get(word, word)]),
    "moe": ("distribution", "distribution", distribution),
    "collective": ("implementation", "impl", lambda word: IMPLEMENTATIONS.index(_CUSTOM.get(word, word))),
}


def read_operators(folder: Path) -> Iterator[Measured]:
    """Every operator and dtype of both data sets in `folder`; a file that is absent is passed over."""
    found = [name for name in (NEUSIGHT_FILE, *map(_modern_file, _MODERN)) if (folder / name).is_file()]
    if not found:
        raise NotFound(f"{folder} has none of the files known. Pass --data the folder that holds {NEUSIGHT_FILE}.")
    for name in found:
        try:
            rows = pq.read_table(folder / name)
            yield from _neusight(rows) if name == NEUSIGHT_FILE else _modern(Path(name).stem, rows)
        except (KeyError, pa.ArrowException) as error:
            raise BadInput(f"{folder / name} is not in the form expected: {error}") from error


def _modern_file(name: str) -> str:
    return f"modern_operators/{name}.parquet"


def _numbers(rows: pa.Table, name: str) -> Floats:
    values: Floats = rows[name].to_numpy().astype(np.float64)
    return values


def _neusight(rows: pa.Table) -> Iterator[Measured]:
    for theirs, ours in (_NEUSIGHT | {name: name for name in _SAME_NAME}).items():
        part = rows.filter(pc.equal(rows["op"], theirs))
        names = [dim.name for dim in OPS[OP_CODE[ours]].dims if dim.name in part.schema.names]
        given = {name: _numbers(part, name) for name in names}
        if part.num_rows:
            yield _measured(ours, "fp32", part, given)


def _modern(name: str, rows: pa.Table) -> Iterator[Measured]:
    for theirs in sorted(set(rows["dtype"].to_pylist())):
        of_dtype = rows.filter(pc.equal(rows["dtype"], theirs))
        for op, part in _operations(name, of_dtype):
            given = {ours: _numbers(part, column) for ours, column in _MODERN[name].items()}
            if name in _CODED:
                ours, column, code = _CODED[name]
                given[ours] = _coded(part[column], code)
            if name == "collective":
                given["eager"] = _coded(part["impl"], lambda word: 1.0 if word == "vLLM_custom_eager" else np.nan)
            if "query_length" in given:
                given["context_length"] = given["query_length"] + _numbers(part, "past_tokens")
            yield _measured(op, _DTYPES.get(theirs, theirs), part, given)


def _operations(name: str, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    if name != "collective":
        yield ("linear" if name == "gemm" else name), rows
        return
    for operation in sorted(set(rows["operation"].to_pylist())):
        yield _COLLECTIVES.get(operation, operation), rows.filter(pc.equal(rows["operation"], operation))


def _coded(words: pa.ChunkedArray, code: Callable[[str], float]) -> Floats:
    dictionary = words.combine_chunks().dictionary_encode()
    codes = np.array([code(word) for word in dictionary.dictionary.to_pylist()], dtype=np.float64)
    values: Floats = codes[dictionary.indices.to_numpy()]
    return values


def _measured(name: str, dtype: str, rows: pa.Table, given: Mapping[str, Floats]) -> Measured:
    op, n = OPS[OP_CODE[name]], rows.num_rows
    dims = np.full((len(op.fields), n), np.nan)
    for dim in op.dims:
        for column in dim.columns:
            dims[op.fields[column]] = given.get(dim.name, np.nan if dim.default is None else dim.default)
    zeros = np.zeros(n, dtype=np.intp)
    return Measured(
        name,
        dtype,
        OpTable(zeros + OP_CODE[name], zeros + DTYPE_CODE[dtype], zeros, op.fields, dims),
        _numbers(rows, "latency_ms") * 1e-3,
        rows["gpu"].to_pylist(),
        _words(rows, "split"),
        _stacks(rows),
        _words(rows, "kernel" if "kernel" in rows.schema.names else "kernel_source"),
        _extents(rows, "grid"),
        _extents(rows, "block"),
    )


def _words(rows: pa.Table, name: str) -> list[str | None]:
    words: list[str | None] = rows[name].to_pylist() if name in rows.schema.names else [None] * rows.num_rows
    return words


def _stacks(rows: pa.Table) -> list[str | None]:
    """Software as requests name it, pytorch-2.1.0 or vllm-0.24.0."""
    names = ["pytorch"] * rows.num_rows if "torch" in rows.schema.names else _words(rows, "framework")
    versions = _words(rows, "torch" if "torch" in rows.schema.names else "framework_version")
    return [f"{name}-{version}" if version else name for name, version in zip(names, versions, strict=True)]


def _extents(rows: pa.Table, name: str) -> Floats:
    columns = [f"{name}_{axis}" for axis in "xyz"]
    if columns[0] not in rows.schema.names:
        return np.full((3, rows.num_rows), np.nan)
    return np.stack([_numbers(rows, column) for column in columns])
