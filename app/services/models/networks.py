"""From what a request calls a network to its rows: who imports it, which passes run over it, and equal rows once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from app.engine.operator_rows import Distinct, deduplicate
from app.errors import BadInput, FieldError
from app.graphs.batched import by_row, per_configuration, unique_rows
from app.graphs.data_parallel import with_gradient_exchange
from app.graphs.fuse_pass import fused
from app.graphs.run import Run
from app.graphs.step_memory import Memory, memories
from app.graphs.training_pass import training
from app.ops.figures import Work
from app.ops.kinds import kinds_of, work_of
from app.services.graphs.graph_store import SizedCache
from app.tables.arrays import Floats, Ints
from app.tables.ops import OpTable
from app.tables.workload import UPDATE, Workload

# Networks remembered with how they were run: bytes of all, and of a row with its distinct row and its name.
_REMEMBERED_BYTES, _ROW_BYTES = 48 * 2**20, 1_500


@dataclass(frozen=True, slots=True)
class Network:
    """A network before it is known how it runs: networks of equal keys are equal; `lower` gives its forward rows.

    `key_bytes` is how much memory the key takes.
    """

    key: Hashable
    lower: Callable[[Run], Workload] = field(compare=False, repr=False)
    key_bytes: int = field(default=100, compare=False)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A network as one device runs it: every row, and the distinct ones, which are predicted; n rows, u distinct.

    distinct  the rows to predict, and where each of the workload stands among them
    work      of each distinct row, one repetition
    runs      float64 [n], how often each row runs in a pass over one microbatch
    group     int [n], into `groups`
    groups    names of the breakdown's lines
    memory    what a device keeps
    fixed_bytes  what of it stays where no sequence or image is worked on
    """

    workload: Workload
    distinct: Distinct
    work: Work
    runs: Floats
    group: Ints
    groups: tuple[str, ...]
    memory: Memory
    fixed_bytes: float


def prepared(network: Network, run: Run) -> Prepared:
    """The network run so; BadInput where it cannot be."""
    key = network.key, run
    found = _remembered.get(key)
    if found is None:
        found = _prepared(network, run)
        _remembered.put(key, found, network.key_bytes + _ROW_BYTES * len(found.workload))
    return found


def forward_of(network: Network, run: Run) -> Workload:
    """The forward rows of one device: enough to know what it keeps in memory."""
    rows = network.lower(run)
    return fused(rows) if run.fused else rows


def check_stages(rows: Workload, run: Run) -> None:
    """BadInput where there are more pipeline stages than layers."""
    parts = per_configuration(np.atleast_1d(rows.repeats[..., : rows.blocks].sum(axis=-1)))
    if run.parallelism.pipeline > parts:
        message = f"this network can be cut into {parts:.0f} stages at most, one layer or block each"
        raise BadInput(message, errors=[FieldError(("workload", "parallelism", "pipeline"), message)])


def workload_of(network: Network, run: Run) -> Workload:
    """Every row of one device: forward, and in training backward, update and the exchange of gradients."""
    forward = forward_of(network, run)
    check_stages(forward, run)
    if run.mode != "training":
        return forward
    rows = training(forward, run)
    return with_gradient_exchange(rows, run)


def times_of(rows: Prepared, run: Run) -> Floats:
    """How often each row runs in a whole step on all pipeline stages, float64 [n]."""
    each = run.parallelism.microbatches * run.accumulation
    times: Floats = rows.runs * np.where(rows.workload.phase == UPDATE, 1.0, each)
    return times


def bytes_with(rows: Workload, run: Run, batch: int) -> float:
    """Bytes on the fullest device with another batch (of a step) than the rows' own."""
    return memories(rows, run, (batch / run.batch,))[0].required_bytes


def _prepared(network: Network, run: Run) -> Prepared:
    workload = workload_of(network, run)
    kept, empty = memories(workload, run, (1.0, 0.0))
    return rows_prepared(workload, kept, empty.required_bytes)


def rows_prepared(workload: Workload, kept: Memory, fixed_bytes: float) -> Prepared:
    """These rows of one device, which keeps so much."""
    found = distinct_rows(workload.ops)
    kinds = kinds_of(found.table)
    groups = tuple(dict.fromkeys(kind.op.group for kind in kinds))
    group = np.empty(len(found.table), dtype=np.intp)
    for kind in kinds:
        group[kind.rows] = groups.index(kind.op.group)
    return Prepared(
        workload=workload,
        distinct=found,
        work=work_of(found.table, kinds),
        runs=workload.runs,
        group=group[found.row],
        groups=groups,
        memory=kept,
        fixed_bytes=fixed_bytes,
    )


def distinct_rows(ops: OpTable) -> Distinct:
    """Rows of a network, equal ones once, in the order in which they stand.

    Of c configurations (app/graphs/batched.py), in whatever order; `row` and `repeats` are those of row k from k c on.
    """
    every = unique_rows(ops)
    found = deduplicate(every.table)
    return Distinct(found.table, every.rows(found.row).reshape(-1), by_row(ops.column("count")).reshape(-1))


_remembered: SizedCache[Prepared] = SizedCache(_REMEMBERED_BYTES)


def forget() -> None:
    """Drop what is remembered of networks."""
    _remembered.clear()
