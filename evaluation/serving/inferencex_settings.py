"""Settings of InferenceX's engines that are not their stack's defaults, from its launch scripts (benchmarks/*.sh)."""

from __future__ import annotations

from evaluation.serving_steps import Point

# A short prompt and a short answer, for which the scripts let prompts wait for one another.
_SHORT = (1024, 1024)


def inferencex_settings(point: Point) -> dict[str, float]:
    """Return fields of a workload of kind `serving`; empty where the engine ran with its stack's defaults."""
    settings = {
        ("llama70b", "trtllm"): _llama_trtllm,
        ("gptoss", "trtllm"): _gptoss_trtllm,
        ("dsr1", "trtllm"): _deepseek_trtllm,
        ("dsr1", "sglang"): _deepseek_sglang,
    }.get((point.model, point.stack))
    return {} if settings is None else settings(point)


def _llama_trtllm(point: Point) -> dict[str, float]:
    """70b_*_trt_*.sh: --max_num_tokens 16384, batch_wait_max_tokens_ratio 0.9, batch_wait_timeout_iters 20."""
    waits = (point.input_tokens, point.output_tokens) == _SHORT and point.devices < 8
    wait = {"prefill_wait_steps": 20.0, "prefill_wait_tokens": 0.9 * 16_384}
    return {"max_batched_tokens": 16_384, **(wait if waits else {})}


def _gptoss_trtllm(point: Point) -> dict[str, float]:
    """gptoss_fp4_*_trt.sh: --max_num_tokens 20000."""
    return {"max_batched_tokens": 20_000}


def _deepseek_trtllm(point: Point) -> dict[str, float]:
    """dsr1_*_trt.sh: attention_dp_config timeout_iters 60; FP8 on B200: batch_wait_timeout_iters 40, ratio 0.8."""
    if point.attention_data > 1:
        return {"prefill_wait_steps": 60.0}
    waits = point.precision == "fp8" and point.gpu == "b200_sxm" and point.concurrency >= 64
    if not waits or (point.input_tokens, point.output_tokens) != _SHORT:
        return {}
    return {"prefill_wait_steps": 40.0, "prefill_wait_tokens": 0.8 * 8192}


def _deepseek_sglang(point: Point) -> dict[str, float]:
    """dsr1_*.sh: --chunked-prefill-size; on B200 --scheduler-recv-interval, of whose steps prompts wait half."""
    budget = 16_384 if point.precision == "fp4" else 32_768
    interval = 0.0 if point.gpu != "b200_sxm" else 30.0 if point.concurrency >= 16 else 10.0
    return {"max_batched_tokens": budget, "prefill_wait_steps": 0.5 * interval}
