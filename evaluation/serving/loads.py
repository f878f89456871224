"""Measured loads on served models as workloads of kind `serving`, with what was measured.

closed loops  InferenceX and others (serving_points): so many requests in flight
blis          open arrivals on H100
requests      a trace of single requests on RTX 4090 (LLMServingSim)
tgi           users of Hugging Face's stack of 2023 (LLM-Pilot)
ml_energy     the ML.ENERGY leaderboard: so many requests in flight on H100, with the energy of a token
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from app.networks.builtin import find_config
from app.wire.serving_form import RequestTrace, ServingLoad, ServingParallelism, ServingWorkload
from evaluation.serving.points import Point, read_points
from evaluation.sources import ml_energy
from evaluation.sources.facts import facts_of
from evaluation.study import Case, Row

UNKNOWN = float("nan")
SERVED = "served_loads"
INFERENCEX, OTHERS, ARRIVALS, REQUESTS, TGI, ML_ENERGY = "inferencex", "others", "blis", "requests", "tgi", "ml_energy"
_FOLDER = "whole_models"
# Tokens of a block of vLLM's cache; a cached prompt's last block is computed again.
_BLOCK = 16
# Longer waits for the first token than this mean that arrivals outran the engine.
_OVERLOADED_MS = 10_000.0
# ML.ENERGY's lengths are about the most uneven ones that can be asked, as those of chats are more uneven still: their
# spread, and their mean, of the longest.
_SPREAD = 0.99
_MEAN = 1.0 - 0.5 * _SPREAD


class Means(NamedTuple):
    """Measured means over requests, milliseconds, and joules per generated token; NaN: not given.

    `overloaded`: queues grew for as long as it ran.
    """

    ttft_ms: float = UNKNOWN
    tpot_ms: float = UNKNOWN
    e2e_ms: float = UNKNOWN
    overloaded: bool = False
    energy_j: float = UNKNOWN


class Load(NamedTuple):
    """One load on one deployment.

    source      data set
    model, gpu, dtype, stack  what errors are reported by
    deployment  what is held out together, and ranked against others
    """

    source: str
    model: str
    gpu: str
    dtype: str
    stack: str
    deployment: str
    workload: ServingWorkload
    measured: Means


def read_loads(folder: Path) -> list[Load]:
    """Return the loads of all files that the folder has. Raises NotFound without that of the closed loops."""
    readers: Mapping[str, Callable[[Sequence[Row]], Iterator[Load]]] = {
        "blis_stages_h100": _arrivals,
        "llmservingsim_vllm_requests": _requests,
        "llm_pilot_tgi": _tgi,
        "ml_energy": _ml_energy,
    }
    loads = [_closed_loop(point) for point in read_points(folder)]
    for name, read in readers.items():
        path = folder / _FOLDER / f"{name}.parquet"
        if path.is_file():
            loads += read(pq.read_table(path).to_pylist())
    return loads


def _closed_loop(point: Point) -> Load:
    workload = ServingWorkload(
        kind="serving",
        config=dict(point.config),
        dtype=point.dtype,  # type: ignore[arg-type]
        kv_dtype=point.kv_dtype,  # type: ignore[arg-type]
        software=f"{point.stack}-{point.version}" if point.version else point.stack,
        parallelism=ServingParallelism(
            tensor=point.devices, attention_data=point.attention_data, expert=point.expert_parallel
        ),
        input_tokens=point.input_tokens,
        output_tokens=point.output_tokens,
        length_spread=0.2 if point.inferencex else 0.0,
        load=ServingLoad(concurrency=point.concurrency),
        **point.settings,  # type: ignore[arg-type]
    )
    later_tokens = point.mean_length * point.output_tokens - 1.0
    measured = Means(point.ttft_ms, point.tpot_ms, point.ttft_ms + later_tokens * point.tpot_ms)
    source, dtype = INFERENCEX if point.inferencex else OTHERS, f"{point.model} {point.precision}"
    return Load(source, point.model, point.gpu, dtype, point.stack, point.deployment, workload, measured)


def served_config(model: str) -> dict[str, Any]:
    """Return the configuration of a served model: that of a built-in network, with other sizes."""
    changes = dict(facts_of(SERVED)["models"][model])
    return {**(find_config(changes.pop("like")) or {}), **changes}


def _workload(model: str, **fields: Any) -> ServingWorkload:
    """Return the workload of a served model, on vLLM if `software` is not given."""
    return ServingWorkload(kind="serving", config=served_config(model), **{"software": "vllm", **fields})


def _lengths(prompt: float, output: float, spread: float = 0.0) -> dict[str, Any]:
    return {"input_tokens": round(prompt), "output_tokens": max(round(output), 2), "length_spread": spread}


def _limits(row: Row) -> dict[str, Any]:
    return {"max_batched_tokens": row["max_num_batched_tokens"], "max_sequences": row["max_num_seqs"]}


def _arrivals(rows: Sequence[Row]) -> Iterator[Load]:
    """Yield stages of February 2026 at one rate each. Their few prompts come again: the cache holds all but a block."""
    for row in rows:
        prompt, output = row["prompt_tokens_mean"], row["output_tokens_mean"]
        split, load = ServingParallelism(tensor=row["tp"]), ServingLoad(rate_per_s=row["rate_rps"])
        fields = {"dtype": "bf16", "prefix_hit": 1.0 - _BLOCK / prompt, **_lengths(prompt, output), **_limits(row)}
        workload = _workload(row["model"], software="vllm-0.15.1", parallelism=split, load=load, **fields)
        ttft, e2e = row["ttft_mean_ms"], row["e2e_mean_ms"]
        measured = Means(ttft, (e2e - ttft) / (output - 1.0), e2e, overloaded=ttft > _OVERLOADED_MS)
        deployment = f"{row['model']}|{row['tp']}"
        yield Load(ARRIVALS, row["model"], "h100_sxm", "bf16", "vllm", deployment, workload, measured)


def _requests(rows: Sequence[Row]) -> Iterator[Load]:
    """Yield the trace; the means are over its requests."""
    ttft, tpot, e2e = (float(np.mean([row[name] for row in rows])) for name in ("ttft_ms", "tpot_ms", "latency_ms"))
    first = rows[0]
    trace = RequestTrace(
        arrival_s=[row["arrival_s"] for row in rows],
        input_tokens=[row["input_toks"] for row in rows],
        output_tokens=[row["output_toks"] for row in rows],
    )
    fields = {"dtype": "bf16", "software": f"vllm-{first['vllm']}", **_limits(first)}
    workload = _workload(first["model"], load=ServingLoad(trace=trace), **fields)
    yield Load(REQUESTS, first["model"], "rtx-4090", "bf16", "vllm", REQUESTS, workload, Means(ttft, tpot, e2e))


def _tgi(rows: Sequence[Row]) -> Iterator[Load]:
    """Yield users of decoders that are read here, as a stack that batches continuously."""
    facts = facts_of(SERVED)
    for row in rows:
        if row["model"] not in facts["models"]:
            continue
        split, load = ServingParallelism(tensor=row["devices"]), ServingLoad(concurrency=row["users"])
        lengths = _lengths(row["mean_input_tokens"], row["mean_output_tokens"])
        fields = {"dtype": "fp16", "software": "tgi-1.0", "parallelism": split, "load": load}
        workload = _workload(row["model"], **fields, **lengths)
        measured = Means(row["ttft_ms_p50"], row["itl_ms_mean"], row["latency_ms_mean"])
        deployment = f"{row['model']}|{row['gpu']}|{row['devices']}"
        yield Load(TGI, row["model"], facts["gpus"][row["gpu"]], "fp16", "tgi", deployment, workload, measured)


def _ml_energy(rows: Sequence[Row]) -> Iterator[Load]:
    """Yield the loads of language models whose configuration is known, as the scorecard assumes them."""
    for row in rows:
        if row["median_itl_ms"] is not None:  # no images or videos
            time, *energy = ml_energy.cases([row])
            if time.parts:
                yield _ml_energy_load(row, time, energy[0])


def _ml_energy_load(row: Row, time: Case, energy: Case) -> Load:
    step, prompt = (part.workload for part in energy.parts)
    split = step["parallelism"]
    workload = ServingWorkload(
        kind="serving",
        parallelism=ServingParallelism(**split),
        **{name: step[name] for name in ("config", "dtype", "kv_dtype", "software")},
        **_lengths(prompt["sequence"] / _MEAN, row["avg_output_len"] / _MEAN, _SPREAD),
        load=ServingLoad(concurrency=step["batch"]),
        method="closed_form",
    )
    measured = Means(tpot_ms=row["median_itl_ms"], energy_j=row["energy_per_token_joules"])
    deployment = f"{time.model}|{row['num_gpus']}|{split['tensor']}|{split['expert']}"
    return Load(ML_ENERGY, time.model, time.gpu, step["dtype"], "vllm", deployment, workload, measured)
