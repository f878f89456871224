"""Time per output token of measured LLM deployments, each as one steady state of its steps.

`concurrency` requests are in flight in a closed loop: while one generates its tokens, each other one is prefilled once.
So the mean time per output token is

    decode step of all requests at their mean context + (concurrency - 1) x prefill of one prompt / output tokens

Prompts and outputs of InferenceX are uniform in 0.8 to 1 of the lengths given. Nothing of the points is learned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from app.engine.engine import Engine
from app.errors import NotFound
from app.graphs.run import Mode
from app.services.models.networks import prepare
from app.services.models.resolve_networks import resolve_network
from app.services.models.steps import time_step
from app.tables.arrays import Floats
from app.wire.network_form import ModelWorkload, ParallelismIn

PREDICTOR, COVERAGE = "auto", 0.8
# Of 521 of the points, with its own tables of the same operators.
PUBLISHED = "aiconfigurator 0.12 on the 521 points of InferenceX: mape 25.9, median 17.2"
POINTS, CONFIGS = "serving_points/points.parquet", "model_configs"
# Mean share of the lengths given, of InferenceX and of others.
_MEAN_LENGTH = {True: 0.9, False: 1.0}
# Tokens of prompts that SGLang prefills at once by default on GPUs of 80 GB and more (--chunked-prefill-size).
_SGLANG_PREFILL_TOKENS = 16_384
CONFIG_OF = {
    "llama70b": "meta-llama--Meta-Llama-3.1-70B",
    "qwen32b": "Qwen--Qwen3-32B",
    "gptoss": "openai--gpt-oss-120b",
    "dsr1": "deepseek-ai--DeepSeek-R1",
}


class Point(NamedTuple):
    """A measured deployment at one load; `tpot_ms` is the mean over requests."""

    model: str
    gpu: str
    precision: str
    stack: str
    devices: int
    expert_parallel: int
    attention_data: int
    input_tokens: int
    output_tokens: int
    concurrency: int
    tpot_ms: float
    inferencex: bool

    @property
    def deployment(self) -> str:
        """Return what is held out together: model, GPU, format, stack and parallelism."""
        split = f"{self.devices}|{self.expert_parallel}|{self.attention_data}"
        return f"{self.model}|{self.gpu}|{self.precision}|{self.stack}|{split}"


@dataclass(frozen=True, slots=True)
class Predicted:
    """A point and its predicted times per output token, milliseconds.

    tpot_ms        by the rules of its serving stack, with the ends of its interval
    modules_ms     by the modules of Hugging Face's model, each an operator of its own
    """

    point: Point
    tpot_ms: float
    low_ms: float
    high_ms: float
    modules_ms: float

    @property
    def error(self) -> float:
        """Return the relative error, percent."""
        return 100.0 * (self.tpot_ms / self.point.tpot_ms - 1.0)

    @property
    def modules_error(self) -> float:
        """Return the relative error without the rules of the stack, percent."""
        return 100.0 * (self.modules_ms / self.point.tpot_ms - 1.0)


def read_points(folder: Path) -> list[Point]:
    """Return the measured points of a data folder. Raises NotFound without the file."""
    path = folder / POINTS
    if not path.is_file():
        raise NotFound(f"No {POINTS} in {folder}.")
    return [_point(row) for row in pq.read_table(path).to_pylist()]


def _point(row: Mapping[str, Any]) -> Point:
    devices, expert, attention = (int(row[name]) for name in ("devices", "expert_parallel", "attention_dp"))
    return Point(
        row["model"],
        row["gpu"],
        row["precision"] or "bf16",
        row["backend"],
        devices,
        expert,
        attention,
        int(row["input_tokens"]),
        int(row["output_tokens"]),
        int(row["concurrency"]),
        row["tpot_ms"],
        row["inferencex"],
    )


def evaluate_serving_steps(
    folder: Path, engine: Engine, progress: Callable[[str], None] = lambda line: None
) -> list[Predicted]:
    """Return a prediction for every point of the folder."""
    configs = {model: read_config(folder, name) for model, name in CONFIG_OF.items()}
    points = [point for point in read_points(folder) if point.model in configs]
    progress(f"{len(points)} points of {len({point.deployment for point in points})} deployments")
    return [predicted(point, configs[point.model], engine) for point in points]


def read_config(folder: Path, name: str) -> dict[str, Any]:
    """Return a published configuration by its file's name."""
    config: dict[str, Any] = json.loads((folder / CONFIGS / f"{name}_config.json").read_text("utf-8"))
    return config


def predicted(point: Point, config: Mapping[str, Any], engine: Engine) -> Predicted:
    """Return the predicted time per output token of one point."""
    share = _MEAN_LENGTH[point.inferencex]
    prompt, output = round(share * point.input_tokens), share * point.output_tokens
    decode = _Query("decode", point.concurrency, round(prompt + 0.5 * output))
    prefill = _Query("prefill", point.attention_data, prompt)
    times = _step_s(point, config, engine, decode) + _prefills(point, prompt) / output * _step_s(
        point, config, engine, prefill
    )
    return Predicted(point, *(1e3 * times).tolist())


