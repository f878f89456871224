"""Served loads of `whole_models`: open arrivals (blis), a trace of single requests (LLMServingSim), TGI of 2023."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from app.graphs.builtin import find_config
from app.wire.serving_form import RequestTrace, ServingLoad, ServingParallelism, ServingWorkload
from evaluation.serving.cases import Case, Measured

ARRIVALS, REQUESTS, TGI = "blis", "requests", "tgi"
_FOLDER = "whole_models"
# Tokens of a block of vLLM's cache; a cached prompt's last block is computed again.
_BLOCK = 16
# Longer waits for the first token than this mean that arrivals outran the engine.
_OVERLOADED_MS = 10_000.0
_LLAMA_2: dict[str, Any] = {"num_key_value_heads": 8, "hidden_size": 8192, "num_attention_heads": 64}
# Sizes as in the config.json of each on Hugging Face, over those of Llama 2 7B.
_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "meta-llama/Llama-2-7b-hf": ("llama-2-7b", {}),
    "meta-llama/Llama-2-70b-hf": ("llama-2-7b", _LLAMA_2 | {"num_hidden_layers": 80, "intermediate_size": 28672}),
    "codellama/CodeLlama-34b-Instruct-hf": (
        "llama-2-7b",
        _LLAMA_2 | {"num_hidden_layers": 48, "intermediate_size": 22016},
    ),
    "mistralai/Mixtral-8x7B-v0.1": ("mixtral-8x7b", {}),
    "meta-llama/Llama-3.1-8B": ("llama-3-8b", {}),
    "llama-7b": ("llama-2-7b", {}),
    "llama-13b": (
        "llama-2-7b",
        {
            "hidden_size": 5120,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "num_key_value_heads": 40,
            "intermediate_size": 13824,
        },
    ),
}
_TGI_GPUS = {"a10": "nvidia-a10", "a100": "a100-pcie-40gb", "v100": "v100-pcie-32gb"}


def read_others(folder: Path) -> list[Case]:
    """Return the loads of all files that the folder has."""
    readers = {"blis_stages_h100": _arrivals, "llmservingsim_vllm_requests": _requests, "llm_pilot_tgi": _tgi}
    cases: list[Case] = []
    for name, read in readers.items():
        path = folder / _FOLDER / f"{name}.parquet"
        if path.is_file():
            cases += read(pq.read_table(path).to_pylist())
    return cases


def _config(model: str) -> dict[str, Any]:
    name, changes = _CONFIGS[model]
    return {**(find_config(name) or {}), **changes}


def _arrivals(rows: list[dict[str, Any]]) -> Iterator[Case]:
    """Yield stages at one rate each. Their few prompts come again and again, so the cache holds all but a block."""
    for row in rows:
        prompt, output = row["prompt_tokens_mean"], row["output_tokens_mean"]
        workload = ServingWorkload(
            kind="serving",
            config=_config(row["model"]),
            dtype="bf16",
            software="vllm",
            parallelism=ServingParallelism(tensor=row["tp"]),
            input_tokens=round(prompt),
            output_tokens=round(output),
            length_spread=0.0,
            load=ServingLoad(rate_per_s=row["rate_rps"]),
            prefix_hit=1.0 - _BLOCK / prompt,
            max_batched_tokens=row["max_num_batched_tokens"],
            max_sequences=row["max_num_seqs"],
        )
        ttft, e2e = row["ttft_mean_ms"], row["e2e_mean_ms"]
        measured = Measured(ttft, (e2e - ttft) / (output - 1.0), e2e, overloaded=ttft > _OVERLOADED_MS)
        deployment = f"{row['model']}|{row['tp']}"
        yield Case(ARRIVALS, row["model"], "h100_sxm", "bf16", "vllm", deployment, workload, measured)


def _requests(rows: list[dict[str, Any]]) -> Iterator[Case]:
    """Yield the trace; the means are over its requests."""
    ttft, tpot, e2e = (float(np.mean([row[name] for row in rows])) for name in ("ttft_ms", "tpot_ms", "latency_ms"))
    first = rows[0]
    trace = RequestTrace(
        arrival_s=[row["arrival_s"] for row in rows],
        input_tokens=[row["input_toks"] for row in rows],
        output_tokens=[row["output_toks"] for row in rows],
    )
    workload = ServingWorkload(
        kind="serving",
        config=_config(first["model"]),
        dtype="bf16",
        software=f"vllm-{first['vllm']}",
        load=ServingLoad(trace=trace),
        max_batched_tokens=first["max_num_batched_tokens"],
        max_sequences=first["max_num_seqs"],
    )
    yield Case(REQUESTS, first["model"], "rtx-4090", "bf16", "vllm", REQUESTS, workload, Measured(ttft, tpot, e2e))


def _tgi(rows: list[dict[str, Any]]) -> Iterator[Case]:
    """Yield users of decoders that are read here, as a stack that batches continuously."""
    for row in rows:
        if row["model"] not in _CONFIGS:
            continue
        workload = ServingWorkload(
            kind="serving",
            config=_config(row["model"]),
            dtype="fp16",
            software="vllm",
            parallelism=ServingParallelism(tensor=row["devices"]),
            input_tokens=round(row["mean_input_tokens"]),
            output_tokens=max(round(row["mean_output_tokens"]), 2),
            length_spread=0.0,
            load=ServingLoad(concurrency=row["users"]),
        )
        measured = Measured(row["ttft_ms_p50"], row["itl_ms_mean"], row["latency_ms_mean"])
        deployment = f"{row['model']}|{row['gpu']}|{row['devices']}"
        yield Case(TGI, row["model"], _TGI_GPUS[row["gpu"]], "fp16", "tgi", deployment, workload, measured)
