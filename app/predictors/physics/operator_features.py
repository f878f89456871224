"""GPU-independent features of operators that the analytic model needs: one array per feature, for compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from app.ops import OPS, Kind, demands_of
from app.ops.attention_kernels import fill_tiles
from app.ops.figures import Grid, LibraryCosts, Loops, Passing, Products, Queries, Rereads
from app.ops.gemm import CANDIDATES, TRANSFORMED, Alignment, alignment_of, as_batches, fill_grid, misaligned_clocks
from app.predictors.priors import IN_TURN, IS_EAGER, TILE_EDGE
from app.runtime.compiled import compiled
from app.stacks.libraries import NO_LIBRARY, Choice
from app.tables.architectures import GENERATIONS
from app.tables.arrays import Floats, Ints
from app.tables.ops import DTYPE_BYTES, WEIGHT_BYTES, OpTable

# Bytes that other layers move per weight of a `linear`, by dtype; 0 for dtypes that PyTorch runs back to back.
_IN_TURN_BYTES = np.where(IS_EAGER, 0.0, (IN_TURN - 1.0) * WEIGHT_BYTES)
# Families whose operand is their rows, which is a figure of all of them at once.
_HANDED_ROWS = np.array([op.handed == "rows" for op in OPS])
# Of each family; None for those without.
Loads = list[Alignment | None]
# Number of product spaces. They replace the first candidate tiles; rows with them have no other tile.
SPACES = len(TRANSFORMED)


def speed_of(tiles: Floats) -> Floats:
    """Return the share of the peak that full tiles reach, [tiles], given their sizes [tiles, 2].

    The cost of a tile's border is spread over its results, so small tiles reach less.
    """
    speed: Floats = 1.0 / (1.0 + TILE_EDGE * (1.0 / tiles).sum(axis=1))
    return speed


# Speed of the spaces' tiles relative to the candidates that they replace.
_SPACE_SPEED = (speed_of(TRANSFORMED) / speed_of(CANDIDATES)[:SPACES])[:, None]

_fill_grid = compiled(fill_grid)
_fill_tiles = compiled(fill_tiles)
_FILL_COSTS = {op.name: compiled(op.library_costs.fill) for op in OPS if op.library_costs is not None}


class OperatorFeatures(NamedTuple):
    """Demands of operator rows on any device, float64 [n] each unless noted.

    flops, least_flops  work as kernels do it, and by the cheapest algorithm known
    moved, distinct     bytes
    activations         elements that a quantising serving stack quantises first; 0 except for `linear`
    reread, in_flight, passed  bytes re-read if evicted from the L2, and the bytes in flight per SM and in total
    later               bytes that a later kernel reads again
    clocks              SM clocks to synchronise a row reduction, draw random numbers, start a tile or load what is not
                        aligned; mostly 0
    longest             SM clocks of the longest block; mostly 0
    misaligned          1 where it is not (app.ops.gemm), else 0
    handed              input bytes that the previous operator of a network has just written
    relaid              bytes moved to change layouts around kernels of tensor units that take another; else 0
    between             bytes of other layers' weights read before a serving stack repeats a `linear`; else 0
    launches            dependent kernel launches
    sent                bytes over the link of collectives; else 0
    hops, kept, devices  as in app.ops.base.Passing, of collectives
    eager, burst, backward  as the columns of these names
    stack               code of the serving stack; that of the first where it is absent
    transformed         [spaces, n], bytes that transforms move for products in each space
                        (app.ops.base.Transformed); else 0
    blocks, fill, splits  as in app.ops.figures.Grid, [candidates, n]; `fill` is 0 for a row without products
    loops               as in app.ops.base.Loops, [3, n]; 0 for a row without loops, [3, 0] if no row has any
    parts               as `parts` of app.ops.base.Op, [parts, n]; 0 for a row without, [0, n] if no row has any
    libraries           position in app.stacks.libraries.LIBRARIES of the kernels on a GPU of each generation,
                        [GENERATIONS, n]; NO_LIBRARY for a row without, [0, n] if no row has any
    library_costs       as in app.ops.figures.LibraryCosts, [costs, GENERATIONS, n]; [costs, 0, n] if no row has any
    kind, dtype         int [n], codes
    """

    flops: Floats
    least_flops: Floats
    moved: Floats
    distinct: Floats
    activations: Floats
    reread: Floats
    in_flight: Floats
    passed: Floats
    later: Floats
    clocks: Floats
    longest: Floats
    misaligned: Floats
    handed: Floats
    relaid: Floats
    between: Floats
    launches: Floats
    sent: Floats
    hops: Floats
    kept: Floats
    devices: Floats
    eager: Floats
    burst: Floats
    backward: Floats
    stack: Floats
    transformed: Floats
    blocks: Floats
    fill: Floats
    splits: Floats
    loops: Floats
    parts: Floats
    libraries: Floats
    library_costs: Floats
    kind: Ints
    dtype: Ints


def products_of(kinds: list[Kind]) -> list[Products | None]:
    """Return the matrix products of each family's rows; None for families without."""
    return [None if kind.op.products is None else kind.op.products(kind.table) for kind in kinds]


