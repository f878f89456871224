"""Products of our H100 and H200 by whether their rows are aligned, beside what `auto` predicts.

    python -m benchmarks.alignment

A line is an operator, a GPU, and the elements that can be loaded at once (app.ops.gemm): rows of `gpucast measure`
in FP16 and BF16, forward, and the first, the middle and the ninth decile of predicted over measured time. No such row
of less than whole 16 bytes teaches `auto`; the constants of their time were read from the H200's.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from app.config import SHIPPED_MODELS
from benchmarks.own_rows import own_rows, predicted_ms
from evaluation.study import shipped_snapshot

SIZES = {"linear": ("m", "n", "k"), "bmm": ("b", "m", "n", "k")}


def main() -> None:
    """Print the quantiles."""
    snapshot, found = shipped_snapshot(SHIPPED_MODELS), defaultdict(list)
    for own in own_rows(""):
        row = own.row
        if row["op"] not in SIZES or row["dtype"] not in ("bf16", "fp16") or row.get("phase") == "backward":
            continue
        # Another software than the row's: exact hits would be answered as measured.
        sizes = {name: row[name] for name in ("op", "dtype", *SIZES[row["op"]])} | {"software": "vllm"}
        at_once = min(size & -size for size in (row["n"], row["k"], 8))
        found[row["op"], own.gpu, at_once].append(predicted_ms(snapshot, own, sizes) / row["latency_ms"])
    for (op, gpu, at_once), ratios in sorted(found.items()):
        figures = "".join(f"{each:>8.2f}" for each in np.quantile(ratios, (0.1, 0.5, 0.9)))
        print(f"{op:<8}{gpu:<6}{at_once} at once{len(ratios):>5}{figures}")


if __name__ == "__main__":
    main()
