"""The cross-GPU kernels paper's 16 CUDA kernels (its section 5), at the sizes of its table 2 and beyond.

`one_store`, beside them, is what a launch costs by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest

from app.measure.kernel_definitions import (
    Case,
    atomic_hotspot,
    conv2d_3x3,
    conv2d_7x7,
    dot_product,
    histogram,
    matmul_naive,
    matmul_tiled,
    naive_transpose,
    one_store,
    random_access,
    reduce_sum,
    saxpy,
    shared_bank_conflict,
    shared_transpose,
    strided_copy_8,
    vector_add,
    vector_add_divergent,
)

# Sizes from the paper's medium to its extra large one, its small one, and one beyond every cache.
_LINES = [(2**20,), (2**24,), (2**18,), (2**22,), (2**26,)]
_PLANES = [(edge, edge) for edge in (1024, 4096, 512, 2048, 8192)]
_MATRICES = [(512,), (2048,), (256,), (1024,)]
_HOT = [(n, iterations) for n in (2**20, 2**22, 2**18) for iterations in (100, 50)]
# The more lanes meet in a bank, the fewer steps, so that all take about as long.
_BANKS = [(1024, 32, 256), (1024, 1, 8192), (1024, 4, 2048), (1, 32, 256), (1024, 16, 512)]
# The most telling sizes first.
_SUITE: Mapping[Callable[..., Case], Sequence[tuple[int, ...]]] = {
    vector_add: _LINES,
    saxpy: _LINES,
    strided_copy_8: _LINES,
    random_access: _LINES,
    vector_add_divergent: _LINES,
    naive_transpose: _PLANES,
    shared_transpose: _PLANES,
    matmul_naive: _MATRICES,
    matmul_tiled: _MATRICES,
    conv2d_3x3: _PLANES,
    conv2d_7x7: _PLANES,
    reduce_sum: _LINES,
    dot_product: _LINES,
    histogram: _LINES,
    atomic_hotspot: _HOT,
    shared_bank_conflict: _BANKS,
}
# Sizes that no block divides, against which each kernel is checked.
_RAGGED: Mapping[Callable[..., Case], tuple[int, ...]] = {
    one_store: (3,),
    **dict.fromkeys(_SUITE, (1000,)),
    **dict.fromkeys((naive_transpose, shared_transpose, conv2d_3x3, conv2d_7x7), (70, 45)),
    **dict.fromkeys((matmul_naive, matmul_tiled), (45,)),
    atomic_hotspot: (1000, 3),
    shared_bank_conflict: (2, 8, 5),
}
CHECKS: Mapping[str, Case] = {kernel.__name__: kernel(*size) for kernel, size in _RAGGED.items()}


def cases() -> Iterator[Case]:
    """The suite: every kernel at its most telling size, then every kernel at its next one, and so on."""
    yield one_store()
    for sizes in zip_longest(*_SUITE.values()):
        for kernel, size in zip(_SUITE, sizes, strict=True):
            if size is not None:
                yield kernel(*size)
