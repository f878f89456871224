"""Time per output token of measured LLM deployments, each as one steady state of its steps.

`concurrency` requests are in flight in a closed loop: while one generates its tokens, each other one is prefilled once.
So the mean time per output token is

    decode step of all requests at their mean context + (concurrency - 1) x prefill of one prompt / output tokens

Nothing of the points is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from app.bands.coverage import COVERAGE
from app.engine.engine import Engine
from app.networks.run import Mode
from app.services.models.resolve_networks import resolve_network
from app.stacks.release import plain_release
from app.steps.networks import prepare
from app.steps.timing import StepQuery, time_step
from app.tables.arrays import Floats
from app.wire.network_form import ModelWorkload, ParallelismIn
from evaluation.render import Report, Table
from evaluation.serving.points import Point, read_points
from evaluation.study import PREDICTOR, Errors, Progress, Result, compared, grouped

# Of 521 of the points, with its own tables of the same operators.
PUBLISHED = "aiconfigurator 0.12 on the 521 points of InferenceX: mape 25.9, median 17.2"
# Tokens of prompts that SGLang prefills at once by default on GPUs of 80 GB and more (--chunked-prefill-size).
_SGLANG_PREFILL_TOKENS = 16_384


def evaluate_serving_steps(folder: Path, engine: Engine, progress: Progress = lambda line: None) -> list[Result]:
    """Return the result of every point of the folder."""
    points = read_points(folder)
    progress(f"{len(points)} points of {len({point.deployment for point in points})} deployments")
    return [_result(point, engine) for point in points]


def _result(point: Point, engine: Engine) -> Result:
    """Return the predicted time per output token of a point by the rules of its serving stack.

    modules_ms, modules_error  by the modules of Hugging Face's model, each an operator of its own
    """
    prompt, output = round(point.mean_length * point.input_tokens), point.mean_length * point.output_tokens
    decode = _step_s(point, engine, _Query("decode", point.concurrency, round(prompt + 0.5 * output)))
    prefill = _step_s(point, engine, _Query("prefill", point.attention_data, prompt))
    predicted, low, high, modules = (1e3 * (decode + _prefills(point, prompt) / output * prefill)).tolist()
    about = {name: value for name, value in point._asdict().items() if name not in ("tpot_ms", "ttft_ms", "config")}
    return {
        **about,
        "deployment": point.deployment,
        "measured_ms": point.tpot_ms,
        "tpot_ms": predicted,
        "low_ms": low,
        "high_ms": high,
        **compared(point.tpot_ms, predicted, low, high),
        "modules_ms": modules,
        "modules_error": 100.0 * (modules / point.tpot_ms - 1.0),
    }


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


def _step_s(point: Point, engine: Engine, query: _Query) -> Floats:
    """Return the time of a step, the ends of its interval, and its time without the stack's rules, seconds [4]."""
    workload = ModelWorkload(
        kind="model",
        config=dict(point.config),
        mode=query.mode,
        batch=max(query.batch // point.attention_data, 1) * point.attention_data,
        sequence=query.sequence,
        dtype=point.dtype,  # type: ignore[arg-type]
        kv_dtype=point.kv_dtype,  # type: ignore[arg-type]
        software=point.stack,
        parallelism=ParallelismIn(
            tensor=point.devices, attention_data=point.attention_data, expert=point.expert_parallel
        ),
    )
    network, run = resolve_network(workload, None)
    target = engine.gpus.ids.index(engine.catalog.resolve(point.gpu).id)
    of_gpu = StepQuery(engine, engine.gpus, [target], PREDICTOR, COVERAGE)
    by_stack, by_modules = (
        time_step(of_gpu, prepare(network, each), each, launched=False)
        for each in (run, replace(run, release=plain_release()))
    )
    ends = (by_stack.done.step_s, *by_stack.ends(COVERAGE), by_modules.done.step_s)
    return np.array([float(end[0]) for end in ends])


class Line(NamedTuple):
    """Errors of the points of one name, and the mean size of their errors without the stack's rules, percent."""

    name: str
    errors: Errors
    modules_mape: float


def summary(results: Sequence[Result], by: Callable[[Result], str]) -> list[Line]:
    """Return the errors of the points alike in `by`, by name."""
    return [
        Line(name, Errors.of(alike), float(np.mean([abs(result["modules_error"]) for result in alike])))
        for name, alike in sorted(grouped(results, by).items())
    ]


def report(results: Sequence[Result]) -> Report:
    """Return the tables of errors by model, GPU, format, stack and deployment."""
    parts: dict[str, Callable[[Result], str]] = {
        "all": lambda result: "all points",
        "model": lambda result: str(result["model"]),
        "GPU": lambda result: str(result["gpu"]),
        "format": lambda result: f"{result['model']} {result['precision']}",
        "stack": lambda result: str(result["stack"]),
        "deployment": lambda result: str(result["deployment"]),
    }
    figures = {"points": "d", **dict.fromkeys(("mape", "median", "bias", "modules"), ".1f"), "held": ".0f"}
    tables = [Table("", {part: "", **figures}, list(map(_row, summary(results, by)))) for part, by in parts.items()]
    title = "Time per output token of measured deployments, error in percent; no point was learned from."
    return Report(blocks=[title, PUBLISHED, *tables], body={"study": "serving-steps", "cells": results})


def _row(line: Line) -> tuple[str | float, ...]:
    errors = line.errors
    return line.name, errors.cases, errors.mape, errors.median, errors.mean_bias, line.modules_mape, errors.held
