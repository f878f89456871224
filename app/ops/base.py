"""`Op` and `Dim`: the definition of an operator family and of its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from app.ops.figures import (
    STREAMED,
    Broken,
    Costing,
    Grid,
    Loops,
    Passing,
    Pattern,
    Prior,
    Products,
    Queries,
    Ratio,
    Rereads,
    Transformed,
    Work,
)
from app.ops.gradient import ITSELF, Step
from app.ops.suite import Space
from app.stacks.libraries import Choice
from app.tables.arrays import Bools, Floats
from app.tables.ops import ACTIVATION_DTYPES, OpTable

# Largest length or count, and most bytes; a larger value is in a wrong unit.
MOST = 2.0**40
MOST_BYTES = 1e15


@dataclass(frozen=True, slots=True)
class Dim:
    """One field of an operator's request, and its columns.

    `default` is the value of a row that leaves the field out (NaN: absent), None where it may not. A field with
    `choices` is one of these words, its column their code; one with `read` is a word too, turned into the column's
    number and back by `write`, and `words` says which. A `pair` is one number for both directions, or [height, width].
    `beside` names further columns that the field's word sets; `columns`, all of them in the operator table.

    To learned models a column is a `size` (its logarithm counts), a `code` (itself counts), part of the operator's
    `kernel_class` or `libraries` (`class`), or nothing (`unseen`; `layout`: how operands lie, which is no part of a
    row's configuration either). Where a row leaves it out, or has 0, they see the column that `absent` names; `stretch`
    is how much farther apart than those of other columns its values lie for a Gaussian process.
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
    feature: Literal["size", "code", "class", "unseen", "layout"] = "size"
    absent: str = ""
    stretch: float = 1.0
    beside: tuple[str, ...] = ()
    columns: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Name its columns in the operator table."""
        columns = (f"{self.name}_height", f"{self.name}_width") if self.pair else (self.name, *self.beside)
        object.__setattr__(self, "columns", columns)


def choice(
    name: str, meaning: str, choices: tuple[str, ...], default: float, feature: Literal["code", "class"] = "code"
) -> Dim:
    """Return a field that is one of some words, whose codes count from 0."""
    return Dim(name, meaning, least=0.0, default=default, choices=choices, feature=feature)


def forward_only(table: OpTable) -> Broken:
    """Return the rule of kernels of serving stacks, which learn nothing."""
    return Broken("serving stacks' kernels have no backward phase", table.column("backward") > 0, "backward")


_unseen = partial(Dim, feature="unseen")
# Every deep-learning operator also carries these.
COMMON = (
    _unseen("count", "how often the operator runs, one after another", default=1.0),
    _unseen("backward", "0 forward, 1 backward: gradients of all inputs and weights", least=0.0, default=0.0, most=1.0),
    _unseen("burst", "0 on a busy card (sustained clocks), 1 on a cool one", least=0.0, default=0.0, most=1.0),
    _unseen(
        "eager",
        "1 where the host launches each operator (PyTorch eager), 0 in a CUDA graph, -1 in one of a network, after the "
        "row that wrote what it reads; absent: by dtype. `stack` is the code of the serving stack whose kernels run",
        least=-1.0,
        default=np.nan,
        most=1.0,
        beside=("stack",),
    ),
)


def columns(dims: Iterable[Dim]) -> Mapping[str, int]:
    """Column names of dims, in order, each with its row in `OpTable.dims`."""
    names = dict.fromkeys(name for dim in dims for name in dim.columns)
    return {name: k for k, name in enumerate(names)}


@dataclass(frozen=True, slots=True)
class Op:
    """An operator family: all properties that the rest of the code reads, so that nothing else depends on its name.

    What it is:
    name      as requests call it
    group     line of the breakdown that it adds to
    dims      fields of its rows
    work      FLOPs, bytes and working set of rows, one repetition each
    check     rules between fields that rows break, where there are any
    dtypes    number formats that it exists in; `default_dtype` where bytes move alike in all and a row may leave it out
    fields    its columns, derived from `dims`

    How its kernels run:
    prior     efficiencies and times before anything was measured
    products  the matrix products that its work is, if it is; `batched`: in kernels for batches of products
    row_sizes elements of a row of its operands and results, [n] each, of products whose kernels load by 16 bytes
    padded    where libraries copy such operands to rows of whole loads first, bool [n]
    retile    changes tiles, in place, to those of its kernels, given which rows are aligned, bool [n]; needs row_sizes
    rereads   what its blocks read more than once, where they do
    handed    bytes of the operand that in a network the row before has just written, if one has; "rows": of `b` rows
              of `h` elements
    relaid    bytes read and written to change layouts around kernels of tensor units that take another one
    queries   what its kernels deal to tiles of queries (app.ops.attention_kernels.fill_tiles), if they do
    loops     how its kernels' blocks loop over keys, if they do
    libraries what the library depends on whose kernels a stack runs, of an operator that stacks run by several; learned
              models have it as a feature. `library_costs`: what sets their kernels apart
    transformed  the same products in another space, if kernels may do them there
    saving    factor by which a known algorithm can reduce the FLOPs (Winograd), where one can
    launches  launches that wait for one another; None: one
    weights   elements of its weights without a bias, of an operator that multiplies by some
    quantised elements of the activations that a serving stack quantises first, where one does
    link_bytes  bytes that each device sends over its link, of an operator of several devices; None: it runs on one
    passing  how they pass, of the same; `pattern`: in which order, of collectives of a message of given bytes
    traffic   "computes"; "moves": does little but move bytes; "streams": moves them through, once

    Features of learned models:
    ratios    features beside its dimensions; the first counts tasks that run at the same time
    kernel_class  code of what sets kernels apart that no dimension tells, where something does (app.ops.moe)
    waits     whether much of its time is waiting that no term of the physics names
    interval_apart  whether its intervals are apart from those of its group
    configuration  dims that a layer of a model fixes; those left are what it runs with
    few_configurations  whether data sets hold a handful of them; its dtypes then share what carries to other GPUs
    parts     amounts that the times of its kernels are in proportion to, [n] each, the first of them 1, where it is
              several kernels or is tiled in several ways; `part_names`: their names

    In a network:
    backward  what its backward pass runs (app.ops.gradient)
    saves     what of its "input" and "output" backward needs (PyTorch's derivatives.yaml)
    fusible   whether torch.compile fuses it with its neighbours
    own_input whether a row without a producer in its block reads something else than the block's input: a table, a mask
    tied      whether its output has a gradient though it may hold no weights itself: tables are shared
    in_training  the operator that it is in the forward pass of training; empty: itself

    How it is measured:
    suite     sizes that the measuring suite draws, and how it runs them; None: not measured
    usual     field -> least and most, or the one value, of rows that a measurement plan draws from; empty: none
    example   a row to start from, field -> value; required fields left out are at their least
    """

    name: str
    group: str
    dims: tuple[Dim, ...]
    work: Callable[[OpTable], Work]
    check: Callable[[OpTable], list[Broken]] | None = None
    dtypes: tuple[str, ...] = ACTIVATION_DTYPES
    default_dtype: str | None = None

    prior: Prior = STREAMED
    products: Callable[[OpTable], Products] | None = None
    batched: bool = False
    row_sizes: Callable[[OpTable], tuple[Floats, ...]] | None = None
    padded: Callable[[OpTable], Bools] | None = None
    retile: Callable[[OpTable, Bools, Grid], None] | None = None
    launches: Callable[[OpTable], Floats] | None = None
    rereads: Callable[[OpTable], Rereads] | None = None
    handed: Callable[[OpTable], Floats] | Literal["rows"] | None = None
    relaid: Callable[[OpTable], Floats] | None = None
    queries: Callable[[OpTable], Queries] | None = None
    loops: Callable[[OpTable], Loops] | None = None
    libraries: Callable[[OpTable], Choice] | None = None
    library_costs: Costing | None = None
    transformed: Callable[[OpTable], Transformed] | None = None
    saving: Callable[[OpTable], Floats] | None = None
    weights: Callable[[OpTable], Floats] | None = None
    quantised: Callable[[OpTable], Floats] | None = None
    link_bytes: Callable[[OpTable], Floats] | None = None
    passing: Callable[[OpTable], Passing] | None = None
    pattern: Pattern | None = None
    traffic: Literal["computes", "moves", "streams"] = "computes"

    ratios: tuple[Ratio, ...] = ()
    kernel_class: Callable[[OpTable], Floats] | None = None
    waits: bool = False
    interval_apart: bool = False
    configuration: tuple[str, ...] = ()
    few_configurations: bool = False
    parts: Callable[[OpTable], tuple[Floats, ...]] | None = None
    part_names: tuple[str, ...] = ()

    backward: tuple[Step, ...] = (ITSELF,)
    saves: tuple[Literal["input", "output"], ...] = ()
    fusible: bool = False
    own_input: bool = False
    tied: bool = False
    in_training: str = ""

    suite: Space | None = None
    usual: Mapping[str, tuple[int, int] | int] = field(default_factory=dict)
    example: Mapping[str, int] = field(default_factory=dict)

    fields: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Derive the columns."""
        object.__setattr__(self, "fields", columns(self.dims))

    def broken(self, table: OpTable) -> list[Broken]:
        """Return the rules between fields, with the rows that break them."""
        return [] if self.check is None else self.check(table)

    @property
    def family(self) -> str:
        """The line of its errors: its group, or in attention its name, as prefill and decode differ."""
        return self.name if self.group == "attention" else self.group

    @property
    def interval_group(self) -> str:
        """The group of residuals that its intervals are of."""
        return self.name if self.interval_apart else self.group
