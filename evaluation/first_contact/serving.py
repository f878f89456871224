"""Served models: time to first token and time per output token, milliseconds, as a user asks POST /predict."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.first_contact.question import (
    ASKED,
    SCRIPTED,
    Body,
    Levels,
    Question,
    Row,
    Source,
    architecture_of,
    read_rows,
    release,
)
from evaluation.serving.loads import SERVED, served_config
from evaluation.serving.points import Point, point_of
from evaluation.sources.facts import config_of, facts_of

_CONFIGS = "model_configs"
# MLPerf's mean tokens of a prompt, by data set: OpenOrca, CNN/DailyMail, LongBench and others (mlcommons/inference,
# language/*/README.md); of the others the source says nothing.
_PROMPTS = {"llama2-70b": 294, "llama3.1-8b": 778, "llama3_1-8b": 778, "llama3.1-405b": 9428}
# Lengths of data sets, from a tenth of the longest to it, of which the mean is known.
_SPREAD = 0.9
_MEAN_OF_LONGEST = 1.0 - 0.5 * _SPREAD
_MLPERF_CONFIGS = {
    "llama2-70b": "meta-llama/Llama-2-70b-hf",
    "llama3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama3_1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama3.1-405b": "meta-llama/Llama-3.1-405B",
}
_PARAMETERS = {"llama2-70b": 69e9, "llama3.1-8b": 8.03e9, "llama3_1-8b": 8.03e9, "llama3.1-405b": 406e9}
# Accelerators by what their names begin with: id in the catalogue, bytes of memory.
_ACCELERATORS = {
    "NVIDIA RTX PRO 6000 Blackwell Server": ("rtx-pro-6000-server", 96e9),
    "NVIDIA GB200": ("gb200", 186e9),
    "NVIDIA B200": ("b200", 180e9),
    "NVIDIA H200-NVL": ("h200-nvl", 141e9),
    "NVIDIA H200-SXM": ("h200", 141e9),
    "NVIDIA L4-": ("nvidia-l4", 24e9),
    "NVIDIA L40S": ("l40s", 48e9),
    "NVIDIA GB10": ("gb10", 128e9),
    "AMD Instinct MI350X": ("mi350x", 288e9),
    "AMD Instinct MI300X": ("mi300x", 192e9),
    "AMD Instinct MI325X": ("mi325x", 256e9),
}
_FORMATS = {"fp4": ("nvfp4", 0.56), "fp8": ("fp8", 1.0), "INT8": ("int8", 1.0), "mxfp4": ("mxfp4", 0.53)}


def published_config(folder: Path, name: str) -> dict[str, Any] | None:
    """Return a model's config.json by its name on Hugging Face, of the data folder or of this repository."""
    organisation, _, model = name.partition("/")
    for known in (f"{organisation}--{model}", f"{organisation}--{re.sub('(?i)-(it|instruct)$', '', model)}"):
        path = folder / _CONFIGS / f"{known}_config.json"
        if path.is_file():
            config: dict[str, Any] = json.loads(path.read_text("utf-8"))
            return config
    built_in = config_of(name)
    return None if built_in is None else dict(built_in)


def served(
    case: str,
    gpu: str,
    model: tuple[str, Body | None],
    fields: Body,
    measured: Mapping[str, float | None],
    asked: str = ASKED,
) -> Iterator[Question]:
    """Yield a question for each measured figure: `measured` has milliseconds by what they are read as."""
    name, config = model
    workload = {"kind": "serving", **({"name": name} if config is None else {"config": config}), **fields}
    workload = {key: value for key, value in workload.items() if value is not None}
    split = dict(fields.get("parallelism") or {})
    stack, version = release(str(fields.get("software", "vllm")))
    devices = int(np.prod([split.get(part, 1) for part in ("tensor", "pipeline", "replicas")]))
    parts = [(1.0, {"gpu": gpu, "coverage": 0.8, "workload": workload})]
    for reading, milliseconds in measured.items():
        if milliseconds is None or not milliseconds > 0.0:
            continue
        levels = Levels(
            figure=reading.partition(" ")[0],
            gpu=gpu,
            model=name,
            architecture=architecture_of(config or {}),
            dtype=str(fields.get("dtype") or _published_format(config or {})),
            stack=stack,
            version=version,
            devices=devices,
            nodes=int(split.get("nodes", 1)),
            split=" ".join(f"{part}{split[part]}" for part in ("expert", "attention_data") if split.get(part, 1) > 1),
            load=next(iter(fields["load"])),
        )
        yield Question(case, levels, milliseconds, parts, reading, asked)