def _grid(kind: Kind, load: Alignment | None, products: Products) -> Grid:
    """Return the tiles of one family's rows."""
    n = products.batch.size
    tiles = Grid(np.empty((len(CANDIDATES), n)), np.empty((len(CANDIDATES), n)), np.empty(n))
    _fill_grid(Products(*(np.ascontiguousarray(part) for part in products)), tiles)
    if kind.op.batched:
        as_batches(products, tiles)
    if kind.op.retile is not None:
        assert load is not None
        kind.op.retile(kind.table, load.aligned, tiles)
    return tiles


def _grid_of(n: int, kinds: list[Kind], loads: Loads, products: list[Products | None]) -> Grid:
    """Return the tiles of every row; `fill` is 0 for rows without products."""
    families = zip(kinds, loads, products, strict=True)
    present = [(kind, load, part) for kind, load, part in families if part is not None]
    if not present:
        return Grid(np.zeros((0, n)), np.zeros((0, n)), np.zeros(n))
    if len(kinds) == 1:
        return _grid(*present[0])
    tiles = Grid(np.ones((len(CANDIDATES), n)), np.zeros((len(CANDIDATES), n)), np.ones(n))
    for kind, load, of_kind in present:
        for whole, part in zip(tiles, _grid(kind, load, of_kind), strict=True):
            whole[..., kind.rows] = part
    return tiles


def _in_other_spaces(grid: Grid, kinds: list[Kind]) -> tuple[Grid, Floats]:
    """Return `grid` with products in other spaces filled in, and the bytes of their transforms [spaces, n].

    Such rows have no other tiles, and none of their kernels splits the summed dimension.
    """
    able = [(kind.rows, kind.op.transformed(kind.table)) for kind in kinds if kind.op.transformed is not None]
    some = any(len(products.rows) for _, products in able)  # else the number of spaces is not needed
    bytes_of = np.zeros((SPACES if some else 0, len(grid.splits)))
    for rows, products in able if some else ():
        here = np.arange(len(grid.splits))[rows][products.rows]
        grid.blocks[:SPACES, here], bytes_of[:, here] = products.blocks, products.bytes
        grid.fill[:SPACES, here] = products.fill * _SPACE_SPEED
        grid.fill[SPACES:, here], grid.splits[here] = 0.0, 1.0
    return grid, bytes_of


def _of_kinds(ops: OpTable, kinds: list[Kind], figure: Callable[[Kind], Floats]) -> Floats:
    """Return a feature of every row [n], computed family by family."""
    if len(kinds) == 1:
        return figure(kinds[0])
    column = np.empty(ops.kind.size)
    for kind in kinds:
        column[kind.rows] = figure(kind)
    return column


def _launches(kind: Kind) -> Floats:
    return np.ones(kind.table.kind.size) if kind.op.launches is None else kind.op.launches(kind.table)


def _handed(ops: OpTable, kinds: list[Kind]) -> Floats:
    rows = _HANDED_ROWS[ops.kind]
    column = np.zeros(ops.kind.size)
    if rows.any():
        column = np.where(rows, ops.column("b") * ops.column("h") * DTYPE_BYTES[ops.dtype], 0.0)
    for kind in kinds:
        if callable(kind.op.handed):
            column[kind.rows] = kind.op.handed(kind.table)
    return column


