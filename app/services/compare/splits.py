"""Enumerate splits of a network over devices: data, tensor and pipeline parallel sizes, and the stage of ZeRO.

Sizes are powers of two. Tensor ranks stay within one machine, as is common practice. Microbatches fill a pipeline as
far
as the batch divides. The first stage of ZeRO that fits is used, because later ones only cost time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from msgspec import structs

from app.errors import BadInput
from app.services.graphs.graph_store import Graphs
from app.services.models.resolve_networks import resolve_network
from app.services.models.scaling import DEVICES_PER_NODE
from app.steps.memory import memory
from app.steps.networks import check_stages, forward_rows
from app.wire.graph_form import NetworkWorkload
from app.wire.network_form import ParallelismIn

# With this many microbatches per pipeline stage, bubbles take at most a fifth of the time.
_MICROBATCHES = 4
_ZERO: tuple[int, ...] = (0, 1, 2, 3)


def feasible_splits(
    workload: NetworkWorkload, most: int, capacity_bytes: Sequence[float], graphs: Graphs | None
) -> Iterator[tuple[NetworkWorkload, list[int]]]:
    """Yield possible splits over at most `most` devices, with the GPUs (rows of `capacity_bytes`) where each fits."""
    for data, tensor, pipeline in _sizes(most):
        left = list(range(len(capacity_bytes)))
        for zero in _ZERO if workload.mode == "training" and data > 1 else _ZERO[:1]:
            split = _split(workload, data, tensor, pipeline, zero)
            required = None if split is None else _required_bytes(split, graphs)
            if split is None or required is None:
                break
            if fits := [k for k in left if required <= capacity_bytes[k]]:
                yield split, fits
            left = [k for k in left if k not in fits]
            if not left:
                break


def _sizes(most: int) -> Iterator[tuple[int, int, int]]:
    powers = [2**k for k in range(most.bit_length()) if 2**k <= most]
    for data, tensor, pipeline in product(powers, powers, powers):
        if data * tensor * pipeline <= most and tensor <= DEVICES_PER_NODE:
            yield data, tensor, pipeline


def _split(workload: NetworkWorkload, data: int, tensor: int, pipeline: int, zero: int) -> NetworkWorkload | None:
    """Return the workload with this split; None if the batch does not divide."""
    each, rest = divmod(int(workload.batch), data * int(workload.gradient_accumulation))
    if rest:
        return None
    parallelism = workload.parallelism
    filling = [m for m in (2**k for k in range((_MICROBATCHES * pipeline).bit_length())) if each % m == 0]
    fields: dict[str, object] = {
        "data": data,
        "tensor": tensor,
        "pipeline": pipeline,
        "context": 1,
        "virtual_pipeline": 1,
        "microbatches": filling[-1] if pipeline > 1 else 1,
        "nodes": max(data * tensor * pipeline // DEVICES_PER_NODE, 1),
        "sequence": parallelism.sequence and tensor > 1,
        "expert": parallelism.expert if data * tensor % parallelism.expert == 0 else 1,
        "zero": zero,
    }
    return structs.replace(workload, parallelism=structs.replace(parallelism, **fields))


def _required_bytes(workload: NetworkWorkload, graphs: Graphs | None) -> float | None:
    """Return bytes on the fullest device; None if the network cannot be split this way."""
    try:
        network, run = resolve_network(workload, graphs)
        rows = forward_rows(network, run)
        check_stages(rows, run)
    except BadInput:
        return None
    return memory(rows, run).required_bytes


def device_count(split: ParallelismIn) -> int:
    """Return the number of devices of a split."""
    return int(split.data * split.tensor * split.pipeline)