def _prefills(point: Point, prompt: int) -> float:
    """Return how many prefills of one prompt a request waits for between its first token and its last.

    Each other request's, one of which falls into every answer. SGLang decodes nothing while it prefills, so requests of
    equal lengths stay in step: all prompts of a wave are prefilled, a budget of tokens at a time, before its answers.
    """
    others = max(point.concurrency / point.attention_data - 1.0, 0.0)
    if point.stack == "sglang" and not point.inferencex:
        return max(point.concurrency - _SGLANG_PREFILL_TOKENS / prompt, 0.0) / 2.0
    return others


class _Query(NamedTuple):
    """A step: its mode, sequences over all replicas, and tokens of each (in decode its context)."""

    mode: Mode
    batch: int
    sequence: int


def _step_s(point: Point, config: Mapping[str, Any], engine: Engine, query: _Query) -> Floats:
    """Return the time of a step, the ends of its interval, and its time without the stack's rules, seconds [4]."""
    workload = ModelWorkload(
        kind="model",
        config=dict(config),
        mode=query.mode,
        batch=max(query.batch // point.attention_data, 1) * point.attention_data,
        sequence=query.sequence,
        dtype=dtype_of(point),  # type: ignore[arg-type]
        kv_dtype=kv_dtype_of(point),  # type: ignore[arg-type]
        software=point.stack,
        parallelism=_parallelism(point),
    )
    network, run = resolve_network(workload, None)
    target = engine.gpus.ids.index(engine.catalog.resolve(point.gpu).id)
    by_stack, by_modules = (
        time_step(
            engine,
            prepare(network, each),
            each,
            engine.gpus,
            [target],
            predictor=PREDICTOR,
            coverage=COVERAGE,
            launched=False,
        )
        for each in (run, replace(run, stack=None))
    )
    ends = (by_stack.done.step_s, by_stack.low_s, by_stack.high_s, by_modules.done.step_s)
    return np.array([float(end[0]) for end in ends])


def _parallelism(point: Point) -> ParallelismIn:
    return ParallelismIn(tensor=point.devices, attention_data=point.attention_data, expert=point.expert_parallel)


def kv_dtype_of(point: Point) -> str | None:
    """Return the number format of the KV cache, which the source does not say.

    InferenceX asks vLLM and TensorRT-LLM for FP8 beside narrow weights, SGLang for none.
    """
    return "fp8" if point.precision != "bf16" and point.stack != "sglang" else None


def dtype_of(point: Point) -> str:
    """Return the number format of the linear layers, or of the experts where theirs is another."""
    if point.model == "gptoss":
        return "w4a8_mxfp4_mxfp8" if point.gpu.startswith("b") else "w4a16_mxfp4"
    if point.model == "dsr1" and point.precision == "fp8":
        return "fp8_block"
    return {"fp4": "nvfp4"}.get(point.precision, point.precision)


class Line(NamedTuple):
    """Errors of points alike, percent: mean, median and bias; without the stack's rules; and points in the interval."""

    name: str
    points: int
    mape: float
    median: float
    bias: float
    modules_mape: float
    held: float


def summary(found: Sequence[Predicted], by: Callable[[Point], str]) -> Iterator[Line]:
    """Yield the errors of the points alike in `by`, by name."""
    for name in sorted({by(each.point) for each in found}):
        alike = [each for each in found if by(each.point) == name]
        errors = np.array([each.error for each in alike])
        modules = np.array([each.modules_error for each in alike])
        held = [each.low_ms <= each.point.tpot_ms <= each.high_ms for each in alike]
        off = np.abs(errors)
        figures = (off.mean(), np.median(off), errors.mean(), np.abs(modules).mean(), 100.0 * np.mean(held))
        yield Line(name, len(alike), *(float(figure) for figure in figures))


def lines(found: Sequence[Predicted]) -> Iterator[str]:
    """Yield the tables that `gpucast evaluate serving-steps` prints."""
    parts: dict[str, Callable[[Point], str]] = {
        "all": lambda point: "all points",
        "model": lambda point: point.model,
        "GPU": lambda point: point.gpu,
        "format": lambda point: f"{point.model} {point.precision}",
        "stack": lambda point: point.stack,
        "deployment": lambda point: point.deployment,
    }
    yield "Time per output token of measured deployments, error in percent; no point was learned from."
    yield PUBLISHED
    for part, by in parts.items():
        yield ""
        yield f"{part:42}{'points':>8}{'mape':>8}{'median':>8}{'bias':>8}{'modules':>9}{'held':>7}"
        for line in summary(found, by):
            yield (
                f"{line.name:42}{line.points:8}{line.mape:8.1f}{line.median:8.1f}{line.bias:8.1f}"
                f"{line.modules_mape:9.1f}{line.held:7.0f}"
            )
