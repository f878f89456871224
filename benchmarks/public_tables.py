"""Our own measurements of an H200 beside aiconfigurator's tables of the same GPU, row by row.

    python -m benchmarks.public_tables --data FOLDER [--ours FILE.parquet] [--gpu NAME]

FOLDER is aiconfigurator's data (`gpucast import aiconfigurator`). A line is an operator, format and stack: rows, the
median ratio of our time to the table's, and the median distance from it; then the same of rows above 0.1 ms, which
depend less on whether the L2 was emptied (`gpucast measure`: yes; `benchmarks.warm_l2`: no).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq

from app.config import SEED_MEASUREMENTS

OURS = SEED_MEASUREMENTS / "h200-serving-rows.parquet"
LONG_MS = 0.1
_DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
_ATTENTION = ("attention_prefill", "attention_decode")
Key = tuple[Any, ...]


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of aiconfigurator's tables")
    parser.add_argument("--ours", type=Path, default=OURS, help=f"file of ours (default: {OURS.name})")
    parser.add_argument("--gpu", default="h200_sxm", help="the GPU in the tables (default: h200_sxm)")
    options = parser.parse_args()
    tables = _tables(options.data, options.gpu)
    pairs: dict[Key, list[tuple[float, float]]] = defaultdict(list)
    for row in pq.read_table(options.ours).to_pylist():
        if row["outcome"] == "measured":
            for stack, theirs in tables[_ours(row)]:
                pairs[row["op"], row["dtype"], stack].append((row["latency_ms"] / theirs, theirs))
    print(
        f"{'operator':<18} {'format':<5} {'stack':<7} {'rows':>4} {'ratio':>6} {'apart':>6}   > {LONG_MS} ms: the same"
    )
    for (op, dtype, stack), found in sorted(pairs.items()):
        ratios = [ratio for ratio, _ in found]
        long = [ratio for ratio, theirs in found if theirs > LONG_MS]
        print(f"{op:<18} {dtype:<5} {stack:<7} {_line(ratios)}   {_line(long)}")


def _line(ratios: list[float]) -> str:
    return f"{len(ratios):>4} {median(ratios):>6.3f} {median(abs(ratio - 1.0) for ratio in ratios):>6.1%}"


def _ours(row: Mapping[str, Any]) -> Key:
    names = ("m", "n", "k") if row["op"] == "linear" else ("batch", "heads", "kv_heads", "head_dim", "context_length")
    return (row["op"], row["dtype"], *(row[name] for name in names))


def _tables(folder: Path, gpu: str) -> Mapping[Key, list[tuple[str, float]]]:
    """Return (stack, ms) of every row of the tables, by the key of `_ours`."""
    found: dict[Key, list[tuple[str, float]]] = defaultdict(list)
    for key, row in (*_products(folder, gpu), *_attention(folder, gpu)):
        found[key].append((row["framework"], row["latency_ms"]))
    return found


def _products(folder: Path, gpu: str) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    wanted = [("gpu", "=", gpu), ("dtype", "in", list(_DTYPES))]
    for row in pq.read_table(folder / "gemm.parquet", filters=wanted).to_pylist():
        yield ("linear", _DTYPES[row["dtype"]], row["m"], row["n"], row["k"]), row


def _attention(folder: Path, gpu: str) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    """Yield rows without a window, of one prefill without a prefix or one token a sequence, in BF16 throughout."""
    wanted = [("gpu", "=", gpu), ("dtype", "=", "bfloat16"), ("kv_cache_dtype", "=", "bfloat16")]
    for op in _ATTENTION:
        for row in pq.read_table(folder / f"{op}.parquet", filters=[*wanted, ("window_size", "=", 0)]).to_pylist():
            if row["new_tokens"] == 1 if op == "attention_decode" else row["past_tokens"] == 0:
                context = row["new_tokens"] + row["past_tokens"]
                sizes = (row["batch_size"], row["num_heads"], row["num_kv_heads"], row["head_dim"], context)
                yield (op, "bf16", *sizes), row


if __name__ == "__main__":
    main()
