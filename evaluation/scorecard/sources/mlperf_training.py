"""Steps of MLPerf Training, from the logs of its submissions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.scorecard.case import Case, Goal, Part, Row, Source
from evaluation.scorecard.networks import config_of

# Catalogue ids by what begins the accelerator's name in the submissions.
_GPUS = (
    ("NVIDIA H100-SXM", "h100-sxm5-80gb"),
    ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
    ("NVIDIA H100-PCIe", "h100-pcie-80gb"),
    ("H100 NVL", "h100-nvl-94gb"),
    ("NVIDIA H200-SXM", "h200-sxm-141gb"),
    ("NVIDIA H200-NVL", "h200-nvl-141gb"),
    ("NVIDIA Blackwell GPU (B200", "b200"),
    ("NVIDIA Blackwell GPU (GB200", "gb200"),
    ("NVIDIA L40S", "l40s"),
    ("NVIDIA L40", "l40"),
    ("NVIDIA L4", "nvidia-l4"),
    ("NVIDIA A30", "a30"),
    ("NVIDIA A100-PCIe", "a100-pcie-80gb"),
    ("NVIDIA A100 - PCIe", "a100-pcie-80gb"),
    ("NVIDIA A100-SXM", "a100-sxm4-80gb"),
    ("AMD Instinct MI300X", "amd-instinct-mi300x"),
    ("AMD Instinct MI325X", "amd-instinct-mi325x"),
)
_MODELS = {
    "bert": "bert-large",
    "gpt3": "openai/gpt3-175b",
    "llama31_405b": "meta-llama/Llama-3.1-405B",
    "llama2_70b_lora": "meta-llama/Llama-2-70b-hf",
}
_ABSENT = {
    "dlrm_dcnv2": "recommendation with embedding tables",
    "gnn": "graph neural network",
    "rgat": "graph neural network",
    "maskrcnn": "detection network",
    "ssd": "detection network (RetinaNet)",
    "retinanet": "detection network (RetinaNet)",
    "rnnt": "speech network",
    "stable_diffusion": "diffusion network",
    "unet3d": "network of three-dimensional convolutions",
}
# Catalogue ids of GPUs on which NVIDIA's BERT runs its linear layers in FP8.
_FP8_GPUS = ("h100", "h200", "b200", "gb200")
# Mean share of BERT's 512 positions that holds tokens; submissions leave the padding out.
_BERT_TOKENS = 256
# Layouts of NVIDIA's LoRA runs by the devices that share a sequence: tensor, pipeline, context, chunks, sequences.
_LORA_LAYOUTS = {1: (1, 1, 1, 1, 1), 2: (1, 1, 2, 1, 1), 4: (4, 1, 1, 1, 1), 8: (4, 1, 2, 1, 1)}
_LAYOUT = re.compile(r"tp(\d+)pp(\d+)cp(\d+)")


def cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield a case per row that is not suspect."""
    for row in rows:
        if row["suspect"]:
            continue
        benchmark, devices = str(row["benchmark"]), int(row["devices"])
        gpu = next((id for start, id in _GPUS if row["accelerator"].startswith(start)), str(row["accelerator"]))
        which = f"{row['round']} {row['submitter']} {row['system']} {devices} GPUs batch {row['global_batch']}"
        parts: tuple[Part, ...] = ()
        reason = f"no {_ABSENT[benchmark]} is built in" if benchmark in _ABSENT else ""
        if not reason:
            workload = _workload(row, gpu)
            parts, reason = ((Part(1.0, workload),), "") if workload else ((), "the parallelism is not given")
        yield Case(gpu, benchmark, "training", which, float(row["best_step_s"]), parts, reason)


