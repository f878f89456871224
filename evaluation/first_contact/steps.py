"""Steps of networks: the scorecard's cases, training as people run it, and reports that are requests already."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evaluation.first_contact.question import Body, Levels, Question, Row, Source, architecture_of, read_rows, release
from evaluation.sources import STUDIES
from evaluation.sources.facts import config_of
from evaluation.study import Case, Study

_REPORTS = "public_reports/reports.json"
_FIGURES = {
    "megatron_bridge_training": "training",
    "mlperf_training_steps": "training",
    "mosaic_mpt_training": "training",
    "llm_inference_bench": "static",
    "torchvision_convnets": "network",
}
_TITAN_CONFIGS = {"llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B", "llama-3.1-70b": "meta-llama/Llama-3.1-70B"}
_CLOUD_CONFIGS = {"llama-3.1-405b": "meta-llama/Llama-3.1-405B", "deepseek-v3": "deepseek-ai/DeepSeek-V3"}
_GIB = 2.0**30


def _studied(study: Study, folder: Path) -> Iterator[Question]:
    """Yield the cases of a study of the scorecard, whose rows lie in a folder."""
    for case in study.cases(read_rows(folder / "whole_models" / f"{study.name}.parquet")):
        yield _of_case(study.name, case)


def _of_case(source: str, case: Case) -> Question:
    workload = case.parts[0].workload if case.parts else {}
    joules = case.unit == "J"
    route = {"gpus": [case.gpu], "rank_by": "energy"} if joules else {"gpu": case.gpu}
    parts = [(part.times, {**route, "coverage": 0.8, "workload": part.workload}) for part in case.parts]
    reading = "energy" if joules else "latency if fits" if case.at_once else "latency"
    figure = "energy" if joules else _FIGURES.get(source) or _figure_of(case)
    return Question(
        case=f"{case.model} {case.mode} {case.row}",
        levels=_levels(figure, case.gpu, case.model, workload),
        measured=case.measured * (1.0 if joules else 1e3),
        parts=parts,
        reading=reading,
        reason=case.reason,
    )


def _figure_of(case: Case) -> str:
    return "step" if case.mode.startswith("time between") else "diffusion"


def _levels(figure: str, gpu: str, model: str, workload: Body) -> Levels:
    split = dict(workload.get("parallelism") or {})
    sizes = {name: int(split.get(name, 1)) for name in ("data", "tensor", "pipeline", "context", "replicas")}
    devices = 1
    for size in sizes.values():
        devices *= size
    stack, version = release(str(workload.get("software", "")))
    config = workload.get("config")
    architecture = _architecture(config, figure)
    kept = {**sizes, "expert": split.get("expert", 1), "zero": split.get("zero", 0)}
    return Levels(
        figure=figure,
        gpu=gpu,
        model=model,
        architecture=architecture,
        dtype=str(workload.get("dtype", "")),
        stack=stack,
        version=version,
        devices=devices,
        nodes=int(split.get("nodes", 1)),
        split=" ".join(f"{name}{size}" for name, size in kept.items() if size > 1),
        load=next(iter(workload.get("load") or {}), ""),
    )


def _architecture(config: Body | None, figure: str) -> str:
    if config is not None and "_class_name" not in config:
        return architecture_of(config)
    return {"network": "convnet", "diffusion": "diffusion"}.get(figure, "")


def _titan(folder: Path) -> Iterator[Question]:
    """Yield torchtitan's steps and their memory: FSDP2, activations recomputed per operator or all."""
    for number, row in enumerate(read_rows(folder / "more/whole_models/torchtitan_training.parquet")):
        sharded = int(row["fsdp"].removeprefix("fsdp"))
        workload = {
            "kind": "model",
            "mode": "training",
            "config": config_of(_TITAN_CONFIGS[row["model"]]),
            "dtype": row["precision"],
            "batch": int(row["global_batch"]),
            "sequence": int(row["sequence"]),
            "software": "torchtitan",
            "compiled": bool(row["compiled"]),
            "recompute": row["recompute"],
            "parallelism": {
                "data": max(sharded, 1),
                "tensor": int(row["tensor"]),
                "context": int(row["context"]),
                "nodes": max(int(row["devices"]) // 8, 1),
                "zero": 3,
                "network_bytes_per_s": 50e9,
            },
        }
        gpu = "h200" if row["gpu"].startswith("H200") else "h100-sxm5-80gb"
        case = f"{number} {row['model']} {row['devices']} x {row['gpu']} {row['precision']} {row['sequence']}"
        cap = {"power_cap_w": 500.0} if "500W" in row["gpu"] else {}
        yield from trained(case, gpu, row["model"], workload, 1e3 * row["step_s"], row["memory_gib"], **cap)


def trained(
    case: str,
    gpu: str,
    model: str,
    workload: Body,
    milliseconds: float,
    memory_gib: float | None = None,
    **asked: float,
) -> Iterator[Question]:
    """Yield the time of a training step, and the memory of a device where it was measured; `asked` beside the GPU."""
    workload = {name: value for name, value in workload.items() if value is not None}
    parts = [(1.0, {"gpu": gpu, "coverage": 0.8, **asked, "workload": workload})]
    yield Question(case, _levels("training", gpu, model, workload), milliseconds, parts)
    if memory_gib is not None:
        yield Question(case, _levels("memory", gpu, model, workload), memory_gib, parts, "memory")


def _cloud(folder: Path) -> Iterator[Question]:
    """Yield NVIDIA's DGX Cloud recipes, asked as Megatron-LM."""
    for number, row in enumerate(read_rows(folder / "more/whole_models/dgxc_training.parquet")):
        gpu = "h100-sxm5-80gb" if row["gpu"] == "h100-sxm" else str(row["gpu"])
        tensor, pipeline, context = (int(row[name]) for name in ("tensor", "pipeline", "context"))
        data = int(row["devices"]) // (tensor * pipeline * context)
        config = config_of(_CLOUD_CONFIGS.get(row["model"], ""))
        workload = {
            "kind": "model",
            "mode": "training",
            "config": config,
            "name": row["model"] if config is None else None,
            "dtype": row["precision"],
            "batch": int(row["global_batch"]),
            "sequence": int(row["sequence"]),
            "attention": "flash",
            "software": "megatron",
            "parallelism": {
                "data": data,
                "tensor": tensor,
                "pipeline": pipeline,
                "context": context,
                "virtual_pipeline": int(row["virtual"] or 1) if pipeline > 1 else 1,
                "expert": int(row["expert"] or 1),
                "microbatches": max(int(row["global_batch"]) // (data * int(row["micro_batch"])), 1),
                "sequence": tensor > 1,
                "tensor_overlap": tensor > 1,
                "zero": 1,
                "nodes": max(int(row["devices"]) // (4 if gpu == "gb200" else 8), 1),
                "network_bytes_per_s": 50e9,
            },
        }
        case = f"{number} {row['model']} {row['devices']} x {row['gpu']} {row['precision']}"
        yield from trained(case, gpu, row["model"], workload, 1e3 * row["step_s"])


# What a report's metric begins with: the figure, and how it is read.
_METRICS: Mapping[str, tuple[str, str]] = {
    "TPOT p50": ("tpot", "tpot median"),
    "TPOT median": ("tpot", "tpot median"),
    "TPOT": ("tpot", "tpot"),
    "ITL": ("tpot", "tpot"),
    "TTFT p50": ("ttft", "ttft median"),
    "TTFT": ("ttft", "ttft"),
    "E2E": ("e2e", "e2e"),
    "output tok/s": ("throughput", "throughput"),
    "step": ("", "latency"),
    "memory": ("memory", "memory"),
    "weights": ("weights", "weights"),
    "KV cache": ("memory", "kv cache"),
    "kernel": ("kernel", "latency"),
    "gemm": ("linear", "latency"),
    "attention": ("attention", "latency"),
    "all_reduce": ("collective", "latency"),
    "prompt of": ("prefill", "latency"),
}


def _reports(folder: Path) -> Iterator[Question]:
    """Yield the figures of public reports, each a request of POST /predict."""
    rows: list[dict[str, Any]] = json.loads((folder / _REPORTS).read_text("utf-8"))
    for number, row in enumerate(rows):
        yield from _reported(number, row)


def _reported(number: int, row: Row) -> Iterator[Question]:
    request, measured = dict(row["request"]), row["measured"]
    if not isinstance(measured, dict):
        return  # a request that was refused
    metric, unit = str(measured["metric"]), measured["unit"]
    known = [entry for start, entry in _METRICS.items() if metric.startswith(start)]
    if not known or "gpu" not in request:
        return
    (figure, reading), workload = known[0], request["workload"]
    figure = figure or ("training" if row["group"] == "training" else "diffusion")
    gpu = request["gpu"] if isinstance(request["gpu"], str) else str(request["gpu"].get("name", "own"))
    name = workload.get("name") or (workload.get("config") or {}).get("model_type") or workload["kind"]
    if workload["kind"] == "operators":
        name = workload["operators"][0].get("op", "")
    value = float(measured["value"]) * (1e9 / _GIB if unit == "GB" else 1.0)
    levels = _levels(figure, gpu, str(name), workload)
    yield Question(f"{number} {row['source']} {metric}", levels, value, [(1.0, {"coverage": 0.8, **request})], reading)


def _studies(prefix: str, place: Callable[[Path], Path], recorded_in: str = "") -> Iterator[Source]:
    for study in STUDIES:
        yield Source(
            prefix + study.name,
            study.title,
            lambda folder, study=study: _studied(study, place(folder)),  # type: ignore[misc]
            study.assumptions,
            recorded_in,
        )


SOURCES = (
    *_studies("", lambda folder: folder, recorded_in="scorecard_301b7cc3"),
    *_studies("more_", lambda folder: folder / "more"),
    Source(
        "torchtitan_training",
        "pytorch/torchtitan benchmarks, BSD-3-Clause",
        _titan,
        ("H100 of 2.4 TB/s is asked as the SXM card at 500 W; at first contact at 700, as pytorch",),
    ),
    Source("dgxc_training", "NVIDIA/dgxc-benchmarking, Apache-2.0", _cloud, ("asked as megatron, zero 1",)),
    Source("public_reports", "figures that people published in issues, documentation and pages", _reports),
)
