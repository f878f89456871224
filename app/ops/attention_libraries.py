"""Libraries whose attention kernels serving stacks run."""

from __future__ import annotations

import numpy as np

from app.ops.stack_kernels import Choice, Rule, libraries
from app.tables.ops import OpTable

# Kinds of linear attention beside attention in a hybrid model, by which SGLang chooses: on the B200 aiconfigurator has
# the layers of Qwen3-Next and Qwen3.5, and of Nemotron 3, by other libraries than the same layers of other models.
HYBRIDS = ("gdn", "mamba2")
# Else the sizes of heads that stacks choose other libraries by, as models with attention sinks have them.
_LAYERS = np.array([0.0, 64.0, 192.0, -1.0, -2.0])
_NARROW, _WIDE, _GDN, _MAMBA2 = 1, 2, 3, 4
# What vLLM 0.24, SGLang 0.5.14 and TensorRT-LLM 1.3 chose in aiconfigurator's tables (`kernel_source`), by the format
# of the cache.
_LIBRARIES = libraries(
    (
        Rule("triton", ("sglang",), ("blackwell",), layers=(_GDN,)),
        Rule("flashinfer", ("sglang",), ("blackwell",), layers=(_MAMBA2,)),
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
    layers=len(_LAYERS),
)


def attention_libraries(table: OpTable) -> Choice:
    """Return what libraries of attention with keys and values per KV head depend on."""
    hybrid = table.column("hybrid")
    layer = np.where(np.isnan(hybrid), table.column("head_dim"), -1.0 - hybrid)
    return Choice(_LIBRARIES, table.column("kv_dtype"), layer, _LAYERS)
