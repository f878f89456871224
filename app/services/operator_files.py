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
from app.ops.moe import distribution
from app.tables.ops import DTYPE_CODE, OpTable

Floats = NDArray[np.float64]


class Measured(NamedTuple):
    """Rows of one operator in one dtype: their table, GPU names of the file, seconds, NeuSight's split, [n] each."""

    op: str
    dtype: str
    table: OpTable
    gpu: list[str]
    latency_s: Floats
    split: list[str]


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
_CODED: dict[str, tuple[str, str, Callable[[str], float]]] = {
    "attention_prefill": ("kv_dtype", "kv_dtype", lambda word: DTYPE_CODE[_DTYPES.get(word, word)]),
    "attention_decode": ("kv_dtype", "kv_dtype", lambda word: DTYPE_CODE[_DTYPES.get(word, word)]),
    "moe": ("distribution", "distribution", distribution),
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
    table = OpTable(zeros + OP_CODE[name], zeros + DTYPE_CODE[dtype], zeros, op.fields, dims)
    split = rows["split"].to_pylist() if "split" in rows.schema.names else [""] * n
    return Measured(name, dtype, table, rows["gpu"].to_pylist(), _numbers(rows, "latency_ms") * 1e-3, split)
