"""Argonne's static batches of LLMs: all requests arrive together, each as many tokens out as in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.scorecard.case import Case, Goal, Part, Row, Source
from evaluation.scorecard.networks import config_of

_GPUS = {
    "Nvidia A100 GPU": "a100-sxm4-40gb",
    "Nvidia GH200 GPU": "gh200-96gb",
    "AMD MI250 GPU": "amd-instinct-mi250",
    "Intel PVC GPU": "intel-max-1550",
    "Intel Max 1550": "intel-max-1550",
}
# Models with fewer positions than the longest run's prompt and answer: their times there are below those of one pass.
_POSITIONS = dict.fromkeys(
    ("huggyllama/llama-7b", "BAAI/Aquila-7B", "facebook/opt-6.7b", "EleutherAI/gpt-j-6b", "bigscience/bloom-7b1"), 2048
)
# Of the same sizes.
_SAME = {"meta-llama/Meta-Llama-3-70B": "meta-llama/Llama-3.1-70B"}
# The versions of summer 2024, when the runs were made.
_SOFTWARE = {"vLLM": "vllm-0.5.0", "TensorRT-LLM": "trtllm-0.10"}


def cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield a case per row."""
    for row in rows:
        name, stack, gpu = str(row["model"]), str(row["framework"]), str(row["gpu"])
        which = f"{row['devices']} GPUs batch {row['batch_size']} length {row['input_output_length']}"
        reason, config = "", config_of(_SAME.get(name, name))
        if gpu not in _GPUS:
            reason = f"{gpu} is not a GPU of the catalogue"
        elif stack not in _SOFTWARE:
            reason = f"the kernels of {stack} are not modelled"
        elif gpu == "Intel PVC GPU" and int(row["devices"]) == 1:
            reason = "the source has the same runs of Intel Max 1550 again, in a ninth to a third of the time"
        elif 2 * int(row["input_output_length"]) > _POSITIONS.get(name, 4096):
            reason = "the model has no positions for the answer, which the source's times show was not generated"
        elif config is None:
            reason = f"{name.partition('/')[2]} has no importer"
        parts = () if reason or config is None else _parts(row, config)
        yield Case(
            _GPUS.get(gpu, gpu),
            name.partition("/")[2],
            stack,
            which,
            float(row["latency_s"]),
            parts,
            reason,
            at_once=True,
        )


def _parts(row: Row, config: Mapping[str, Any]) -> tuple[Part, ...]:
    """Return the prefill of all prompts, and the steps of the other tokens at their mean context."""
    length = int(row["input_output_length"])
    both = {
        "kind": "model",
        "config": config,
        "batch": int(row["batch_size"]),
        "dtype": "fp16",
        "software": _SOFTWARE[row["framework"]],
        "parallelism": {"tensor": int(row["devices"])},
    }
    return (
        Part(1.0, both | {"mode": "prefill", "sequence": length}),
        Part(length - 1.0, both | {"mode": "decode", "sequence": length + length // 2}),
    )


SOURCE = Source(
    name="llm_inference_bench",
    title="Static batches of 2024, argonne-lcf/LLM-Inference-Bench@4211f5d, BSD-3",
    assumptions=(
        "fp16 weights and KV cache; vLLM 0.5 and TensorRT-LLM 0.10, the releases of the summer of 2024",
        "one device of an MI250 is one of its two dies; devices are of one machine",
        "all prompts are prefilled in one step; steps take the time of one at their mean context",
    ),
    goals=(Goal("", 15.0),),
    cases=cases,
)
