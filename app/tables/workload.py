"""A network as operators in execution order: the output of importers, and the input and output of passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from app.tables.arrays import Bools, Floats, Ints
from app.tables.ops import OpTable

PHASES = ("forward", "backward", "update")
FORWARD, BACKWARD, UPDATE = range(3)


@dataclass(frozen=True, slots=True)
class Workload:
    """n operators of one device in execution order, in blocks.

    A block is a run of consecutive rows that repeats (the layers of a transformer): row r runs `repeats[block[r]]`
    times its own `count`, and edges within a block apply to each repetition. The output of a block's last row feeds the
    next repetition, and the next block.

    ops           OpTable with MIXED_FIELDS; `eager` is at most 0: device time, the schedule adds what the host launches
    names         [n], what the source calls each row; never a feature
    phase         int [n], code into PHASES
    source        int [n], the forward row that a row stems from: its own number, in rows of forward
    block         int [n], never decreasing
    repeats       float64 [blocks], how often each block runs
    origin        int [blocks], the forward block whose layers a block runs: its own number, until a pass adds the
                  blocks of backward and update
    edges         int [2, e], producer and consumer row; a producer stands before its consumer
    parameters    float64 [n], weights that a row holds, elements of one repetition of its block
    weight_bytes  float64 [n], the same in bytes
    output_bytes  float64 [n], what one repetition of a row writes for others
    saved_bytes   float64 [n], what of it (and of the row's own) backward needs: kept from forward to backward
    kv_bytes      float64 [n], keys and values that stay for later tokens
    overlapped    bool [n], communication that runs beside computation; other rows wait for one another
    unknown       operators of the source that nobody knows, how many of each: they stand as `memory`
    """

    ops: OpTable
    names: tuple[str, ...]
    phase: Ints
    source: Ints
    block: Ints
    repeats: Floats
    origin: Ints
    edges: Ints
    parameters: Floats
    weight_bytes: Floats
    output_bytes: Floats
    saved_bytes: Floats
    kv_bytes: Floats
    overlapped: Bools
    unknown: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ops)

    @property
    def blocks(self) -> int:
        """Number of forward blocks."""
        return int(self.origin.max(initial=-1)) + 1

    def per_block(self, values: Floats) -> Floats:
        """Return the sums of a row figure [..., n] over each forward block, [..., blocks]."""
        if values.ndim == 1:
            return np.bincount(self.block, weights=values, minlength=self.blocks)[: self.blocks].astype(np.float64)
        ends = np.searchsorted(self.block, np.arange(self.blocks + 1)).tolist()
        return np.stack([values[..., a:b].sum(axis=-1) for a, b in pairwise(ends)], axis=-1)

    @property
    def runs(self) -> Floats:
        """Total runs of each row, float64 [n]."""
        runs: Floats = self.ops.column("count") * self.repeats[..., self.block]
        return runs
