"""How far our own measurements of an H200 lie from second runs of them.

    python -m benchmarks.repeats

A line is a suite, when it was measured again (minutes later in another process, or on another machine with the same
GPU), and whether its times contain the host's launches: points in both files, and the median, ninth decile and largest
distance of the two times.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from app.config import SEED_MEASUREMENTS
from app.stacks.release import is_eager
from measure.output import POINTS

# Folders of second runs, beside those with the first ones.
AGAIN, FIRST = ("again", "another-host"), ("", "unfused", "host-bound")


def main() -> None:
    """Print the distances."""
    for folder in AGAIN:
        for again in sorted((SEED_MEASUREMENTS / folder).glob("*.parquet")):
            firsts = [SEED_MEASUREMENTS / first / again.name for first in FIRST]
            before = {point: row for path in firsts if path.exists() for point, row in measured_rows(path).items()}
            found = defaultdict(list)
            for point, row in measured_rows(again).items():
                if point in before:
                    launched = "from the host" if is_eager(row["software"]) else "in a graph"
                    found[launched].append(abs(row["latency_ms"] / before[point]["latency_ms"] - 1.0))
            for launched, apart in sorted(found.items()):
                middle, most = np.quantile(apart, (0.5, 0.9))
                figures = f"{len(apart):>5}{middle:>8.1%}{most:>8.1%}{max(apart):>8.1%}"
                print(f"{again.stem:<20}{folder:<14}{launched:<15}{figures}")


def measured_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Return the measured rows of a file by the digest of their point."""
    table = pq.read_table(path)
    points = json.loads(table.schema.metadata[POINTS])
    rows = zip(points, table.to_pylist(), strict=True)
    return {point: row for point, row in rows if row["outcome"] == "measured"}


if __name__ == "__main__":
    main()
