"""Libraries of kernels that serving stacks choose, by stack, generation of GPUs, number format and kind of layer.

Kernels of one library reach about the same shares of the peaks on all GPUs that they run on, also under several
stacks, while those of two libraries differ by factors on one GPU. Which of them a stack chooses is its own rule, known
for a GPU that nobody measured: what the library took elsewhere tells more of it than what the stack took elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from app.ops.stacks import STACKS
from app.tables.architectures import GENERATIONS
from app.tables.arrays import Floats, Ints
from app.tables.ops import DTYPE_CODE, DTYPES

# From those that any GPU runs to those written for one, then one for weights of few bits: trees split them by position.
LIBRARIES = (
    "",
    "triton",
    "flash-attention-2",
    "flashinfer",
    "cutlass",
    "trtllm",
    "flash-attention-3",
    "trtllm-gen",
    "marlin",
)


class Rule(NamedTuple):
    """A library, and of which rows it is; an empty field means all.

    stacks, generations  of STACKS, and of GENERATIONS
    formats              number formats
    layers               kinds of layer, as the operator counts them
    """

    library: str
    stacks: Sequence[str] = ()
    generations: Sequence[str] = ()
    formats: Sequence[str] = ()
    layers: Sequence[int] = ()


def libraries(rules: Sequence[Rule], layers: int) -> Floats:
    """Return the position in LIBRARIES by generation, stack, format and kind of layer, float64 [g, s, d, layers].

    The first rule decides; where there is none, and on GPUs of no GENERATION, it is 0.
    """
    table = np.zeros((len(GENERATIONS), len(STACKS), len(DTYPES), layers))
    for rule in reversed(rules):
        places = (
            [GENERATIONS.index(name) for name in rule.generations or GENERATIONS[1:]],
            [STACKS.index(name) for name in rule.stacks or STACKS],
            [DTYPE_CODE[name] for name in rule.formats or DTYPES],
            rule.layers or range(layers),
        )
        table[np.ix_(*places)] = LIBRARIES.index(rule.library)
    return table


def chosen(table: Floats, stack: Floats, dtype: Ints, layer: Ints) -> Floats:
    """Return what `libraries` has for rows of these codes [n], float64 [GENERATIONS, n]; an unknown stack is vLLM."""
    of_rows: Floats = table[:, np.nan_to_num(stack).astype(np.intp), dtype, layer]
    return of_rows
