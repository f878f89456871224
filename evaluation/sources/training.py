"""Training steps: NVIDIA's table of Megatron-Bridge, the logs of MLPerf's submissions, and MosaicML's table of MPT.

Facts of the sources: GPUs of a machine, and what each can send to other machines (an adapter of 400 or 800 Gb/s per
GPU; `slow_adapter`: of 200); beginnings of catalogue ids on which NVIDIA's BERT runs its linear layers in FP8, and
LLMs train in NVFP4 from round v5.1 on; `lora_layouts` of NVIDIA's LoRA runs by the devices that share a sequence:
tensor, pipeline, context, chunks, sequences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.sources.facts import config_of, facts_of, request_of, study
from evaluation.study import Case, Part, Row

MEGATRON, MLPERF, MOSAIC = "megatron_bridge_training", "mlperf_training_steps", "mosaic_mpt_training"
# Mean share of BERT's 512 positions that holds tokens; submissions leave the padding out.
_BERT_TOKENS = 256
_LAYOUT = re.compile(r"tp(\d+)pp(\d+)cp(\d+)")


def _megatron_cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield a case per row."""
    slower, facts = _slower_twins(rows), facts_of(MEGATRON)
    for number, row in enumerate(rows):
        gpu, name = facts["gpus"][row["gpu"]], str(row["model"])
        model = name if name in facts["models"] else name.partition(" ")[0]
        dtype = "mxfp8" if number in slower else facts["dtypes"].get(row["precision"], "fp8")
        layout = f"tp{row['tensor']} pp{row['pipeline']} cp{row['context']} vp{row['virtual'] or 1:g}"
        layout += f" fsdp{row['fsdp'] or 0:g} ep{row['expert'] or 1:g}"
        which = f"{row['release']} {row['devices']} GPUs batch {row['global_batch']} x{row['micro_batch']} {layout}"
        config = config_of(facts["models"][model])
        software = f"megatron-bridge-{row['release']}"
        split = _megatron_split(row, gpu)
        workload = request_of(MEGATRON, row, config=config, dtype=dtype, software=software, parallelism=split)
        yield Case(gpu, model, f"training {dtype}", which, float(row["step_s"]), (Part(1.0, workload),))


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


