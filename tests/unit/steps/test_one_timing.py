"""Predict, sweep and a served answer time a step alike: drawn over releases, formats, modes and parallelism."""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import product
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from app.bootstrap.warm import shipped_snapshot
from app.engine.snapshot import Snapshot
from app.errors import BadInput
from app.services.models.predict_networks import predict_network
from app.services.serving.deployment import Deployment, model_workload, resolve_deployment
from app.services.serving.engines import Engine, engines_on, with_host
from app.services.sweep.chunks import FIGURES, SweepTarget, predict_models
from app.serving.engine import Step, step_s
from app.stacks.facts import HostTimes
from app.steps.timing import StepQuery
from app.wire.network_form import ModelRequest, ModelWorkload
from app.wire.serving_form import ServingWorkload

pytestmark = pytest.mark.slow

GPUS = ("h100-sxm5-80gb", "a100-sxm4-80gb", "intel-max-1550")
RELEASES = (
    None, "vllm", "vllm-0.4.0", "vllm-0.11.0", "vllm-0.19.0", "sglang-0.3.0", "sglang-0.5.5", "trtllm-0.10.0",
    "trtllm-1.2.0", "pytorch-1.13", "pytorch-2.1", "pytorch-2.11", "megatron-core-0.9", "vllm-eager", "unheard-of-1.0",
)  # fmt: skip
FORMATS = ("fp32", "bf16", "fp8", "fp8_block", "mxfp8")
MODES = ("inference", "training", "prefill", "decode")
NETWORKS: tuple[dict[str, Any], ...] = (
    {"name": "llama-3-8b"},
    {"name": "llama-3-8b", "parallelism": {"tensor": 2}},
    {"name": "llama-3-8b", "parallelism": {"pipeline": 2, "microbatches": 2}, "kv_dtype": "fp8"},
    {"name": "gpt2-large", "parallelism": {"data": 2}, "input_copy": "pinned"},
    {"name": "vit-b-16"},
    {"name": "resnet50", "memory_format": "channels_last", "fused": True},
)
SIZES = ((4, 96), (8, 128), (16, 200))
OF_IMAGES = ("vit-b-16", "resnet50")
DRAWN, SERVED_DRAWN = 60, 12


@lru_cache(maxsize=1)
def _snapshot() -> Snapshot:
    return shipped_snapshot()


def _drawn(*choices: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    every = list(product(*choices))
    random.Random(0).shuffle(every)
    return every


def _predicted(workload: ModelWorkload, gpu: str) -> list[float]:
    """FIGURES of POST /predict's answer."""
    request = ModelRequest(gpu=gpu, workload=workload)
    (answer,) = predict_network(_snapshot(), request, max_rows=10**6, advise=False).predictions
    body: dict[str, Any] = msgspec.to_builtins(answer)
    interval, used = body["interval_ms"], body["memory"]
    times = [body["latency_ms"], interval["low"], interval["high"], *body["phases_ms"].values()]
    return [*times, *used["breakdown"].values(), used["required_bytes"]]


def _swept(rows: list[dict[str, Any]], gpu: str) -> list[list[float]]:
    flat = [
        {name: value for name, value in row.items() if name != "parallelism"}
        | {f"parallelism.{name}": value for name, value in row.get("parallelism", {}).items()}
        for row in rows
    ]
    table = predict_models(pa.Table.from_pylist(flat), SweepTarget(_snapshot(), gpu, "auto", 0.8))
    return [[row[name] for name in FIGURES] for row in table.to_pylist()]


def test_a_sweep_equals_predict() -> None:
    compared = 0
    for gpu, network, release, dtype, mode in _drawn(GPUS, NETWORKS, RELEASES, FORMATS, MODES):
        length = "image_size" if network["name"] in OF_IMAGES else "sequence"
        shared = network | {"dtype": dtype, "mode": mode} | ({"software": release} if release else {})
        rows = [shared | {"batch": batch, length: size} for batch, size in SIZES]
        workloads = [{"kind": "model", "parallelism": {}} | row for row in rows]
        try:
            expected = [_predicted(msgspec.convert(form, ModelWorkload, strict=False), gpu) for form in workloads]
        except BadInput:
            with pytest.raises(BadInput):
                _swept(rows, gpu)
            continue
        for swept, predicted, row in zip(_swept(rows, gpu), expected, rows, strict=True):
            assert swept == pytest.approx(predicted, rel=1e-9), (gpu, row)
        compared += 1
        if compared == DRAWN:
            break
    assert compared == DRAWN


def _engine(deployment: Deployment, gpu: str) -> Engine:
    """The deployment's engine, whose host takes no time."""
    engine = _snapshot().engine
    target = _snapshot().row_of[gpu]
    query = StepQuery(engine, engine.gpus, [target], "auto")
    (served,) = engines_on(query, deployment, [engine.catalog.resolve(gpu)])
    return with_host(served, HostTimes())


SERVED: tuple[dict[str, Any], ...] = (
    {"name": "llama-3-8b"},
    {"name": "llama-3-8b", "parallelism": {"tensor": 4}},
    {"name": "mixtral-8x7b", "parallelism": {"tensor": 4, "expert": 4}},
    {"name": "qwen3-30b-a3b", "parallelism": {"tensor": 4, "attention_data": 2, "expert": 4}},
)
SERVING_RELEASES = tuple(release for release in RELEASES if release and release.startswith(("vllm-0", "sglang", "trt")))


def test_a_served_step_equals_predict() -> None:
    """At sequences and contexts of the tables' axes, without what the host takes."""
    compared = 0
    for gpu, network, release, dtype in _drawn(GPUS, SERVED, SERVING_RELEASES, ("bf16", "fp8", "fp8_block")):
        load = {"input_tokens": 512, "output_tokens": 512, "load": {"concurrency": 8}}
        form = {"kind": "serving", "software": release, "dtype": dtype} | network | load
        workload = msgspec.convert(form, ServingWorkload, strict=False)
        try:
            deployment = resolve_deployment(workload)
            engine = _engine(deployment, gpu)
            expected = [
                (batch, context, _decode_ms(deployment, gpu, batch, context)) for batch, context in ((1, 64), (8, 512))
            ]
        except BadInput:
            continue
        for batch, context, predicted in expected:
            decodes = float(batch * deployment.attention_replicas)
            served = 1e3 * step_s(engine.times, Step(decodes, float(context), 0.0, 0.0, 0.0))
            assert served == pytest.approx(predicted, rel=1e-9), (gpu, form, batch, context)
        compared += 1
        if compared == SERVED_DRAWN:
            break
    assert compared == SERVED_DRAWN


def _decode_ms(deployment: Deployment, gpu: str, batch: int, context: int) -> float:
    """POST /predict's step of so many sequences a replica, less its wait for the engine's host."""
    every = batch * deployment.attention_replicas
    model = model_workload(deployment.workload, "decode", every, context)
    host = deployment.run.release.host_wait
    return _predicted(model, gpu)[0] - 1e3 * (host.step_s + host.sequence_s * batch)
