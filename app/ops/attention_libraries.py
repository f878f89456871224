"""Libraries whose attention kernels serving stacks run."""

from __future__ import annotations

import numpy as np

from app.ops.stack_kernels import Choice, Rule, libraries
from app.tables.ops import OpTable

# Sizes of heads that stacks choose other libraries by, as models with attention sinks have them.
_HEADS = np.array([0.0, 64.0, 192.0])
_NARROW, _WIDE = 1, 2
# What vLLM 0.24, SGLang 0.5.14 and TensorRT-LLM 1.3 chose in aiconfigurator's tables (`kernel_source`), by the format
# of the cache.
_LIBRARIES = libraries(
    (
        Rule("triton", ("vllm",), ("ada", "blackwell", "blackwell-workstation"), ("fp8",), (_WIDE,)),
        Rule("triton", ("sglang",), ("ada", "blackwell-workstation"), layers=(_NARROW, _WIDE)),
        Rule("triton", ("sglang",), ("blackwell",), layers=(_WIDE,)),
        Rule("trtllm-gen", generations=("blackwell",)),
        Rule("trtllm-fp8", ("trtllm",), ("ada", "blackwell-workstation"), ("fp8",)),
        Rule("trtllm", ("trtllm",)),
        Rule("flash-attention-3", generations=("hopper",)),
        Rule("flashinfer", ("sglang",)),
        Rule("flashinfer", formats=("fp8",)),
        Rule("flash-attention-2"),
    ),
    layers=len(_HEADS),
)


def attention_libraries(table: OpTable) -> Choice:
    """Return what libraries of attention with keys and values per KV head depend on."""
    return Choice(_LIBRARIES, table.column("kv_dtype"), table.column("head_dim"), _HEADS)
