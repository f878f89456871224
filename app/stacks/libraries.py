"""Libraries of kernels that serving stacks choose, by stack, generation of GPUs, number format and kind of layer.

Kernels of one library reach about the same shares of the peaks on all GPUs that they run on, also under several
stacks, while those of two libraries differ by factors on one GPU. Which of them a stack chooses is its own rule, known
for a GPU that nobody measured: what the library took elsewhere tells more of it than what the stack took elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from app.stacks.registry import stacks, trained_stacks
from app.tables.architectures import GENERATIONS
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_CODE, DTYPES

# From those for weights of few bits, over those that any GPU runs, to those written for one: trees split them by
# position, and a library that no row had is answered as its neighbours. "": none of these, as on other GPUs.
LIBRARIES = (
    "marlin",
    "",
    "triton",
    "flash-attention-2",
    "flashinfer",
    "flash-attention-3",
    "cutlass",
    "trtllm-fp8",
    "trtllm",
    "trtllm-gen",
)
LIBRARY_CODE = {name: code for code, name in enumerate(LIBRARIES)}
NO_LIBRARY = float(LIBRARY_CODE[""])


class Choice(NamedTuple):
    """What a stack's choice for n rows depends on, beside stack and dtype.

    library  float64 [GENERATIONS, trained stacks, DTYPES, layers], position in LIBRARIES
    format   float64 [n], code of the format that decides; NaN: of the row's dtype
    layer    float64 [n], what tells kinds of layer apart
    layers   float64 [layers], its value in each kind; the first is of all other values too
    """

    library: Floats
    format: Floats
    layer: Floats
    layers: Floats


def libraries_of(family: str, layers: Sequence[str]) -> Floats:
    """Return `library` of a Choice for a family of operators, whose kinds of layer have these names.

    The first rule of a stack decides; where it has none, and on GPUs of no generation, it is NO_LIBRARY.
    """
    names = trained_stacks()
    table = np.full((len(GENERATIONS), len(names), len(DTYPES), len(layers)), NO_LIBRARY)
    for code, name in enumerate(names):
        for rule in reversed(stacks()[name].libraries[family].rules):
            places = (
                [GENERATIONS.index(generation) for generation in rule.generations or GENERATIONS[1:]],
                [code],
                [DTYPE_CODE[dtype] for dtype in rule.formats or DTYPES],
                [layers.index(layer) for layer in rule.layers or layers],
            )
            table[np.ix_(*places)] = LIBRARY_CODE[rule.library]
    return table


def kernel_fact(fact: str) -> list[Any]:
    """Return a fact of the kernels of each trained stack, by code; None where its file has no such fact."""
    return [stacks()[name].values(None, "decode").get(fact) for name in trained_stacks()]
