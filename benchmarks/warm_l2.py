"""Rows of a saved plan as a chain of launches in one graph, whose L2 stays as each of them leaves it.

`gpucast measure` empties the L2 before each launch.

    python -m benchmarks.warm_l2 --saved-plan PLAN.json --out FILE.parquet

`python -m benchmarks.public_tables --ours FILE.parquet` then shows how much of the distance from public tables comes
from the cache. Needs PyTorch with CUDA.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

from measure.device import Device, find
from measure.output import Output
from measure.point import Point, Prepared
from measure.runner import Runner, facts, measure_all, pending
from measure.server import saved
from measure.timing import replayed

LAUNCHES = 20


def main() -> None:
    """Measure the rows for at most `--minutes`, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saved-plan", type=Path, required=True, help="answer of GET /gpus/{name}/plan")
    parser.add_argument("--out", type=Path, required=True, help="Parquet file to write")
    parser.add_argument("--minutes", type=float, default=5.0, help="time limit, minutes (default: 5)")
    options = parser.parse_args()
    end = time.monotonic() + 60.0 * options.minutes
    device = find()
    eager = replace(device, replayed=device.software)  # each point launches as it is
    output = Output(options.out, device.description, facts(device))
    points = [_warm(device, point) for point in saved(options.saved_plan, eager)[0]]
    measure_all(Runner(device), output, pending(output, points), until=end, observe=lambda point, row: None)
    output.write()


def _warm(device: Device, point: Point) -> Point:
    """Return the point as a graph of consecutive launches."""

    def prepare() -> Prepared:
        (run,) = point.prepare().phases.values()

        def runs() -> None:
            for _ in range(LAUNCHES):
                run()

        return Prepared({"": replayed(runs)}, cold=False, launches=LAUNCHES)

    return Point(point.suite, point.workload, prepare, device.replayed)


if __name__ == "__main__":
    main()
