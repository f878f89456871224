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


class Rule(NamedTuple):
    """A library, and of which rows it is; an empty field means all.

    stacks, generations  of STACKS, and of GENERATIONS
    formats              number formats
    layers               kinds of layer, as positions in `Choice.layers`
    """

    library: str
    stacks: Sequence[str] = ()
    generations: Sequence[str] = ()
    formats: Sequence[str] = ()
    layers: Sequence[int] = ()


class Choice(NamedTuple):
    """What a stack's choice for n rows depends on, beside stack and dtype.

    library  float64 [GENERATIONS, STACKS, DTYPES, layers], position in LIBRARIES
    format   float64 [n], code of the format that decides; NaN: of the row's dtype
    layer    float64 [n], what tells kinds of layer apart
    layers   float64 [layers], its value in each kind; the first is of all other values too
    """

    library: Floats
    format: Floats
    layer: Floats
    layers: Floats


def libraries(rules: Sequence[Rule], layers: int) -> Floats:
    """Return `library` of a Choice among this many kinds of layer.

    The first rule decides; where there is none, and on GPUs of no generation, it is NO_LIBRARY.
    """
    table = np.full((len(GENERATIONS), len(STACKS), len(DTYPES), layers), NO_LIBRARY)
    for rule in reversed(rules):
        places = (
            [GENERATIONS.index(name) for name in rule.generations or GENERATIONS[1:]],
            [STACKS.index(name) for name in rule.stacks or STACKS],
            [DTYPE_CODE[name] for name in rule.formats or DTYPES],
            rule.layers or range(layers),
        )
        table[np.ix_(*places)] = LIBRARY_CODE[rule.library]
    return table


def fill_libraries(choice: Choice, stack: Floats, dtype: Ints, found: Floats) -> None:
    """Fill `found` [GENERATIONS, n] with positions in LIBRARIES; a row without a `stack` [n] is of the first one.

    To be compiled.
    """
    for q in range(len(dtype)):
        kind, form = 0, dtype[q] if np.isnan(choice.format[q]) else int(choice.format[q])
        for layer in range(1, len(choice.layers)):
            if choice.layer[q] == choice.layers[layer]:
                kind = layer
        for generation in range(len(found)):
            found[generation, q] = choice.library[generation, int(stack[q]), form, kind]
