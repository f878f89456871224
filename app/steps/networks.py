"""Networks of requests as rows: lowering, passes, and distinct rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from app.errors import BadInput, FieldError
from app.networks.batched import per_configuration, unique_rows
from app.networks.convolutions import in_memory_format, with_bias_kernels
from app.networks.exchanges import with_gradient_exchange, with_key_exchange
from app.networks.fuse_pass import fused
from app.networks.run import Run
from app.networks.training_pass import training
from app.ops import OP_CODE, OPS, kinds_of, work_of
from app.ops.figures import Work
from app.predictors.operator_digests import Distinct, deduplicate
from app.runtime.sized_cache import SizedCache
from app.steps.schedule import by_row
from app.steps.stages import Memory, memories, memory
from app.tables.arrays import Ints
from app.tables.gpus import GpuSpec
from app.tables.ops import OpTable
from app.tables.workload import FORWARD, Workload

# Cache limit in bytes, and bytes per cached row with its distinct row and name.
_CACHE_BYTES, _ROW_BYTES = 48 * 2**20, 1_500


# Architectures by an operator that only they have, the first that is there.
_BY_OPERATOR = {
    OP_CODE[op]: architecture
    for op, architecture in (
        ("conv2d", "convnet"),
        ("attention_module", "sparse"),
        ("linear_attention", "hybrid"),
        ("linear_attention_step", "hybrid"),
        ("short_convolution", "hybrid"),
        ("recurrent", "hybrid"),
        ("attention_mla", "latent"),
        ("moe", "experts"),
        ("moe_wide", "experts"),
    )
}
_ATTENTION = {code for op, code in OP_CODE.items() if op.startswith(("attention", "bmm"))}


@dataclass(frozen=True, slots=True)
class Network:
    """A network before its run is known: equal keys mean equal networks; `lower` returns its forward rows.

    `key_bytes` is the memory of the key.
    """

    key: Hashable
    lower: Callable[[Run], Workload] = field(compare=False, repr=False)
    key_bytes: int = field(default=100, compare=False)


@dataclass(frozen=True, kw_only=True)
class StepRows:
    """n rows of a step in c configurations (mostly one), and u distinct ones, which are predicted.

    distinct  the rows to predict, and the index of each workload row among them; of row k in c configurations the c
              indices from k c on
    group     int [n], into `groups`
    groups    names of the breakdown's lines
    """

    workload: Workload
    distinct: Distinct
    group: Ints
    groups: tuple[str, ...]
    configurations: int = 1

    @cached_property
    def architecture(self) -> str:
        """Architecture of the network, as errors are shared by it (app.bands.error_model)."""
        kinds = set(self.distinct.table.kind.tolist())
        known = [architecture for code, architecture in _BY_OPERATOR.items() if code in kinds]
        return known[0] if known else "dense" if kinds & _ATTENTION else "graph"

    @cached_property
    def size(self) -> str:
        """Layers and width of a transformer, which tell it from others; of other networks their parameters."""
        w = self.workload
        embedded = np.flatnonzero(w.ops.kind == OP_CODE["embedding"])
        if len(embedded):
            # The first block is the embedding's, the last one the head's.
            layers, width = w.repeats[..., 1 : w.blocks - 1].sum(axis=-1), w.ops.column("h")[..., embedded[0]]
            return f"{np.ravel(layers)[0]:.0f} layers of {np.ravel(width)[0]:.0f}"
        return f"{np.ravel((w.parameters * w.runs * (w.phase == FORWARD)).sum(axis=-1))[0]:.3g} parameters"

    @cached_property
    def work(self) -> Work:
        """Work of each distinct row, one repetition."""
        return work_of(self.distinct.table, kinds_of(self.distinct.table))


@dataclass(frozen=True, kw_only=True)
class Prepared(StepRows):
    """A network as one device runs it, in one configuration.

    memory  memory of a device
    fixed_bytes  the part of it that does not depend on the batch
    """

    memory: Memory
    fixed_bytes: float


def prepare(network: Network, run: Run) -> Prepared:
    """Return the network as run, cached. Raises BadInput if it cannot run this way."""
    key = network.key, run
    cached = _cache.get(key)
    if cached is None:
        cached = _prepared(network, run)
        _cache.put(key, cached, network.key_bytes + _ROW_BYTES * len(cached.workload))
    return cached


def forward_rows(network: Network, run: Run) -> Workload:
    """Return the forward rows of one device; they suffice to compute its memory."""
    rows = in_memory_format(network.lower(run), run)
    return fused(rows) if run.fused else rows


def check_stages(rows: Workload, run: Run) -> None:
    """Raise BadInput if there are more pipeline stages than layers."""
    parts = per_configuration(np.atleast_1d(rows.repeats[..., : rows.blocks].sum(axis=-1)))
    split = run.parallelism
    if split.pipeline > parts:
        message = f"this network can be cut into {parts:.0f} stages at most, one layer or block each"
        raise BadInput(message, errors=[FieldError(("workload", "parallelism", "pipeline"), message)])
    if split.pipeline * split.virtual_pipeline > parts:
        message = f"this network can be cut into {parts:.0f} chunks at most over {split.pipeline} stages"
        raise BadInput(message, errors=[FieldError(("workload", "parallelism", "virtual_pipeline"), message)])


def all_rows(network: Network, run: Run) -> Workload:
    """Return all rows of one device: forward, and in training backward, update and gradient exchange."""
    forward = forward_rows(network, run)
    check_stages(forward, run)
    rows = training(forward, run) if run.mode == "training" else forward
    return with_gradient_exchange(with_bias_kernels(with_key_exchange(rows, run), run), run)


def bytes_for_batch(rows: Workload, run: Run, batch: int) -> float:
    """Return bytes on the fullest device with another (step) batch than the rows' own."""
    return memories(rows, run, (batch / run.batch,))[0].required_bytes


