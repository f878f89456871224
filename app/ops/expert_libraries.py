"""Libraries whose expert kernels serving stacks run, and what sets them apart."""

from __future__ import annotations

import numpy as np

from app.ops.expert_gates import GATES, LACKING
from app.ops.stack_kernels import LIBRARIES, Choice, Rule, libraries
from app.tables.ops import OpTable

# What vLLM 0.24, SGLang 0.5.14 and TensorRT-LLM 1.3 chose in aiconfigurator's tables (`kernel_source`).
_LIBRARIES = libraries(
    (
        Rule("trtllm-gen", ("trtllm",), ("blackwell",)),
        Rule("triton", ("trtllm",), ("blackwell-workstation",), ("fp8_block",)),
        Rule("cutlass", ("trtllm",)),
        Rule("trtllm-gen", ("sglang",), ("blackwell",), ("int4_wo",)),
        Rule("marlin", formats=("int4_wo",)),
        Rule("trtllm-gen", generations=("blackwell",), formats=("nvfp4",), layers=(GATES.index("gelu"),)),
        Rule("triton", ("sglang",), ("blackwell",), layers=LACKING),
        Rule("cutlass", ("vllm",), ("blackwell",), layers=LACKING),
        Rule("trtllm-gen", generations=("blackwell",)),
        Rule("cutlass", formats=("nvfp4",)),
        Rule("marlin", generations=("blackwell-workstation",), formats=("w4a16_mxfp4",)),
        Rule("marlin", ("vllm",), ("ampere", "ada"), ("w4a16_mxfp4",)),
        Rule("triton", formats=("w4a16_mxfp4",)),
        Rule("cutlass", ("sglang",), formats=("bf16",), layers=(GATES.index("none"),)),
        Rule("triton", ("sglang",)),
        Rule("cutlass", generations=("blackwell-workstation",)),
        Rule("cutlass", generations=("hopper",), formats=("fp8", "fp8_block")),
        Rule("triton"),
    ),
    layers=len(GATES),
)
_CODES = np.arange(float(len(GATES)))
# Whether a library's kernels pass the pairs of all ranks: they leave places for them, zero those, and sum over them.
HANDS_ON_ALL = np.array([name in ("marlin", "", "triton") for name in LIBRARIES])
# Marlin multiplies by `mma.sync`, of which the SMs of Hopper and of Blackwell do no more than an A100's.
MOST_FLOPS_PER_CLOCK = np.array([2048.0 if name == "marlin" else 0.0 for name in LIBRARIES])


def libraries_of_experts(table: OpTable) -> Choice:
    """Return what the library of experts depends on."""
    return Choice(_LIBRARIES, np.full(len(table), np.nan), table.column("gate"), _CODES)
