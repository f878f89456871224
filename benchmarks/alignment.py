"""Products of our H100 and H200 by whether their rows are aligned, beside what `auto` predicts.

    python -m benchmarks.alignment

A line is an operator, a GPU, and the elements that can be loaded at once (app.ops.alignment): rows of `gpucast measure`
in FP16 and BF16, forward, and the first, the middle and the ninth decile of predicted over measured time. No such row
of less than whole 16 bytes teaches `auto`; the constants of their time were read from the H200's.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np

from app.config import SEED_MEASUREMENTS, SHIPPED_MODELS
from app.evaluation.scorecard.score import shipped_snapshot
from app.services.dispatch import predict_workload
from app.wire.predict_body import read_request
from benchmarks.repeats import measured_rows

GPUS = {"h200": "h200-sxm-141gb", "h100": "h100-sxm5-80gb"}
SIZES = {"linear": ("m", "n", "k"), "bmm": ("b", "m", "n", "k")}


def main() -> None:
    """Print the quantiles."""
    snapshot, found = shipped_snapshot(SHIPPED_MODELS), defaultdict(list)
    for short, gpu in GPUS.items():
        for row in measured_rows(SEED_MEASUREMENTS / f"{short}-operators.parquet").values():
            if row["op"] not in SIZES or row["dtype"] not in ("bf16", "fp16") or row.get("phase") == "backward":
                continue
            # Another software than the row's: exact hits would be answered as measured.
            sizes = {name: row[name] for name in ("op", "dtype", *SIZES[row["op"]])} | {"software": "vllm"}
            body = {"gpu": gpu, "workload": {"kind": "operators", "operators": [sizes]}, "predictor": "auto"}
            answer = predict_workload(snapshot, read_request(msgspec.json.encode(body)), max_rows=1, advise=False)
            at_once = min(size & -size for size in (row["n"], row["k"], 8))
            found[row["op"], short, at_once].append(answer.predictions[0].latency_ms / row["latency_ms"])
    for (op, gpu, at_once), ratios in sorted(found.items()):
        figures = "".join(f"{each:>8.2f}" for each in np.quantile(ratios, (0.1, 0.5, 0.9)))
        print(f"{op:<8}{gpu:<6}{at_once} at once{len(ratios):>5}{figures}")


if __name__ == "__main__":
    main()
