"""Operators that PyTorch ran on our H100 and H200, beside what `auto` predicts that learned from nothing.

    python -m benchmarks.torch_kernels

Of rows whose time is the GPU's: those of CUDA graphs, and others of over 0.3 ms. A line is an operator, its phase, and
formats of 16 bits or others; by GPU (H200, H100) the number of rows, and the first, the middle and the ninth decile of
predicted over measured time. What bounds pools, depthwise convolutions, norms and recurrent layers was read from the
H200's.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from app.ops import OP_CODE, OPS
from app.stacks.release import is_eager
from benchmarks.own_rows import FOLDERS, GPUS, OwnRow, own_rows, predicted_ms
from evaluation.study import shipped_snapshot

LEAST_MS, LEAST_ROWS = 0.3, 5
BITS_16 = ("bf16", "fp16")


def main() -> None:
    """Print the quantiles."""
    found = defaultdict(list)
    with TemporaryDirectory() as nothing:
        snapshot = shipped_snapshot(Path(nothing))
        for own in own_rows(*FOLDERS):
            row = own.row
            if row["latency_ms"] > LEAST_MS or not is_eager(row["software"]):
                line = row["op"], row.get("phase") or "forward", "16 bits" if row["dtype"] in BITS_16 else "wider"
                found[line, own.gpu].append(predicted_ms(snapshot, own, _sizes(own)) / row["latency_ms"])
    for line in sorted({line for line, _ in found}):
        figures = "".join(_figures(found[line, gpu]) for gpu in GPUS)
        if figures.strip():
            print(f"{line[0]:<20}{line[1]:<10}{line[2]:<8}{figures}")


def _sizes(own: OwnRow) -> dict[str, object]:
    """Return the operator as a request has it."""
    fields = {dim.name for dim in OPS[OP_CODE[own.row["op"]]].dims} | {"op", "dtype", "phase", "software"}
    return {name: value for name, value in own.row.items() if name in fields and value is not None}


def _figures(ratios: list[float]) -> str:
    if len(ratios) < LEAST_ROWS:
        return " " * 30
    return f"{len(ratios):>6}" + "".join(f"{each:>8.2f}" for each in np.quantile(ratios, (0.1, 0.5, 0.9)))


if __name__ == "__main__":
    main()
