"""How far our own measurements of an H200 lie from a second run of them, minutes later in another process.

    python -m benchmarks.repeats

A line is a suite, and whether its times contain the host's launches: points in both files, and the median, ninth decile
and largest distance of the two times. The second runs are in seed_data/measurements/later/again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from app.config import SEED_MEASUREMENTS
from app.measure.output import POINTS
from app.ops.stacks import is_eager

LATER = SEED_MEASUREMENTS / "later"


def main() -> None:
    """Print the distances."""
    for again in sorted((LATER / "again").glob("*.parquet")):
        first = next(folder / again.name for folder in (LATER, SEED_MEASUREMENTS) if (folder / again.name).exists())
        before, found = _measured(first), defaultdict(list)
        for point, row in _measured(again).items():
            if point in before:
                launched = "from the host" if is_eager(row["software"]) else "in a graph"
                found[launched].append(abs(row["latency_ms"] / before[point]["latency_ms"] - 1.0))
        for launched, apart in sorted(found.items()):
            middle, most = np.quantile(apart, (0.5, 0.9))
            print(f"{again.stem:<20}{launched:<15}{len(apart):>5}{middle:>8.1%}{most:>8.1%}{max(apart):>8.1%}")


def _measured(path: Path) -> dict[str, dict[str, Any]]:
    """Return the measured rows of a file by the digest of their point."""
    table = pq.read_table(path)
    points = json.loads(table.schema.metadata[POINTS])
    rows = zip(points, table.to_pylist(), strict=True)
    return {point: row for point, row in rows if row["outcome"] == "measured"}


if __name__ == "__main__":
    main()