def _relaid(nothing: Floats, kinds: list[Kind]) -> Floats:
    relaying = [(kind, kind.op.relaid) for kind in kinds if kind.op.relaid is not None]
    if not relaying:
        return nothing
    column = nothing.copy()
    for kind, relaid in relaying:
        column[kind.rows] = relaid(kind.table)
    return column


def _passing(nothing: Floats, kinds: list[Kind]) -> Passing:
    """Return the messages of collectives; `nothing` is a shared array of zeros [n]."""
    collectives = [(kind, kind.op.passing) for kind in kinds if kind.op.passing is not None]
    if not collectives:
        return Passing(nothing, nothing, nothing)
    messages = Passing(*(nothing.copy() for _ in Passing._fields))
    for kind, passing in collectives:
        for whole, part in zip(messages, passing(kind.table), strict=True):
            whole[kind.rows] = part
    return messages


def _activations(kind: Kind) -> Floats:
    quantised = kind.op.quantised
    return np.zeros(kind.table.kind.size) if quantised is None else quantised(kind.table)


def _between(kind: Kind) -> Floats:
    table = kind.table
    if kind.op.quantised is None or kind.op.weights is None:
        return np.zeros(table.kind.size)
    weights: Floats = kind.op.weights(table) * _IN_TURN_BYTES[table.dtype]
    between: Floats = weights * ~(table.column("eager") > 0.0)
    return between


def _rereads(nothing: Floats, kinds: list[Kind]) -> Rereads:
    """Return the re-read bytes and reduction costs of every row; `nothing` is a shared array of zeros [n]."""
    again = [(kind, kind.op.rereads) for kind in kinds if kind.op.rereads is not None]
    if not again:
        return Rereads(*(nothing for _ in Rereads._fields))
    rows = Rereads(*(nothing.copy() for _ in Rereads._fields))
    for kind, rereads in again:
        for whole, part in zip(rows, rereads(kind.table), strict=True):
            whole[kind.rows] = part
    return rows


def _misaligned(
    nothing: Floats, kinds: list[Kind], loads: Loads, products: list[Products | None], moved: Floats
) -> tuple[Floats, Floats]:
    """Return the clocks of rows that are not aligned, and `misaligned` of OperatorFeatures.

    `nothing`: a shared array of zeros [n], which both are if all are aligned; `moved`: bytes of every row.
    """
    clocks = misaligned = nothing
    for kind, load, of_kind in zip(kinds, loads, products, strict=True):
        if load is not None and not load.aligned.all():
            clocks, misaligned = (nothing.copy() if part is nothing else part for part in (clocks, misaligned))
            clocks[kind.rows] = misaligned_clocks(kind.op, kind.table, load, of_kind, moved[kind.rows])
            misaligned[kind.rows] = ~load.usual
    return clocks, misaligned


def _with_tiles(flops: Floats, rereads: Rereads, kinds: list[Kind]) -> tuple[Floats, Rereads]:
    """Return the FLOPs of every row including padding, and `rereads` with the clocks of attention tiles added."""
    tiled = [(kind.rows, kind.op.queries(kind.table)) for kind in kinds if kind.op.queries is not None]
    if not tiled:
        return flops, rereads
    flops, clocks = flops.copy(), rereads.clocks.copy()
    for rows, queries in tiled:
        padding, spent = (np.empty(len(queries.batch)) for _ in range(2))
        _fill_tiles(Queries(*(np.ascontiguousarray(part) for part in queries)), padding, spent)
        flops[rows] *= padding
        clocks[rows] += spent
    return flops, rereads._replace(clocks=clocks)


def _loops(n: int, kinds: list[Kind]) -> Floats:
    """Return `loops` of OperatorFeatures."""
    looping = [(kind.rows, kind.op.loops(kind.table)) for kind in kinds if kind.op.loops is not None]
    features = np.zeros((len(Loops._fields), n if looping else 0))
    for rows, loops in looping:
        for whole, part in zip(features, loops, strict=True):
            whole[rows] = part
    return features


