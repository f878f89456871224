"""Figures that an operator derives from its rows, and its prior: structs of arrays, float64 [n] unless stated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from app.coefficients import room
from app.tables.arrays import Bools, Floats, Ints
from app.tables.ops import OpTable


class Work(NamedTuple):
    """Work of rows on one device, float64 [n] each.

    flops              floating-point (or integer) operations
    bytes              bytes read and written, each counted once per use that leaves the SM
    working_set_bytes  distinct bytes touched
    """

    flops: Floats
    bytes: Floats
    working_set_bytes: Floats


class Products(NamedTuple):
    """Matrix products of rows, float64 [n] each: `batch` times (m x k)(k x n)."""

    batch: Floats
    m: Floats
    n: Floats
    k: Floats


class Grid(NamedTuple):
    """Products tiled by every candidate (app.ops.gemm), float64 [candidates, n].

    blocks  tiles of all products of a row
    fill    part of the tiles' multiply-adds that outputs need
    splits  most pieces of the summed dimension (split-K), [n]
    """

    blocks: Floats
    fill: Floats
    splits: Floats


class Queries(NamedTuple):
    """Attention of several queries, float64 [n] each, as the fields of these names; NaN where a row leaves one out."""

    batch: Floats
    heads: Floats
    kv_heads: Floats
    query_length: Floats
    context_length: Floats
    window: Floats
    backward: Floats


class Loops(NamedTuple):
    """Loops of a kernel's blocks over the keys of a sequence, float64 [n] each.

    tasks  loops that can run at the same time
    steps  iterations of each
    parts  most blocks that a loop is split into for idle SMs; 1 where it is not split
    """

    tasks: Floats
    steps: Floats
    parts: Floats


class Transformed(NamedTuple):
    """Products in a transformed space with fewer of them (Winograd), for the `rows`, int [m], that have such kernels.

    By algorithm, float64 [algorithms, m] each:

    blocks  tiles of all products
    fill    FLOPs of the row by definition over those of its tiles
    bytes   moved by the transforms, while no product is computed
    """

    rows: Ints
    blocks: Floats
    fill: Floats
    bytes: Floats


class Rereads(NamedTuple):
    """Data read more than once, float64 [n] each: from DRAM again where the bytes in flight exceed the L2.

    bytes      bytes read again
    in_flight  bytes between the first and the last read of a byte, per SM
    passed     the same of the whole device
    later      bytes that a later kernel reads again, once all others have passed
    clocks     SM clocks besides, for reductions over a row and random numbers
    longest    SM clocks of the longest block, which none of the others shortens
    """

    bytes: Floats
    in_flight: Floats
    passed: Floats
    later: Floats
    clocks: Floats
    longest: Floats

    @classmethod
    def of_clocks(cls, clocks: Floats) -> Self:
        """Return that nothing is read again, and these clocks."""
        nothing = np.zeros_like(clocks)
        return cls(nothing, nothing, nothing, nothing, clocks, nothing)


class LibraryCosts(NamedTuple):
    """What a library's kernels cost beside products and bytes, float64 [GENERATIONS, n] each; 0: nothing, no bound.

    blocks           thread blocks
    clocks           SM clocks of each
    shared_bytes     shared memory of each, where it bounds how many an SM runs at a time; 0: one after the other
    handed_bytes     bytes that kernels hand on to one another, beside `work`: too many, and too late, to stay in the L2
    flops_per_clock  most FLOPs of an SM per clock
    """

    blocks: Floats
    clocks: Floats
    shared_bytes: Floats
    handed_bytes: Floats
    flops_per_clock: Floats


class Costing(NamedTuple):
    """How LibraryCosts are found.

    rows  what they depend on, of every row of a table: a NamedTuple of arrays [n]
    fill  fills them, given these and positions in LIBRARIES by generation of GPUs, float64 [GENERATIONS, n]; to be
          compiled
    """

    rows: Callable[[OpTable], Any]
    fill: Callable[[Any, Floats, LibraryCosts], None]


class Passing(NamedTuple):
    """Messages of a collective, float64 [n] each.

    hops     length of the chain of messages that wait for one another, in messages
    kept     bytes that a device copies from its own input to its own output
    devices  participating devices
    """

    hops: Floats
    kept: Floats
    devices: Floats


class Pattern(NamedTuple):
    """Communication pattern of a collective: `rounds` times round a ring, all to all, or to the next device."""

    kind: Literal["ring", "exchange", "send"]
    rounds: int = 0


class Ratio(NamedTuple):
    """A feature of learned models: the product of some dimensions over that of others, by name."""

    over: tuple[str, ...]
    under: tuple[str, ...] = ()


class Broken(NamedTuple):
    """A violated rule between fields: its message, the rows that break it, bool [n], and the field to report."""

    message: str
    rows: Bools
    field: str


class Prior(NamedTuple):
    """Efficiencies and times of an operator, the same on every GPU.

    Set by hand while looking at NeuSight's and aiconfigurator's published rows, all GPUs together, so errors of the
    untrained predictor on those rows are in-sample (docs/reference/results.md); no GPU has its own.

    compute   share of the sustained rate that its kernels attain on full tiles
    memory    share of the sustained bandwidth
    host_s    shortest time of an operator that PyTorch launches by itself, seconds
    device_s  time of an operator of no work in a CUDA graph, seconds
    width     half-width in log space of an interval that holds 80 %; equal in an interval group (docs/explanation/
              notebook.md)
    tensor    shares of `compute` that are left where products of 16 bits, and in TF32, run on tensor units: before
              Ampere; on Ampere and Ada, and there of operands that lie as kernels take them (`Op.relaid` is 0); since
              Hopper
    lanes_since_hopper  the same of products in FP32, which libraries have no kernels of that are made for Hopper
    """

    compute: float
    memory: float
    host_s: float
    device_s: float
    width: float
    tensor: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    lanes_since_hopper: float = 1.0

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the prior of this name in the coefficients."""
        fields = dict(room("priors")[name].value)
        return cls(**(fields | ({"tensor": tuple(fields["tensor"])} if "tensor" in fields else {})))


# Of whatever only moves bytes. Host time: a guess, no rows are behind it.
STREAMED = Prior.of("streamed")
