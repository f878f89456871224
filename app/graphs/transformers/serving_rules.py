"""How serving stacks and Megatron-LM run a transformer layer: what each merges, fuses and sums how, as rules.

Lowering reads the rules of a run's stack; it has no branch on a stack's name. A stack that is not in the table runs as
vLLM. Sources are files of the stacks' repositories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from app.graphs.run import Run
from app.ops.stacks import MEGATRON, STACKS

VLLM, SGLANG, TRTLLM = STACKS
_ALL = (*STACKS, MEGATRON)


class Rule(NamedTuple):
    """One thing that stacks do: its name, a field of StackRules; the stacks that do it; and where that is written."""

    name: str
    stacks: tuple[str, ...]
    source: str


RULES = (
    Rule(
        "merges_qkv",
        _ALL,
        "vllm model_executor/layers/linear.py QKVParallelLinear; sglang srt/layers/linear.py QKVParallelLinear; "
        "tensorrt_llm _torch/modules/attention.py qkv_proj; megatron core/transformer/attention.py linear_qkv",
    ),
    Rule(
        "merges_gate_up",
        _ALL,
        "vllm and sglang MergedColumnParallelLinear; tensorrt_llm _torch/modules/gated_mlp.py gate_up_proj; megatron "
        "core/transformer/mlp.py linear_fc1",
    ),
    Rule(
        "merges_latent_down",
        STACKS,
        "vllm model_executor/models/deepseek_v2.py fused_qkv_a_proj; sglang srt/models/deepseek_v2.py "
        "fused_qkv_a_proj_with_mqa; tensorrt_llm _torch/models/modeling_deepseekv3.py kv_a_proj_with_mqa",
    ),
    Rule(
        "adds_in_norm",
        STACKS,
        "vllm csrc/layernorm_kernels.cu fused_add_rms_norm; sglang sgl-kernel fused_add_rmsnorm; tensorrt_llm "
        "flashinfer_fused_add_rmsnorm",
    ),
    Rule(
        "gates_in_activation",
        _ALL,
        "vllm csrc/activation_kernels.cu silu_and_mul; sglang sgl-kernel silu_and_mul; tensorrt_llm swiglu; megatron "
        "core/fusions/fused_bias_swiglu.py",
    ),
    Rule(
        "rotates_into_cache",
        STACKS,
        "vllm csrc/pos_encoding_kernels.cu and cache_kernels.cu, one after another; sglang "
        "fused_set_kv_buffer; tensorrt_llm applyBiasRopeUpdateKVCache",
    ),
    Rule(
        "routes_in_one",
        STACKS,
        "vllm csrc/moe grouped_topk and topk_softmax; sglang moe_fused_gate; tensorrt_llm noAuxTcOp",
    ),
    Rule(
        "spreads_unevenly",
        STACKS,
        "aiconfigurator's tables have power_law_1.01 and 1.2 for served requests; the latter has the lesser error in "
        "gpucast evaluate serving-steps (docs/explanation/notebook.md)",
    ),
    Rule(
        "sums_itself",
        STACKS,
        "vllm csrc/custom_all_reduce.cuh; sglang sgl-kernel custom_all_reduce; tensorrt_llm "
        "customAllReduceKernels.cu: for small messages, NCCL for large ones",
    ),
    Rule(
        "norms_in_sum",
        (TRTLLM,),
        "tensorrt_llm _torch/distributed/ops.py AllReduceFusionOp.RESIDUAL_RMS_NORM",
    ),
    Rule(
        "exchanges_by_expert",
        (SGLANG,),
        "sglang srt/layers/moe/token_dispatcher/deepep.py, with --moe-a2a-backend deepep, which experts over replicas "
        "of attention need; vllm gathers and scatters by default (--all2all-backend), tensorrt_llm has "
        "kernels of its own",
    ),
    Rule(
        "merges_shared",
        (SGLANG,),
        "sglang srt/models/deepseek_v2.py determine_num_fused_shared_experts: without expert parallelism; "
        "srt/server_args.py disables it with FlashInfer's TensorRT-LLM kernels, which FP4 runs",
    ),
    Rule(
        "tells_hybrids",
        (SGLANG,),
        "sglang srt/server_args.py sets the attention backend by the model; aiconfigurator's kernel_source on the B200 "
        "(app/ops/attention_libraries.py)",
    ),
    Rule(
        "samples",
        STACKS,
        "vllm v1/sample/sampler.py; sglang srt/layers/sampler.py; tensorrt_llm _torch/pyexecutor/sampler.py",
    ),
    Rule(
        "borrows_products",
        (TRTLLM,),
        "aiconfigurator's fp8 products of TensorRT-LLM have a floor that other stacks lack and CUDA graphs save; its "
        "nvfp4 products of few rows take 1.5 times vLLM's on B200, as if its autotuner had not run: timed as vLLM's "
        "(docs/explanation/notebook.md)",
    ),
)


@dataclass(frozen=True, slots=True)
class StackRules:
    """What a run's stack does, a field per rule (RULES); nothing where no serving stack runs."""

    merges_qkv: bool = False
    merges_gate_up: bool = False
    merges_latent_down: bool = False
    adds_in_norm: bool = False
    gates_in_activation: bool = False
    rotates_into_cache: bool = False
    routes_in_one: bool = False
    spreads_unevenly: bool = False
    sums_itself: bool = False
    norms_in_sum: bool = False
    exchanges_by_expert: bool = False
    merges_shared: bool = False
    tells_hybrids: bool = False
    samples: bool = False
    borrows_products: bool = False


def rules_of(run: Run) -> StackRules:
    """Return the rules of a run's stack: of serving in prefill and decode, of Megatron in training; else none."""
    modes = ("training",) if run.stack == MEGATRON else ("prefill", "decode")
    if run.stack is None or run.mode not in modes or run.attention == "eager":
        return StackRules()
    return StackRules(**{rule.name: run.stack in rule.stacks for rule in RULES})