def _parts(n: int, kinds: list[Kind]) -> Floats:
    """Return `parts` of OperatorFeatures."""
    parted = [(kind.rows, kind.op.parts(kind.table)) for kind in kinds if kind.op.parts is not None]
    features = np.zeros((max((len(parts) for _, parts in parted), default=0), n))
    for rows, parts in parted:
        for whole, part in zip(features, parts, strict=False):
            whole[rows] = part
    return features


@compiled
def _fill_libraries(choice: Choice, stack: Floats, dtype: Ints, codes: Floats) -> None:
    """Fill `codes` [GENERATIONS, n] with positions in LIBRARIES; a row without a `stack` [n] is of the first one."""
    for q in range(len(dtype)):
        kind, form = 0, dtype[q] if np.isnan(choice.format[q]) else int(choice.format[q])
        for layer in range(1, len(choice.layers)):
            if choice.layer[q] == choice.layers[layer]:
                kind = layer
        for generation in range(len(codes)):
            codes[generation, q] = choice.library[generation, int(stack[q]), form, kind]


def _libraries(stack: Floats, dtype: Ints, kinds: list[Kind]) -> Floats:
    """Return `libraries` of OperatorFeatures."""
    chosen = [(kind.rows, kind.op.libraries(kind.table)) for kind in kinds if kind.op.libraries is not None]
    features = np.full((len(GENERATIONS) if chosen else 0, len(dtype)), NO_LIBRARY)
    for rows, choice in chosen:
        of_rows = np.empty((len(GENERATIONS), len(choice.format)))
        _fill_libraries(choice, stack[rows], dtype[rows], of_rows)
        features[:, rows] = of_rows
    return features


def _library_costs(libraries: Floats, kinds: list[Kind]) -> Floats:
    """Return `library_costs` of OperatorFeatures."""
    costly = [(kind, kind.op.library_costs) for kind in kinds if kind.op.library_costs is not None]
    costs = np.zeros((len(LibraryCosts._fields), len(libraries) if costly else 0, libraries.shape[1]))
    for kind, costing in costly:
        of_rows = np.zeros((len(costs), len(libraries), kind.table.kind.size))
        rows = costing.rows(kind.table)
        _FILL_COSTS[kind.op.name](rows, np.ascontiguousarray(libraries[:, kind.rows]), LibraryCosts(*of_rows))
        costs[:, :, kind.rows] = of_rows
    return costs


def operator_features(ops: OpTable, kinds: list[Kind], products: list[Products | None]) -> OperatorFeatures:
    """Return the operator features of every row."""
    work, least_flops, sent = demands_of(ops, kinds)
    eager, burst, backward, stack = (ops.dims[ops.fields[name]] for name in ("eager", "burst", "backward", "stack"))
    nothing, stack = np.zeros(ops.kind.size), np.nan_to_num(stack)
    in_network = bool((eager < 0.0).any())  # else `handed` is not used
    flops, rereads = _with_tiles(work.flops, _rereads(nothing, kinds), kinds)
    loads = [None if kind.op.row_sizes is None else alignment_of(kind.op, kind.table) for kind in kinds]
    slow, misaligned = _misaligned(nothing, kinds, loads, products, work.bytes)
    if slow is not nothing:
        rereads = rereads._replace(clocks=rereads.clocks + slow)
    grid, transformed = _in_other_spaces(_grid_of(ops.kind.size, kinds, loads, products), kinds)
    return OperatorFeatures(
        flops,
        least_flops,
        work.bytes,
        work.working_set_bytes,
        _of_kinds(ops, kinds, _activations),
        *rereads,
        misaligned,
        _handed(ops, kinds) if in_network else nothing,
        _relaid(nothing, kinds),
        _of_kinds(ops, kinds, _between),
        _of_kinds(ops, kinds, _launches),
        nothing if sent is None else sent,
        *_passing(nothing, kinds),
        eager,
        burst,
        backward,
        stack,
        transformed,
        *grid,
        _loops(ops.kind.size, kinds),
        _parts(ops.kind.size, kinds),
        libraries := _libraries(stack, ops.dtype, kinds),
        _library_costs(libraries, kinds),
        ops.kind,
        ops.dtype,
    )
