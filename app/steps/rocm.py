"""What ROCm's kernels and graphs take more than the predicted ones, by release and architecture."""

from __future__ import annotations

import numpy as np

from app.coefficients import Coefficients
from app.ops import OP_CODE
from app.ops.attention_kernels import attended, key_bytes
from app.steps.correction import NOWHERE, Correction, Subject, of_architectures
from app.tables.arrays import Bools, Floats
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE

_FITTED = Coefficients("steps")
_CDNA_3 = ("cdna 3",)

# AMD's graphs: the next kernel starts so many seconds after the one before it, by architecture. Operators are timed
# alone, and by kernels of NVIDIA's, whose graphs leave no such gap.
_GAPS = _FITTED.by_name("hip_graph_gap_s")


def _waits_between_kernels(subject: Subject) -> Bools:
    if subject.run.release.kernels is None or subject.run.mode not in ("prefill", "decode"):
        return NOWHERE
    return of_architectures(subject.gpus, tuple(_GAPS))[:, None]


def _gap_s(subject: Subject) -> Floats:
    gaps: Floats = np.sum([gap * of_architectures(subject.gpus, (name,)) for name, gap in _GAPS.items()], axis=0)
    return gaps[:, None]


# Products in FP8 by blocks of which AITER's Triton kernel has no settings (Release.untuned_products): its default takes
# the blocks of the depth one after another, on a few of CDNA 3's units.
_UNTUNED_DEPTH_S = _FITTED.number("untuned_depth_s")


def _is_untuned(subject: Subject) -> Bools:
    ops, shapes = subject.ops, subject.run.release.untuned_products
    products = (ops.kind == OP_CODE["linear"]) & (ops.dtype == DTYPE_CODE["fp8_block"])
    if not shapes or not products.any():
        return NOWHERE
    alike = [(ops.column("n") == n) & (ops.column("k") == k) for n, k in shapes]
    on: Bools = of_architectures(subject.gpus, ("cdna 3",))[:, None] & products & np.any(alike, axis=0)
    return on


def _untuned_s(subject: Subject) -> Floats:
    return subject.ops.column("k") * _UNTUNED_DEPTH_S


# Decoding attention of vLLM before its kernel for ROCm (Release.reads_by_head): a block for every query head, which
# reads the keys and values of its KV head. CDNA 3 deals neighbouring blocks to different dies, each with an L2 of its
# own, so that what heads share is read again for each. Share of the memory's bandwidth at which they read.
HEAD_READS = _FITTED.number("head_reads_share")


def _reads_by_head(subject: Subject) -> Bools:
    decodes = subject.ops.kind == OP_CODE["attention_decode"]
    if not subject.run.release.reads_by_head or not decodes.any():
        return NOWHERE
    on: Bools = of_architectures(subject.gpus, _CDNA_3)[:, None] & decodes
    return on


def _head_reads_s(subject: Subject) -> Floats:
    ops = subject.ops
    elements = 2.0 * ops.column("batch") * ops.column("heads") * attended(ops).keys * ops.column("head_dim")
    return elements * key_bytes(ops) / _bytes_per_s(subject, HEAD_READS)


# Products of few rows in 16 bits by libraries that nobody had tuned for CDNA 3 (Release.product_tile): tiles of so many
# rows each read the weights, up to a number of rows. Share of the memory's bandwidth at which they read.
TILE_READS = _FITTED.number("product_tile_share")


def _rereads_weights(subject: Subject) -> Bools:
    ops = subject.ops
    products = (ops.kind == OP_CODE["linear"]) & np.isin(ops.dtype, [DTYPE_CODE[name] for name in ("fp16", "bf16")])
    if subject.run.release.product_tile is None or not products.any():
        return NOWHERE
    on: Bools = of_architectures(subject.gpus, _CDNA_3)[:, None] & products
    return on


def _tile_reads_s(subject: Subject) -> Floats:
    ops, tile = subject.ops, subject.run.release.product_tile
    assert tile is not None
    rows, most = tile
    passes = np.ceil(np.minimum(ops.column("m"), most) / rows)
    weights = DTYPE_BYTES[ops.dtype] * ops.column("n") * ops.column("k")
    seconds: Floats = passes * weights / _bytes_per_s(subject, TILE_READS)
    return seconds


def _bytes_per_s(subject: Subject, share: float) -> Floats:
    return share * subject.gpus.column("memory_bandwidth_bytes_per_s")[:, None]


ROCM = (
    Correction("untuned_products", "row", _is_untuned, least_s=_untuned_s),
    Correction("reads_by_head", "row", _reads_by_head, least_s=_head_reads_s),
    Correction("product_tiles", "row", _rereads_weights, least_s=_tile_reads_s),
    Correction("hip_graph_gap", "row", _waits_between_kernels, added_s=_gap_s),
)
