"""Networks that two machines with the same GPU measured alike, as POST /predict answers them.

    python -m benchmarks.own_networks [--models-store FOLDER] [--each]

What the host launches depends on it, so only networks count whose times on two hosts differ by less than 5 %: there the
GPU was busy. FOLDER has the trained predictors (default: those that ship). A line is a mode and format: networks, the
median error of `auto`, its bias, and the share of times within the 80 % interval, percent. With --each a line per
network comes first: mode, format, name, images or sequences, measured milliseconds, error in percent.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

from app.config import SEED_MEASUREMENTS, SHIPPED_MODELS
from benchmarks.repeats import measured_rows
from evaluation.study import Answers, Case, Errors, Part, shipped_snapshot

GPU, ALIKE = "h200-sxm-141gb", 0.05
FOLDERS = ("host-bound", "another-host")
FIELDS = ("name", "mode", "batch", "image_size", "sequence", "dtype", "optimizer", "attention", "software")


def main() -> None:
    """Print the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models-store", type=Path, default=SHIPPED_MODELS, help="folder of trained predictors")
    parser.add_argument("--each", action="store_true", help="print each network, too")
    args = parser.parse_args()
    answers = Answers(shipped_snapshot(args.models_store))
    by_mode = defaultdict(list)
    for row in _alike():
        workload = {"kind": "model"} | {name: row[name] for name in FIELDS if row.get(name) is not None}
        mode = f"{row['mode']} {row['dtype']}"
        case = Case(GPU, row["name"], mode, "", row["latency_ms"] / 1e3, (Part(1.0, workload),))
        result = answers.result(case)
        by_mode[mode].append(result)
        if args.each and "error" in result:
            print(f"{mode:<20}{row['name']:<24}{row['batch']:>5}{row['latency_ms']:>10.2f}{result['error']:>8.1f}")
    for mode, results in sorted(by_mode.items()):
        errors = Errors.of(results)
        figures = f"{errors.median:>8.1f}{errors.bias:>8.1f}{errors.held:>8.0f}" if errors.answered else ""
        print(f"{mode:<20}{errors.answered:>4} of {errors.cases:<4}{figures}")


def _alike() -> list[dict[str, Any]]:
    """Return the whole networks that both machines measured alike, by the first one's time."""
    first, second = (measured_rows(SEED_MEASUREMENTS / folder / "h200-models.parquet") for folder in FOLDERS)
    both = [(row, second[point]) for point, row in first.items() if point in second and "/" not in row["name"]]
    return [row for row, again in both if abs(again["latency_ms"] / row["latency_ms"] - 1.0) < ALIKE]


if __name__ == "__main__":
    main()
