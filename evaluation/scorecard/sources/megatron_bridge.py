"""NVIDIA's table of training steps of Megatron-Bridge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.scorecard.case import Case, Goal, Part, Row, Source
from evaluation.scorecard.networks import config_of

_MODELS = {
    "LLAMA3.1_405B": "meta-llama/Llama-3.1-405B",
    "LLAMA3_70B": "meta-llama/Llama-3.1-70B",
    "LLAMA3_8B": "meta-llama/Meta-Llama-3-8B",
    "Qwen3_30B_a3B": "Qwen/Qwen3-30B-A3B",
    "Qwen3_235B_a22B": "Qwen/Qwen3-235B-A22B",
    "DeepSeekV3": "deepseek-ai/DeepSeek-V3",
}
_GPUS = {
    "DGX-H100": "h100-sxm5-80gb",
    "DGX-B200": "b200",
    "DGX-B300": "b300",
    "DGX-GB200": "gb200",
    "DGX-GB300": "gb300",
}
# GPUs of a machine, and what each can send to other machines (an adapter of 400 or 800 Gb/s per GPU).
_PER_NODE = {"gb200": 4, "gb300": 4}
_NETWORK_BYTES_PER_S = {"b300": 100e9, "gb300": 100e9}
_DTYPES = {"BF16": "bf16", "NVFP4": "nvfp4", "MXFP8": "mxfp8", "FP8-MX": "mxfp8", None: "fp8"}


def cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield a case per row."""
    slower = _slower_twins(rows)
    for number, row in enumerate(rows):
        gpu, model = _GPUS[row["gpu"]], str(row["model"])
        dtype = "mxfp8" if number in slower else _DTYPES.get(row["precision"], "fp8")
        split = f"tp{row['tensor']} pp{row['pipeline']} cp{row['context']} vp{row['virtual'] or 1:g}"
        split += f" fsdp{row['fsdp'] or 0:g} ep{row['expert'] or 1:g}"
        which = f"{row['release']} {row['devices']} GPUs batch {row['global_batch']} x{row['micro_batch']} {split}"
        parts = (Part(1.0, _workload(row, gpu, dtype)),)
        yield Case(gpu, model.partition(" ")[0], f"training {dtype}", which, float(row["step_s"]), parts)


def _slower_twins(rows: Sequence[Row]) -> set[int]:
    """Return the rows without a precision that repeat another, and take longer."""
    seen: dict[tuple[Any, ...], int] = {}
    slower = set()
    for number, row in enumerate(rows):
        if row["precision"] is None:
            key = tuple(row[name] for name in ("release", "gpu", "model", "devices", "global_batch"))
            twin = seen.setdefault(key, number)
            if twin != number:
                slower.add(max(twin, number, key=lambda k: float(rows[k]["step_s"])))
    return slower


def _workload(row: Row, gpu: str, dtype: str) -> Mapping[str, Any]:
    devices, tensor, pipeline, context = (int(row[name]) for name in ("devices", "tensor", "pipeline", "context"))
    data = devices // (tensor * pipeline * context)
    micro = int(row["global_batch"]) // (data * int(row["micro_batch"]))
    sharded = bool(row["fsdp"])
    parallelism = {
        "data": data,
        "tensor": tensor,
        "pipeline": pipeline,
        "context": context,
        "virtual_pipeline": int(row["virtual"] or 1) if pipeline > 1 else 1,
        "expert": int(row["expert"] or 1),
        "microbatches": micro,
        "nodes": max(devices // _PER_NODE.get(gpu, 8), 1),
        "sequence": tensor > 1,
        "tensor_overlap": tensor > 1,
        "zero": 3 if sharded else 1,
        "network_bytes_per_s": _NETWORK_BYTES_PER_S.get(gpu, 50e9),
    }
    return {
        "kind": "model",
        "config": config_of(_MODELS[str(row["model"]).split(" ")[0]]),
        "mode": "training",
        "batch": int(row["global_batch"]),
        "sequence": int(row["sequence"]),
        "dtype": dtype,
        "attention": "flash",
        "optimizer": "adam",
        "software": "megatron",
        "parallelism": parallelism,
    }


SOURCE = Source(
    name="megatron_bridge_training",
    title="Training steps of LLMs, NVIDIA-NeMo/Megatron-Bridge@067f987, Apache-2.0",
    assumptions=(
        "rows without a precision (25.09) are FP8, and where there are two the slower one is MXFP8, as in 25.11",
        "FP8-CS is fp8 with a scale per tensor, FP8-MX and MXFP8 are mxfp8",
        "the distributed optimiser (zero 1) unless FSDP is given (zero 3), no recomputation",
        "sequence parallelism beside tensor parallelism, whose collectives run beside products; fused attention",
        "8 GPUs per machine, 4 of GB200 and GB300; an adapter of 400 Gb/s per GPU, 800 Gb/s of B300 and GB300",
        "experts' load is balanced; tokens that a router drops are not dropped; DeepSeek-V3 without its second head",
    ),
    goals=(Goal("", 8.0),),
    cases=cases,
)