def runs_that_fit(network: Network, run: Run, gpus: Sequence[GpuSpec]) -> list[tuple[Run, list[int]]]:
    """Return the run on each GPU: pairs of a run and indices of GPUs.

    Where nobody said what training recomputes it is the least that fits (`Run.recompute_or`); where nothing does, it is
    the run as it is.
    """
    required = prepare(network, run).memory.required_bytes if run.recompute_or else 0.0
    needed = {run: required}

    def chosen(gpu: GpuSpec) -> Run:
        if gpu.memory_bytes >= required:
            return run
        for each in run.recomputing(near_host=gpu.near_host):
            if each not in needed:
                needed[each] = memory(forward_rows(network, each), each).required_bytes
            if needed[each] <= gpu.memory_bytes:
                return each
        return run

    runs = [chosen(gpu) for gpu in gpus]
    return [(each, [k for k, own in enumerate(runs) if own == each]) for each in dict.fromkeys(runs)]


def _prepared(network: Network, run: Run) -> Prepared:
    workload = all_rows(network, run)
    memory, empty = memories(workload, run, (1.0, 0.0))
    return with_memory(step_rows(workload), memory, empty.required_bytes)


def step_rows(workload: Workload, configurations: int = 1) -> StepRows:
    """Return these rows of one device with the distinct ones among them."""
    kinds, kind = np.unique(workload.ops.kind, return_inverse=True)
    names = [OPS[code].group for code in kinds.tolist()]
    groups = tuple(dict.fromkeys(names))
    group = np.array([groups.index(name) for name in names], dtype=np.intp)[kind]
    return StepRows(
        workload=workload,
        distinct=_distinct_rows(workload.ops),
        group=group,
        groups=groups,
        configurations=configurations,
    )


def with_memory(rows: StepRows, memory: Memory, fixed_bytes: float) -> Prepared:
    """Return these rows, prepared, with the memory of a device."""
    return Prepared(
        workload=rows.workload,
        distinct=rows.distinct,
        group=rows.group,
        groups=rows.groups,
        memory=memory,
        fixed_bytes=fixed_bytes,
    )


def _distinct_rows(ops: OpTable) -> Distinct:
    """Rows of a network, equal ones once, in the order in which they stand.

    Of c configurations (app/networks/batched.py), in any order; `row` and `repeats` are those of row k from k c on.
    """
    every = unique_rows(ops)
    distinct = deduplicate(every.table)
    return Distinct(distinct.table, every.rows(distinct.row).reshape(-1), by_row(ops.column("count")).reshape(-1))


_cache: SizedCache[Prepared] = SizedCache(_CACHE_BYTES)


def clear_cache() -> None:
    """Clear the cache of networks."""
    _cache.clear()