def _published_format(config: Body) -> str:
    quantization = config.get("quantization_config") or {}
    if not quantization:
        return "bf16"
    block = "_block" if quantization.get("weight_block_size") else ""
    return f"{quantization.get('quant_method', '')}{block}"


def _points(folder: Path, file: Path) -> Iterator[Question]:
    """Yield closed loops of serving_points; those of InferenceX with what its scripts set as well."""
    for row in read_rows(folder / file):
        config = published_config(folder, row["model_path"]) or {}
        point = point_of(row, config)
        yield from _point(row, point, point.user_dtype, {}, ASKED)
        if point.inferencex:
            yield from _point(row, point, point.dtype, {"kv_dtype": point.kv_dtype, **point.settings}, SCRIPTED)


def _point(row: Row, point: Point, dtype: str | None, settings: Body, asked: str) -> Iterator[Question]:
    fields = {
        "dtype": dtype,
        "software": f"{point.stack}-{point.version}" if point.version else point.stack,
        "parallelism": {
            "tensor": point.devices,
            "attention_data": point.attention_data,
            "expert": point.expert_parallel,
        },
        "input_tokens": point.input_tokens,
        "output_tokens": point.output_tokens,
        "length_spread": 0.2 if point.inferencex else 0.0,
        "load": {"concurrency": point.concurrency},
        **settings,
    }
    times = {"tpot": point.tpot_ms, "ttft": point.ttft_ms}
    yield from served(row["id"], point.gpu, (row["model_path"], point.config), fields, times, asked)


def _inferencex_amd(folder: Path) -> Iterator[Question]:
    """Yield DeepSeek-R1 on AMD Instinct: means where they are given, else medians."""
    name = "deepseek-ai/DeepSeek-R1"
    config = published_config(folder, name)
    for number, row in enumerate(read_rows(folder / "inferencex_2026_06/amd.parquet")):
        devices, replicated = int(row["devices"]), bool(row["decode_dp_attention"])
        version = re.search(r"(?:sglang:v|-atom)([0-9.]+)", row["image"] or "")
        fields = {
            "dtype": "nvfp4" if row["precision"] == "fp4" else None,
            "software": row["framework"] + (f"-{version[1]}" if version else ""),
            "parallelism": {
                "tensor": devices,
                "expert": int(row["decode_ep"]),
                "attention_data": devices if replicated else 1,
            },
            "input_tokens": row["input_tokens"],
            "output_tokens": row["output_tokens"],
            "load": {"concurrency": row["concurrency"]},
            "speculative": {"tokens": 3, "acceptance": 0.8} if row["speculative"] == "mtp" else None,
        }
        means = row["mean_tpot_ms"] is not None
        times = {
            figure + ("" if means else " median"): row[f"{'mean' if means else 'median'}_{figure}_ms"]
            for figure in ("tpot", "ttft")
        }
        load = f"{row['input_tokens']}x{row['output_tokens']} c{row['concurrency']}"
        case = f"{number} {row['date']} {row['framework']} {row['precision']} {row['speculative']} {load}"
        yield from served(case, row["gpu"], (name, config), fields, times)


