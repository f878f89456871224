"""Libraries whose attention kernels serving stacks run."""

from __future__ import annotations

import numpy as np

from app.ops.stack_kernels import Rule, chosen, libraries
from app.tables.arrays import Floats
from app.tables.ops import OpTable

# Sizes of heads that stacks choose other libraries by, as models with attention sinks have them; 0 for all others.
_HEADS = (0.0, 64.0, 192.0)
_NARROW, _WIDE = 1, 2
# What vLLM 0.24, SGLang 0.5.14 and TensorRT-LLM 1.3 chose in aiconfigurator's tables (`kernel_source`), by the format
# of the cache.
_LIBRARIES = libraries(
    (
        Rule("triton", ("vllm",), ("ada", "blackwell", "blackwell-workstation"), ("fp8",), (_WIDE,)),
        Rule("triton", ("sglang",), ("ada", "blackwell-workstation"), layers=(_NARROW, _WIDE)),
        Rule("triton", ("sglang",), ("blackwell",), layers=(_WIDE,)),
        Rule("trtllm-gen", generations=("blackwell",)),
        Rule("trtllm", ("trtllm",)),
        Rule("flash-attention-3", generations=("hopper",)),
        Rule("flashinfer", ("sglang",)),
        Rule("flashinfer", formats=("fp8",)),
        Rule("flash-attention-2"),
    ),
    layers=len(_HEADS),
)


def attention_libraries(table: OpTable) -> Floats:
    """Return the libraries of attention with keys and values per KV head, [GENERATIONS, n]."""
    cache, width = table.column("kv_dtype"), table.column("head_dim")
    dtype = np.where(np.isnan(cache), table.dtype, cache).astype(np.intp)
    layer = sum(kind * (width == size) for kind, size in enumerate(_HEADS))
    return chosen(_LIBRARIES, table.column("stack"), dtype, layer)
