"""Identification of kernels by name, as in PM2Lat (sections III.B and III.C): library, tile, split-K, transpose mode.

Names of cuBLAS, cuDNN, CUTLASS and AMD's Tensile contain these; a name without a tile (Triton, FlashAttention, fused
MoE, a framework's own name) is a custom kernel, identified by its whole name.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class KernelName(NamedTuple):
    """Attributes in a kernel's name.

    library    "cublas", "cudnn", "cutlass", "tensile", "triton", "flash", "cutlass attention", "moe" or "other"
    tile       rows and columns of the output of a block, (0, 0) if unknown
    pieces     pieces of split-K or slices within a block; 1: not split, 0: split by an unknown number
    transpose  "nn", "tn", "nt", "tt" or ""
    """

    library: str
    tile: tuple[int, int]
    pieces: int
    transpose: str


_LIBRARIES = (
    ("moe", re.compile(r"moe|experts", re.IGNORECASE)),
    ("flash", re.compile(r"flash|fmha_fwd|fa[234]\b", re.IGNORECASE)),
    ("cutlass attention", re.compile(r"fmha_cutlass|attention_kernel|AttentionKernel")),
    ("triton", re.compile(r"triton", re.IGNORECASE)),
    ("tensile", re.compile(r"^Cijk_")),
    ("cudnn", re.compile(r"cudnn|scudnn|convolve", re.IGNORECASE)),
    ("cutlass", re.compile(r"cutlass", re.IGNORECASE)),
    ("cublas", re.compile(r"gemm|nvjet|gemv|cublas", re.IGNORECASE)),
)
_CUSTOM = ("moe", "flash", "cutlass attention", "triton", "other")
# Place of the tile in each library's names; the first match counts.
_TILES = (
    re.compile(r"tilesize(\d+)x(\d+)"),
    re.compile(r"_MT(\d+)x(\d+)"),
    re.compile(r"gemm(?:_\w*?)??_(\d+)x(\d+)"),
    re.compile(r"nvjet_\w*?_(\d+)x(\d+)"),
    re.compile(r"_(\d{2,3})x(\d{2,3})(?=_|x|\b)"),
)
_SLICES = re.compile(r"sliced(\d+)x(\d+)")
_GLOBAL_SPLIT = re.compile(r"_GSU(\d+)")
_SPLIT = re.compile(r"split_?k|segment_k(?!_off)|stream_?k", re.IGNORECASE)
_TRANSPOSE = re.compile(r"_([nt])_?([nt])(?=_|\b|t$)", re.IGNORECASE)
_TENSILE_TRANSPOSE = {"Ailk_Bljk": "nn", "Alik_Bljk": "tn", "Ailk_Bjlk": "nt", "Alik_Bjlk": "tt"}


def parse(name: str) -> KernelName:
    """Return the attributes in a kernel's name."""
    library = next((known for known, pattern in _LIBRARIES if pattern.search(name)), "other")
    if library in _CUSTOM:
        return KernelName(library, (0, 0), 1, "")
    tile_match = next((match for pattern in _TILES if (match := pattern.search(name))), None)
    tile = (int(tile_match[1]), int(tile_match[2])) if tile_match else (0, 0)
    return KernelName(library, tile, _pieces(name), _transpose(name))


def _pieces(name: str) -> int:
    if slices := _SLICES.search(name):
        return int(slices[1]) * int(slices[2])
    if split := _GLOBAL_SPLIT.search(name):
        return int(split[1])
    return 0 if _SPLIT.search(name) else 1


def _transpose(name: str) -> str:
    for word, mode in _TENSILE_TRANSPOSE.items():
        if word in name:
            return mode
    match = _TRANSPOSE.search(name)
    return (match[1] + match[2]).lower() if match else ""


def identity(name: str) -> str:
    """Return the identity of a kernel, equal for names that differ only in arguments or library version."""
    parsed = parse(name)
    if parsed.library == "tensile":
        instruction = re.search(r"_MI(\d+x\d+)", name)
        return " ".join([*map(str, parsed), instruction[1] if instruction else ""])
    return re.sub(r"\([^()]*\)$|_v\d+$", "", name)