def _megatron_split(row: Row, gpu: str) -> dict[str, Any]:
    layout, facts = [int(row[name]) for name in ("tensor", "pipeline", "context")], facts_of(MEGATRON)
    chunks = int(row["virtual"] or 1) if layout[1] > 1 else 1
    return _split(row, (*layout, chunks, int(row["micro_batch"]))) | {
        "expert": int(row["expert"] or 1),
        "nodes": max(int(row["devices"]) // facts["per_node"].get(gpu, 8), 1),
        "zero": 3 if row["fsdp"] else 1,
        "network_bytes_per_s": facts["network_bytes_per_s"].get(gpu, 50e9),
    }


def _split(row: Row, layout: Sequence[int]) -> dict[str, Any]:
    """Return the parallelism of a layout: tensor, pipeline, context, chunks per stage, sequences of a microbatch."""
    tensor, pipeline, context, chunks, micro_batch = layout
    data = int(row["devices"]) // (tensor * pipeline * context)
    return {
        "data": data,
        "tensor": tensor,
        "pipeline": pipeline,
        "context": context,
        "virtual_pipeline": chunks,
        "microbatches": max(int(row["global_batch"]) // (data * micro_batch), 1),
        "sequence": tensor > 1,
        "tensor_overlap": tensor > 1,
    }


def _mlperf_cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield a case per row that is not suspect."""
    facts = facts_of(MLPERF)
    for row in rows:
        if row["suspect"]:
            continue
        benchmark, name = str(row["benchmark"]), str(row["accelerator"])
        gpu = next((gpu_id for start, gpu_id in facts["gpus"].items() if name.startswith(start)), name)
        which = f"{row['round']} {row['submitter']} {row['system']} {row['devices']} GPUs batch {row['global_batch']}"
        if benchmark in facts["absent"]:
            workload, reason = None, f"no {facts['absent'][benchmark]} is built in"
        else:
            workload = _mlperf_workload(row, gpu, facts)
            reason = "" if workload else "the parallelism is not given"
        parts = (Part(1.0, workload),) if workload else ()
        yield Case(gpu, benchmark, "training", which, float(row["best_step_s"]), parts, reason)


def _mlperf_workload(row: Row, gpu: str, facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the request of a step; None if the parallelism is not known."""
    benchmark, data = str(row["benchmark"]), {"data": int(row["devices"])}
    split = {"nodes": int(row["nodes"]), "network_bytes_per_s": 25e9 if gpu in facts["slow_adapter"] else 50e9}
    if benchmark == "resnet":
        return request_of(MLPERF, row, benchmark, parallelism=split | data)
    if benchmark == "bert":
        config = {**(config_of("bert-large") or {}), "architectures": ["BertModel"]}
        dtype, steps = "fp8" if gpu.startswith(tuple(facts["fp8_gpus"])) else "fp16", int(row["grad_accum"] or 1)
        fields = {"config": config, "dtype": dtype, "sequence": _BERT_TOKENS, "gradient_accumulation": steps}
        return request_of(MLPERF, row, benchmark, **fields, parallelism=split | data)
    layout = _layout(row)
    if layout is None:
        return None
    fields = {"config": config_of(facts["models"][benchmark]), "sequence": int(row["sequence"])}
    if row["round"] == "v5.1" and gpu.startswith(tuple(facts["fp4_gpus"])):
        fields["dtype"] = "nvfp4"
    return request_of(MLPERF, row, benchmark, **fields, parallelism=split | _split(row, layout) | {"zero": 1})


def _layout(row: Row) -> tuple[int, int, int, int, int] | None:
    """Return devices of tensor, pipeline and context parallelism, chunks per stage, and sequences of a microbatch."""
    benchmark, configs = str(row["benchmark"]), str(row["configs"] or "")
    machines = f"_{row['nodes']}x{int(row['devices']) // int(row['nodes'])}x"
    layouts = [match for part in configs.split(";") if machines in part and (match := _LAYOUT.search(part))]
    if benchmark == "gpt3":  # 4 x 8 in every configuration that is given; 96 layers in chunks of 2
        return 4, 8, 1, 6, 2 if "mbs2" in configs else 1
    if not layouts:
        shared = int(row["devices"]) * int(row["grad_accum"] or 1) // int(row["global_batch"])
        return facts_of(MLPERF)["lora_layouts"].get(str(shared)) if benchmark == "llama2_70b_lora" else None
    tensor, pipeline, context = (int(size) for size in layouts[0].groups())
    return tensor, pipeline, context, 8 if pipeline > 1 else 1, 1


def _mosaic_cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield a case per row."""
    gpus = facts_of(MOSAIC)["gpus"]
    for row in rows:
        devices, model = int(row["# GPUs"]), str(row["Model"])
        zero = 2 if row["Sharding Strategy"] == "SHARD_GRAD_OP" else 3
        split = {"data": devices, "nodes": max(devices // 8, 1), "zero": zero, "network_bytes_per_s": 25e9}
        dtype = "fp8" if row["Precision"] == "amp_fp8" else "bf16"
        workload = request_of(MOSAIC, row, config=config_of(f"mosaicml/mpt-{model}"), dtype=dtype, parallelism=split)
        which = f"{devices} GPUs sequence {row['SeqLen (T)']} batch {row['GlobalBatchSize']} x{row['MicroBatchSize']}"
        which += " recompute" * bool(row["Activation Checkpointing"])
        measured_s = float(row["step_s_from_tokens"])
        yield Case(gpus[row["GPU"]], model, "training", which, measured_s, (Part(1.0, workload),))


STUDIES = (study(MEGATRON, _megatron_cases), study(MLPERF, _mlperf_cases), study(MOSAIC, _mosaic_cases))