def _workload(row: Row, gpu: str) -> Mapping[str, Any] | None:
    benchmark, devices, nodes = str(row["benchmark"]), int(row["devices"]), int(row["nodes"])
    both: dict[str, Any] = {"kind": "model", "mode": "training", "batch": int(row["global_batch"])}
    split: dict[str, Any] = {"nodes": nodes, "network_bytes_per_s": 50e9 if gpu not in ("a30", "l4") else 25e9}
    accumulated = int(row["grad_accum"] or 1)
    if benchmark == "resnet":
        split["data"] = devices
        network = {"name": "resnet50", "dtype": "fp16", "memory_format": "channels_last", "fused": True}
        return both | network | {"optimizer": "sgd", "parallelism": split}
    if benchmark == "bert":
        split["data"] = devices
        return both | {
            "config": dict(config_of("bert-large") or {}) | {"architectures": ["BertModel"]},
            "sequence": _BERT_TOKENS,
            "dtype": "fp8" if gpu.startswith(_FP8_GPUS) else "fp16",
            "attention": "flash",
            "fused": True,
            "software": "megatron",
            "optimizer": "adam",
            "gradient_accumulation": accumulated,
            "parallelism": split,
        }
    layout = _layout(row)
    if layout is None:
        return None
    tensor, pipeline, context, chunks, micro_batch = layout
    data = devices // (tensor * pipeline * context)
    micro = max(int(row["global_batch"]) // (data * micro_batch), 1)
    split |= {
        "data": data,
        "tensor": tensor,
        "pipeline": pipeline,
        "context": context,
        "virtual_pipeline": chunks,
        "microbatches": micro,
        "sequence": tensor > 1,
        "tensor_overlap": tensor > 1,
        "zero": 1,
    }
    lora = {"trainable": {"lora": {"rank": 16}}} if benchmark == "llama2_70b_lora" else {}
    return (
        both
        | lora
        | {
            "config": config_of(_MODELS[benchmark]),
            "sequence": int(row["sequence"]),
            "dtype": "fp8",
            "attention": "flash",
            "optimizer": "adam",
            "software": "megatron",
            "parallelism": split,
        }
    )


def _layout(row: Row) -> tuple[int, int, int, int, int] | None:
    """Return devices of tensor, pipeline and context parallelism, chunks per stage, and sequences of a microbatch."""
    benchmark, configs = str(row["benchmark"]), str(row["configs"] or "")
    ours = f"{row['nodes']}x{int(row['devices']) // int(row['nodes'])}x"
    found = [match for part in configs.split(";") if f"_{ours}" in part and (match := _LAYOUT.search(part))]
    if benchmark == "gpt3":  # 4 x 8 in every configuration that is given; 96 layers in chunks of 2
        return 4, 8, 1, 6, 2 if "mbs2" in configs else 1
    if not found:
        shared = int(row["devices"]) * int(row["grad_accum"] or 1) // int(row["global_batch"])
        return _LORA_LAYOUTS.get(shared) if benchmark == "llama2_70b_lora" else None
    tensor, pipeline, context = (int(size) for size in found[0].groups())
    return tensor, pipeline, context, 8 if pipeline > 1 else 1, 1


SOURCE = Source(
    name="mlperf_training_steps",
    title="Steps of submissions, mlcommons training_results v3.1 to v5.0, Apache-2.0",
    assumptions=(
        "precision: fp16 (resnet; bert before Hopper) and fp8 (gpt3, llama, bert), as in NVIDIA's submissions",
        "one adapter of 400 Gb/s per GPU",
        "bert: 256 tokens of 512 hold text, the rest is not computed; fused as Megatron-LM and torch.compile do; the"
        " head, of the masked tokens alone, is left out",
        "resnet: channels last, fused element-wise operators",
        "parallelism: as the name of the configuration says; gpt3 always 4 x 8 with 6 chunks per stage; Llama-405B with"
        " 8 chunks per stage",
        "LoRA of rank 16 with frozen weights; without a configuration NVIDIA's for as many devices per sequence",
    ),
    goals=(Goal("", 12.0),),
    cases=cases,
)
