"""What scaling a sibling's DRAM seconds by its SMs is worth (models.sibling_transfer), on an H200 that an H100 taught.

    python -m benchmarks.siblings --data DIR

The shipped `auto` answers the products that vLLM's rows of DIR/serving_operators measured on the H200, which no
training has read. Both GPUs are of one chip; the H200 has 1.4 times the bandwidth.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from app.config import SHIPPED_MODELS
from app.engine.curated import load_seed_specs
from app.engine.shipped import shipped_versions
from app.ops import OP_CODE, OPS
from app.predictors.auto.predictor import Auto
from app.tables.arrays import Floats
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE, OpTable
from benchmarks.ablation_mechanisms import MECHANISMS

GPU, THEIRS, STACK = "h200-sxm-141gb", "h200_sxm", "vllm"
DTYPES = {"bf16": "bfloat16", "fp8": "fp8"}
MECHANISM = "a sibling's DRAM time by SMs"


def main() -> None:
    """Print the MAPE per dtype, with and without."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("GPUCAST_SHARED_DATA"), help="folder of data sets")
    data = parser.parse_args().data
    shipped = shipped_versions(SHIPPED_MODELS)["auto"].payload()
    without = next(one for one in MECHANISMS if one.name == MECHANISM)
    for dtype in DTYPES:
        ops, measured_s = _products(data, dtype)
        kept = _error(shipped, ops, measured_s)
        with without.off():
            lost = _error(shipped, ops, measured_s)
        print(f"linear {dtype}: {len(ops)} rows, MAPE {kept:.2f} %, without {lost:.2f} %")


def _products(data: Path, dtype: str) -> tuple[OpTable, Floats]:
    """Return the products measured in a dtype, and their seconds [n]."""
    table = pq.read_table(data / "serving_operators" / "gemm.parquet")
    for column, value in (("gpu", THEIRS), ("framework", STACK), ("dtype", DTYPES[dtype])):
        table = table.filter(pc.equal(table[column], value))
    op, n = OPS[OP_CODE["linear"]], table.num_rows
    sizes = {name: table[name].to_numpy().astype(np.float64) for name in "mnk"}
    default = {dim.name: dim.default for dim in op.dims}
    dims = np.array([sizes.get(name, np.full(n, default.get(name, 1.0))) for name in op.fields], dtype=np.float64)
    kind, code = np.full(n, OP_CODE["linear"]), np.full(n, DTYPE_CODE[dtype])
    ops = OpTable(kind, code, np.zeros(n, dtype=np.intp), op.fields, dims)
    return ops, table["latency_ms"].to_numpy().astype(np.float64) / 1e3


def _error(payload: Mapping[str, Any], ops: OpTable, measured_s: Floats) -> float:
    """Return the MAPE, percent, of a fresh `auto` over a fresh catalogue."""
    gpus, n = GpuTable.from_specs(load_seed_specs()), len(ops)
    answer = Auto.from_state(payload["state"]).operators_.estimate(
        ops, gpus, np.arange(n), np.full(n, gpus.ids.index(GPU))
    )
    return float(100.0 * np.abs(answer.latency_s / measured_s - 1.0).mean())


if __name__ == "__main__":
    main()
