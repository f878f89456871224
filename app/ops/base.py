"""What every operator family provides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.tables.ops import ACTIVATION_DTYPES, DTYPE_BYTES, OpTable

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]

# Most of a length or a count, and of bytes: beyond, a unit is wrong.
MOST = 2.0**40
MOST_BYTES = 1e15


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


class Broken(NamedTuple):
    """A rule between fields that some rows break: what it says, which rows, and the field to blame."""

    message: str
    rows: Bools
    field: str


@dataclass(frozen=True, slots=True)
class Dim:
    """One field of an operator's request, and its columns.

    `default` is the value of a row that leaves the field out (NaN: absent), None where it may not. A field with
    `choices` is one of these words, its column their code; one with `read` is a word too, turned into the column's
    number and back by `write`, and `words` says which. A `pair` is one number for both directions, or [height, width].
    """

    name: str
    help: str
    least: float = 1.0
    default: float | None = None
    whole: bool = True
    most: float = MOST
    choices: tuple[str, ...] = ()
    read: Callable[[str], float] | None = None
    write: Callable[[float], str] | None = None
    words: str = ""
    pair: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of its columns in the operator table."""
        return (f"{self.name}_height", f"{self.name}_width") if self.pair else (self.name,)


# Every deep-learning operator also carries these.
COMMON = (
    Dim("count", "how often the operator runs, one after another", default=1.0),
    Dim("backward", "0 forward, 1 backward: gradients of all inputs and weights", least=0.0, default=0.0, most=1.0),
    Dim("burst", "0 on a busy card (sustained clocks), 1 on a cool one", least=0.0, default=0.0, most=1.0),
    Dim(
        "eager",
        "1 where the host launches each operator (PyTorch eager), 0 in a CUDA graph, -1 in one of a network, after the "
        "row that wrote what it reads; absent: by dtype",
        least=-1.0,
        default=np.nan,
        most=1.0,
    ),
)


def nothing_broken(table: OpTable) -> list[Broken]:
    """No rule beyond the fields' own."""
    return []


def no_products(table: OpTable) -> None:
    """Not a matrix product."""


def nothing_handed(table: OpTable) -> Floats:
    """No operand that the row before wrote, or none that matters."""
    return np.zeros(len(table))


def handed_rows(table: OpTable) -> Floats:
    """`b` rows of `h` elements."""
    handed: Floats = table.column("b") * table.column("h") * DTYPE_BYTES[table.dtype]
    return handed


def one_launch(table: OpTable) -> Floats:
    """A single launch per row."""
    return np.ones(len(table))


def columns(dims: Iterable[Dim]) -> Mapping[str, int]:
    """Column names of dims, in order, each with its row in `OpTable.dims`."""
    names = dict.fromkeys(name for dim in dims for name in dim.columns)
    return {name: k for k, name in enumerate(names)}


@dataclass(frozen=True, slots=True)
class Op:
    """An operator family.

    name      as requests call it
    group     line of the breakdown that it adds to
    dims      fields of its rows
    work      FLOPs, bytes and working set of rows, one repetition each
    check     rules between fields that rows break
    products  the matrix products that its work is, if it is
    rereads   what its blocks read more than once, where they do
    handed    bytes of the operand that in a network the row before has just written
    queries   what its kernels deal to tiles of queries (app.ops.attention.fill_tiles), if they do
    loops     how its kernels' blocks loop over keys, if they do
    transformed  the same products in another space, if kernels may do them there
    saving    by how much a known algorithm may cut the FLOPs (Winograd), where one may
    launches  launches that wait for one another
    link_bytes  bytes that each device sends over its link, of an operator of several devices
    passing  how they pass, of the same
    dtypes    number formats that it exists in
    fields    its columns, derived from `dims`
    """

    name: str
    group: str
    dims: tuple[Dim, ...]
    work: Callable[[OpTable], Work]
    check: Callable[[OpTable], list[Broken]] = nothing_broken
    products: Callable[[OpTable], Products | None] = no_products
    launches: Callable[[OpTable], Floats] = one_launch
    rereads: Callable[[OpTable], Rereads] | None = None
    handed: Callable[[OpTable], Floats] = nothing_handed
    queries: Callable[[OpTable], Queries] | None = None
    loops: Callable[[OpTable], Loops] | None = None
    transformed: Callable[[OpTable], Transformed] | None = None
    saving: Callable[[OpTable], Floats] | None = None
    link_bytes: Callable[[OpTable], Floats] | None = None
    passing: Callable[[OpTable], Passing] | None = None
    dtypes: tuple[str, ...] = ACTIVATION_DTYPES
    fields: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Derive the columns."""
        object.__setattr__(self, "fields", columns(self.dims))
