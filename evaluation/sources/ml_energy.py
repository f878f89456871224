"""The ML.ENERGY leaderboard: LLMs at a fixed number of running requests, and image and video models, on H100.

Facts of the source: `prompt_tokens` by the task (100 of a user with what came before: each turn of a conversation is a
request that holds the turns before it, half a turn on average, of 100 and 600 tokens; graduate questions; code around a
gap); `guidance`, the forward passes of a denoising step and the samples of each per image, of pipelines of Diffusers
that do not have the prompt and the empty one in a batch: one of one where guidance is distilled, two of one in Wan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.sources.facts import config_of, facts_of, request_of, study
from evaluation.study import Case, Part, Row

SOURCE = "ml_energy"
# Tokens that a running request has generated, over those of a mean answer: E[n^2] / (2 E[n]^2), as long answers run for
# longer. Of two services' recorded chats (azure_2023_conv, mooncake_conversation) 0.80 and 0.77; were all alike, 0.5.
_GENERATED = 0.78


def cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield a case per row: the median time between tokens, or the time of a batch of images or videos."""
    same, prompts = facts_of(SOURCE)["models"], facts_of(SOURCE)["prompt_tokens"]
    for row in rows:
        name, task, gpu = str(row["model_id"]), str(row["task_file"]), _gpu(row)
        model = name.partition("/")[2]
        if row["median_itl_ms"] is None:
            yield from _diffusion_cases(row, name, model)
            continue
        which = f"{task} {row['num_gpus']} GPUs tp{row['tensor_parallel']:g} ep{row['expert_parallel'] or 1:g}"
        config, reason = config_of(same.get(name, name)), ""
        if task not in prompts:
            reason = "tokens of images and videos are not given"
        elif config is None:
            reason = f"no configuration of {model} is at hand"
        parts = () if reason or config is None else (Part(1.0, _workload(row, config, prompts[task])),)
        which = f"{which} batch {row['avg_batch_size']:.0f}"
        yield Case(gpu, model, "time between tokens", which, float(row["median_itl_ms"]) / 1e3, parts, reason)
        each = tuple(_token(part.workload, prompts[task], float(row["avg_output_len"])) for part in parts)
        energy = tuple(part for pair in each for part in pair)
        yield Case(
            gpu, model, "energy of a token", which, float(row["energy_per_token_joules"]), energy, reason, unit="J"
        )


def _gpu(row: Row) -> str:
    """Return the id in the catalogue of the GPU of a row."""
    gpu: str = facts_of(SOURCE)["gpus"][row["gpu_model"]]
    return gpu


def _diffusion_cases(row: Row, name: str, model: str) -> Iterator[Case]:
    """Yield the time of a batch of images or videos, and the energy of one."""
    task, gpu = str(row["task_file"]), _gpu(row)
    which = f"{row['num_gpus']} GPUs batch {row['batch_size']:g}"
    one = task.removeprefix("text-to-")
    reason = "the sequence of a diffusion transformer cannot be split" if int(row["num_gpus"]) > 1 else ""
    parts = () if reason else _pipeline(row, name, one)
    yield Case(gpu, model, task, which, float(row["batch_latency_s"]), parts, reason)
    each = tuple(Part(part.times / float(row["batch_size"]), part.workload) for part in parts)
    joules = float(row[f"energy_per_{one}_joules"])
    yield Case(gpu, model, f"energy of {one}s", which, joules, each, reason, unit="J")


def _pipeline(row: Row, name: str, one: str) -> tuple[Part, ...]:
    """Return the steps of the denoiser, the encoders of the prompts once, and of images the autoencoder once."""
    (passes, samples), images = facts_of(SOURCE)["guidance"].get(name, (1, 2)), int(row["batch_size"])
    workload = request_of(
        SOURCE,
        row,
        "images",
        name=name,
        batch=samples * images,
        image_size=int(row["image_height"] or row["video_height"]),
        image_width=int(row["image_width"] or row["video_width"]),
        frames=int(row["num_frames"] or 1),
    )
    steps, prompts = float(row["inference_steps"]) * passes, workload | {"part": "text_encoders", "batch": images}
    decoded = (Part(1.0, workload | {"part": "autoencoder", "batch": images}),) if one == "image" else ()
    return Part(steps, workload), Part(float(samples * passes), prompts), *decoded


def _token(step: Mapping[str, Any], prompt_tokens: int, output_tokens: float) -> tuple[Part, Part]:
    """Return the share of a token in a decode step, and in the prefill of its prompt."""
    replicas = int(step["parallelism"]["attention_data"])
    prompt = dict(step) | {"mode": "prefill", "batch": replicas, "sequence": prompt_tokens}
    return Part(1.0 / step["batch"], step), Part(1.0 / (replicas * output_tokens), prompt)


def _workload(row: Row, config: Mapping[str, Any], prompt_tokens: int) -> Mapping[str, Any]:
    devices, expert = int(row["num_gpus"]), int(row["expert_parallel"] or 1)
    tensor = int(row["tensor_parallel"])
    replicas = devices // tensor
    batch = max(round(float(row["avg_batch_size"]) / replicas), 1) * replicas
    dtype = facts_of(SOURCE)["dtypes"][row["weight_precision"]]
    if dtype == "fp8" and expert > 1:
        dtype = "fp8_block"
    return request_of(
        SOURCE,
        row,
        "tokens",
        config=config,
        batch=batch,
        sequence=round(prompt_tokens + _GENERATED * float(row["avg_output_len"])),
        dtype=dtype,
        parallelism={"tensor": devices, "attention_data": replicas, "expert": expert},
    )


STUDY = study(SOURCE, cases)
