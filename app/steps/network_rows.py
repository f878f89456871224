"""What a network changes of its rows, each of which was predicted as if it ran alone."""

from __future__ import annotations

from collections.abc import Sequence

from app.graphs.run import Run
from app.steps.host_collectives import with_host_collectives
from app.steps.second_flash import with_second_flash
from app.steps.single_loads import with_single_loads
from app.steps.steady_products import with_steady_products
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import Predictions

_CHANGES = (
    with_second_flash,
    with_single_loads,
    with_steady_products,
    with_host_collectives,
)


def in_network(answer: Predictions, table: OpTable, run: Run, gpus: GpuTable, targets: Sequence[int]) -> Predictions:
    """Return predictions of a network's rows on GPU rows `targets`, GPU by GPU, as they run in it."""
    for change in _CHANGES:
        answer = change(answer, table, run, gpus, targets)
    return answer
