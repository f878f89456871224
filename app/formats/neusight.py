"""Read NeuSight's operator measurements: operators_fp32.parquet, one operator per row, PyTorch eager in FP32.

Latencies are milliseconds; `k` is the summed dimension; a trailing u means tensor with scalar. `split` (train or test
dimensions, as in the paper) is for evaluation; rows of both are stored alike. Convolutions are stored without host
drift (app.formats.host_drift).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.errors import BadInput, FieldError, NotFound
from app.formats.base import Part, PartsImporter
from app.formats.host_drift import host_drift
from app.formats.table_columns import (
    constant_column,
    number_column,
    read_table,
    stack_numbers,
    text_column,
)
from app.ops import OP_CODE, OPS
from app.wire.measurements.upload import OperatorColumns
from app.wire.operators.operator_columns import Column

FILE = "operators_fp32.parquet"
SOURCE = "neusight"
STACK = "pytorch"
_MS_PER_S = 1e3
_SAME_NAME = ("linear", "bmm", "softmax", "relu", "gelu", "tanh", "add", "mul", "div", "pow")
_OPS = (
    {name: name for name in _SAME_NAME}
    | {"conv": "conv2d", "ln": "layer_norm"}
    | {f"{name}u": f"{name}_scalar" for name in ("add", "mul", "div", "pow")}
)
_DIMS = ("b", "h", "m", "n", "k", "in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding")
_GRID, _BLOCK = (("grid_x", "grid_y", "grid_z"), ("block_x", "block_y", "block_z"))
_WORDS = ("op", "gpu", "torch", "kernel", "split")
_OPTIONAL = (*_DIMS, *_GRID, *_BLOCK, "torch", "kernel", "split")
_UNUSED = ("cudnn", "cuda", "warps_per_sm", "blocks_per_sm", "source_file", "kernels")
SPLITS = ("train", "test")
# Operators measured by processes whose launches grew slower.
DRIFTING = ("conv2d",)


def read(folder: Path) -> Iterator[Part]:
    """Yield one part per operator. Raises BadInput that names unknown operators and splits."""
    path = folder / FILE
    if not path.is_file():
        raise NotFound(f"No {FILE} in {folder}.")
    numbers = ("latency_ms", *_DIMS, *_GRID, *_BLOCK)
    table = read_table(path, _WORDS, numbers, optional=_OPTIONAL, unused=_UNUSED)
    _refuse_unknown(table, "op", tuple(_OPS))
    _refuse_unknown(table, "split", SPLITS)
    for theirs, ours in _OPS.items():
        rows = np.flatnonzero(pc.equal(table["op"], theirs).fill_null(False).to_numpy())
        if len(rows):
            yield _part(ours, table.take(rows), rows, drifts=ours in DRIFTING)


def _refuse_unknown(table: pa.Table, name: str, known: tuple[str, ...]) -> None:
    unknown = [word for word in table[name].unique().to_pylist() if word not in (*known, None)]
    if unknown:
        msg = f"unknown {name} {', '.join(map(repr, unknown[:20]))}; known are {', '.join(known)}"
        raise BadInput(f"{FILE}: {msg}", errors=[FieldError((FILE, name), msg)])


def _part(op: str, table: pa.Table, rows: np.ndarray[tuple[int], np.dtype[np.intp]], *, drifts: bool) -> Part:
    gpu, latency = text_column(table, "gpu"), number_column(table, "latency_ms")
    slower = host_drift(latency.values, gpu.codes) if drifts else None
    columns: dict[str, Column] = {
        "op": constant_column(op),
        "dtype": constant_column("fp32"),
        "gpu": gpu,
        "software": _software(table),
        "source": constant_column(SOURCE),
        "latency_ms": latency if slower is None else latency._replace(values=latency.values - slower),
        "kernel.name": text_column(table, "kernel"),
        "kernel.grid": stack_numbers(table, _GRID),
        "kernel.block": stack_numbers(table, _BLOCK),
    }
    columns |= {dim.name: number_column(table, dim.name) for dim in OPS[OP_CODE[op]].dims if dim.name in _DIMS}
    split = text_column(table, "split")
    test = np.array([word == SPLITS[1] for word in (*split.words, "")])
    return Part(
        FILE,
        OperatorColumns(columns, rows),
        test[split.codes] if (split.codes >= 0).any() else None,
        host_drift_s=None if slower is None else slower / _MS_PER_S,
    )


def _software(table: pa.Table) -> Column:
    """Return PyTorch with its version where known."""
    found = text_column(table, "torch", lambda version: f"{STACK}-{version}")
    codes = np.where(found.codes < 0, len(found.words), found.codes)
    return found._replace(words=(*found.words, STACK), codes=codes)


IMPORTER = PartsImporter(SOURCE, read)
