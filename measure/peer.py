"""Another process of a data-parallel group: `python -m measure.peer DEVICES THREADS RENDEZVOUS RANK`.

It executes the commands that measure.data_parallel writes to its standard input, and ends with it.
"""

from __future__ import annotations

import json
import sys

import torch

from measure.data_parallel import STEP, join
from measure.models_suite import phases_of
from measure.point import Phases


def main() -> None:
    """Build and run until the input ends."""
    devices, threads, rendezvous, rank = sys.argv[1:]
    torch.set_num_threads(int(threads))
    join(int(rank), int(devices), rendezvous)
    phases: Phases = {}
    for line in sys.stdin:
        if line.strip() == STEP:
            for run in phases.values():
                run()
        else:
            phases = {}  # release the previous network first
            phases = phases_of(json.loads(line), torch.device("cpu"))


if __name__ == "__main__":
    main()