def _mlperf(folder: Path) -> Iterator[Question]:
    """Yield Server and Interactive runs of LLMs: open arrivals at the target rate, at the smallest split that fits."""
    for row in read_rows(folder / "mlperf_inference_v6_0/runs.parquet"):
        model = re.sub(r"-99(\.9)?$", "", row["model"])
        if row["inferred"] or row["tpot_mean_ms"] is None or model not in _PROMPTS or row["weights"] not in _FORMATS:
            continue
        known = [entry for start, entry in _ACCELERATORS.items() if row["accelerator"].startswith(start)]
        if not known or not row["accelerators"]:
            continue
        (gpu, memory), (dtype, each) = known[0], _FORMATS[row["weights"]]
        tensor = 1
        while _PARAMETERS[model] * each > 0.8 * memory * tensor:
            tensor *= 2
        total = int(row["accelerators"])
        fields = {
            "dtype": dtype,
            "software": "vllm" if gpu.startswith("mi") or "vLLM" in row["framework"][:6] else "trtllm",
            "parallelism": {"tensor": tensor, "replicas": max(total // tensor, 1)},
            "input_tokens": round(_PROMPTS[model] / _MEAN_OF_LONGEST),
            "output_tokens": max(round(row["tokens_per_s"] / row["completed_samples_per_s"] / _MEAN_OF_LONGEST), 2),
            "length_spread": _SPREAD,
            "load": {"rate_per_s": row["target_qps"]},
        }
        name = _MLPERF_CONFIGS[model]
        times = {"tpot": row["tpot_mean_ms"], "ttft": row["ttft_mean_ms"]}
        yield from served(row["path"], gpu, (name, published_config(folder, name)), fields, times)


def _spark_software(row: Row) -> str:
    return "vllm-" + re.match(r"[0-9.]*[0-9]", row["vllm"])[0]  # type: ignore[index]


def _spark_dtype(row: Row) -> str | None:
    return {"bf16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4"}.get(row["profile"].partition("-")[0])


def _spark_bursts(folder: Path) -> Iterator[Question]:
    """Yield bursts of requests: prompts and answers of one run of a test follow one another in the file."""
    rows = read_rows(folder / "dgx_spark_gb10/closed_loop.parquet")
    waiting: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("run", "test", "concurrency"))
        if row["depth"]:
            continue
        if row["phase"] == "pp":
            waiting.setdefault(key, []).append(row)
        elif waiting.get(key):
            prompt = waiting[key].pop(0)
            case = f"{row['run']} {row['test']} {prompt['tokens']}+{row['tokens']} c{row['concurrency']}"
            fields = {
                "dtype": _spark_dtype(row),
                "software": _spark_software(row),
                "input_tokens": prompt["tokens"],
                "output_tokens": row["tokens"],
                "length_spread": 0.0,
                "load": {"burst": row["concurrency"]},
                "speculative": None,
            }
            times = {"tpot": 1e3 / row["tokens_per_s_request"], "ttft": prompt["e2e_ttft_ms"]}
            if "spec" not in row["profile"]:
                yield from served(case, "gb10", (row["model"], published_config(folder, row["model"])), fields, times)


# Fields of a load, and the columns that have what the benchmark's client was told.
_CLIENT = {
    "rate_per_s": "request_rate",
    "burstiness": "burstiness",
    "max_concurrency": "max_concurrency",
    "requests": "num_prompts",
}


def _spark_arrivals(folder: Path) -> Iterator[Question]:
    """Yield open arrivals with mean lengths, as the client sent them."""
    for row in read_rows(folder / "dgx_spark_gb10/open_arrivals.parquet"):
        if not row["completed"] or "spec" in row["profile"]:
            continue
        fields = {
            "dtype": _spark_dtype(row),
            "software": _spark_software(row),
            "input_tokens": max(round(row["total_input_tokens"] / row["completed"]), 1),
            "output_tokens": max(round(row["total_output_tokens"] / row["completed"]), 2),
            "length_spread": 0.0,
            "load": {name: row[column] for name, column in _CLIENT.items()},
        }
        times = {"tpot": row["mean_tpot_ms"], "ttft": row["mean_ttft_ms"]}
        case = f"{row['run']} {row['test']} {row['date']}"
        yield from served(case, "gb10", (row["model"], published_config(folder, row["model"])), fields, times)


def _served_config(model: str) -> dict[str, Any] | None:
    return served_config(model) if model in facts_of(SERVED)["models"] else None


def _blis(folder: Path) -> Iterator[Question]:
    """Yield stages of vLLM at one rate each; what its few prompts leave in the cache is no thing that a user says."""
    for row in read_rows(folder / "whole_models/blis_stages_h100.parquet"):
        output, ttft = row["output_tokens_mean"], row["ttft_mean_ms"]
        fields = {
            "dtype": "bf16",
            "software": "vllm",
            "parallelism": {"tensor": row["tp"]},
            "input_tokens": round(row["prompt_tokens_mean"]),
            "output_tokens": round(output),
            "length_spread": 0.0,
            "load": {"rate_per_s": row["rate_rps"]},
        }
        times = {"tpot": (row["e2e_mean_ms"] - ttft) / (output - 1.0), "ttft": ttft}
        case = f"{row['model']} tp{row['tp']} {row['rate_rps']}/s {row['max_num_seqs']}"
        yield from served(case, "h100-sxm5-80gb", (row["model"], _served_config(row["model"])), fields, times)


def _tgi(folder: Path) -> Iterator[Question]:
    """Yield users of Hugging Face's stack of 2023."""
    gpus = {"h100": "h100-pcie-80gb", "t4": "tesla-t4", **facts_of(SERVED)["gpus"]}
    for row in read_rows(folder / "whole_models/llm_pilot_tgi.parquet"):
        fields = {
            "dtype": "fp16",
            "software": "tgi-1.0",
            "parallelism": {"tensor": row["devices"]},
            "input_tokens": max(round(row["mean_input_tokens"]), 1),
            "output_tokens": max(round(row["mean_output_tokens"]), 2),
            "length_spread": 0.0,
            "load": {"concurrency": row["users"]},
        }
        times = {"tpot": row["itl_ms_mean"], "ttft median": row["ttft_ms_p50"]}
        case = f"{row['model']} {row['gpu']} x{row['devices']} {row['users']} users"
        yield from served(case, gpus[row["gpu"]], (row["model"], _served_config(row["model"])), fields, times)


# The evaluation of served loads that first registered these sources.
_OLD = "served_loads_867d88b9"
_INFERENCEX = "InferenceX and others in closed loops, Apache-2.0 (serving_points)"
_AS_TGI = "asked as TGI 1.0; at first contact as vLLM, the nearest that the service knew"
_SPARK = "djangodevreng, dgx-spark-benchmarks@5636536, CC-BY-4.0"
SOURCES = (
    Source(
        "serving_points",
        _INFERENCEX,
        lambda folder: _points(folder, Path("serving_points/points.parquet")),
        recorded_in=_OLD,
    ),
    Source(
        "more_serving_points", _INFERENCEX, lambda folder: _points(folder, Path("more/serving_points/points.parquet"))
    ),
    Source(
        "inferencex_2026_06",
        "SemiAnalysisAI/InferenceX-app, data under Apache-2.0",
        _inferencex_amd,
        (
            "MTP drafts 3 tokens, of which each is accepted with 0.8 after the one before",
            "MXFP4 is asked as nvfp4: no version so far had another format of four bits on both sides",
        ),
    ),
    Source(
        "mlperf_inference_v6_0",
        "mlcommons inference_results_v6.0, Apache-2.0",
        _mlperf,
        (
            "replicas of the smallest split whose weights take at most 80 % of the memory",
            "lengths spread by 0.9; models whose mean prompt is not known are left out",
        ),
    ),
    Source("dgx_spark_bursts", _SPARK, _spark_bursts, ("prompts and answers of a test pair in the file's order",)),
    Source("dgx_spark_arrivals", _SPARK, _spark_arrivals, ("a cap on concurrency is the engine's most sequences",)),
    Source("blis_stages_h100", "BLIS, no licence: evaluation only", _blis, recorded_in=_OLD),
    Source(
        "llm_pilot_tgi",
        "LLM-Pilot (IBM)",
        _tgi,
        (_AS_TGI, "A100 and H100 are the PCIe cards"),
        recorded_in=_OLD,
    ),
    Source("more_llm_pilot_tgi", "LLM-Pilot (IBM)", lambda folder: _tgi(folder / "more"), (_AS_TGI,)),
)
