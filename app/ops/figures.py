"""Figures of rows that operators give to whoever predicts them, a struct of arrays each: float64 [n] unless said."""

from __future__ import annotations

from typing import Literal, NamedTuple

from app.tables.arrays import Bools, Floats, Ints


class Work(NamedTuple):
    """What rows ask of a device, float64 [n] each.

    flops              floating-point (or integer) operations
    bytes              bytes read and written, each counted once per use that leaves the SM
    working_set_bytes  distinct bytes touched
    """

    flops: Floats
    bytes: Floats
    working_set_bytes: Floats


class Products(NamedTuple):
    """Matrix products that rows are, float64 [n] each: `batch` times (m x k)(k x n)."""

    batch: Floats
    m: Floats
    n: Floats
    k: Floats


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
    """How a kernel is dealt to SMs whose blocks loop over the keys of a sequence, float64 [n] each.

    tasks  loops that may run at the same time
    steps  turns of each
    parts  into how many blocks a loop may be cut at most, for SMs that would be idle; 1 where it is not
    """

    tasks: Floats
    steps: Floats
    parts: Floats


class Transformed(NamedTuple):
    """The same products in a space with fewer of them, of those `rows`, int [m], for which kernels for that exist.

    By algorithm, float64 [algorithms, m] each:

    blocks  tiles of all products
    fill    FLOPs of the row, as it is defined, by those that its tiles do
    bytes   that are moved while no product is computed
    """

    rows: Ints
    blocks: Floats
    fill: Floats
    bytes: Floats


class Rereads(NamedTuple):
    """What is read more than once, float64 [n] each: again from DRAM where what is in flight does not stay in the L2.

    bytes      read again in all
    in_flight  bytes that pass between a byte's first and last read, per SM
    passed     the same, of the whole device
    clocks     that SMs spend in all besides: where threads meet to reduce a row, or draw random numbers
    """

    bytes: Floats
    in_flight: Floats
    passed: Floats
    clocks: Floats


class Passing(NamedTuple):
    """How messages of several devices pass, float64 [n] each.

    hops     messages that wait for one another, as many as the time of one
    kept     bytes that a device copies from its own input to its own result
    devices  devices that take part
    """

    hops: Floats
    kept: Floats
    devices: Floats


class Pattern(NamedTuple):
    """How a collective sends: round a ring so many times, to every device directly, or on to the next one."""

    kind: Literal["ring", "exchange", "send"]
    rounds: int = 0


class Ratio(NamedTuple):
    """A feature of learned models: the product of some dimensions over that of others, by name."""

    over: tuple[str, ...]
    under: tuple[str, ...] = ()


class Broken(NamedTuple):
    """A rule between fields that some rows break: what it says, which rows, and the field to blame."""

    message: str
    rows: Bools
    field: str
