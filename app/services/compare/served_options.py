"""Deployments to choose from, and their costs: engines split over devices, with the price and power of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import structs

from app.bands.coverage import COVERAGE
from app.engine.power import Power, board_power, stated_power
from app.engine.snapshot import Snapshot
from app.errors import BadInput
from app.networks.transformers.architecture import Experts
from app.services.compare.device_load import device_load
from app.services.compare.request import Candidate
from app.services.models.scaling import DEVICES_PER_NODE
from app.services.serving.deployment import Deployment, model_workload, resolve_deployment
from app.services.serving.engines import Engine, shape_of, with_limits
from app.tables.gpus import GpuSpec
from app.wire.compare_form import ServedCost, ServedSplit
from app.wire.serving_form import ServedFigures, ServingParallelism, ServingWorkload

_HOUR_S, _MILLION = 3600.0, 1e6


def deployments(workload: ServingWorkload, most: int) -> Iterator[Deployment]:
    """Yield the deployments of one engine over at most `most` devices that the model can be split into.

    Tensor-parallel sizes are powers of two; experts are also spread over the devices, with attention split or each
    device's own.
    """
    for tensor in (2**k for k in range(most.bit_length()) if 2**k <= most):
        ways = [(1, 1), (tensor, 1), (tensor, tensor)] if tensor > 1 else [(1, 1)]
        for expert, attention in ways:
            split = ServingParallelism(
                tensor=tensor,
                expert=expert,
                attention_data=attention,
                nodes=max(tensor // DEVICES_PER_NODE, 1),
                network_bytes_per_s=workload.parallelism.network_bytes_per_s,
            )
            try:
                deployment = resolve_deployment(structs.replace(workload, parallelism=split))
            except BadInput:
                continue
            if (expert, attention) != (1, 1) and not _has_experts(deployment):
                break
            yield deployment


def _has_experts(deployment: Deployment) -> bool:
    layers = (layer for stack in deployment.architecture.stacks for layer, _ in stack.layers)
    return any(isinstance(layer.feed_forward, Experts) for layer in layers)


def split_of(deployment: Deployment) -> ServedSplit:
    """Return how a deployment is split."""
    parallelism = deployment.workload.parallelism
    return ServedSplit(**{name: int(getattr(parallelism, name)) for name in ServedSplit.__struct_fields__})


def with_engines(deployment: Deployment, engines: int) -> Deployment:
    """Return the deployment with this number of engines."""
    parallelism = structs.replace(deployment.workload.parallelism, replicas=engines)
    return deployment._replace(workload=structs.replace(deployment.workload, parallelism=parallelism), engines=engines)


def with_batch_limits(
    deployment: Deployment, engine: Engine, spec: GpuSpec, *, tokens: int | None = None, sequences: int | None = None
) -> tuple[Deployment, Engine]:
    """Return the deployment and its engine with other limits of a step, of an attention replica; None: as it is."""
    workload = deployment.workload
    changed = structs.replace(
        workload,
        max_batched_tokens=workload.max_batched_tokens if tokens is None else tokens,
        max_sequences=workload.max_sequences if sequences is None else sequences,
    )
    deployment = deployment._replace(workload=changed)
    return deployment, with_limits(engine, deployment, spec)


def in_formats(
    workload: ServingWorkload, dtypes: Sequence[str] | None, kv_dtypes: Sequence[str] | None
) -> Iterator[ServingWorkload]:
    """Yield the workload in each pair of number formats of weights and of keys and values; None: its own alone."""
    for dtype in dict.fromkeys(dtypes or (workload.dtype,)):
        for kv_dtype in dict.fromkeys(kv_dtypes or (workload.kv_dtype,)):
            yield structs.replace(workload, dtype=dtype, kv_dtype=kv_dtype)


def cost_of(snapshot: Snapshot, candidate: Candidate, deployment: Deployment, served: ServedFigures) -> ServedCost:
    """Return the costs of a deployment under its load."""
    rate, tokens = candidate.rate, served.output_tokens_per_s
    hourly = None if rate is None else rate.usd_per_hour * deployment.devices
    power = _power(snapshot, candidate, deployment, served)
    watts = None if power is None else power.middle * deployment.devices
    return ServedCost(
        usd_per_hour=hourly,
        cost_per_million_tokens=None if hourly is None or not tokens else hourly / _HOUR_S / tokens * _MILLION,
        energy_per_token_j=None if watts is None or not tokens else watts / tokens,
        power_w=None if power is None else power.middle,
        power_source=None if power is None else power.source,
        price_usd_per_hour=None if rate is None else rate.usd_per_hour,
        price_source=None if rate is None else rate.source,
    )


def _power(snapshot: Snapshot, candidate: Candidate, deployment: Deployment, served: ServedFigures) -> Power | None:
    """Return the power of a device in a decode step: as stated, by the power model, or that of the board."""
    model = snapshot.engine.power
    if candidate.watts is not None:
        return stated_power(candidate.watts)
    step_ms = served.step_ms.decode
    if step_ms is None or served.sequences.mean is None:
        return board_power(candidate.spec)
    replicas, shape = deployment.attention_replicas, shape_of(deployment)
    batch = replicas * max(round(served.sequences.mean / deployment.engines / replicas), 1)
    step = model_workload(deployment.workload, "decode", batch, max(round(shape.context), 1))
    return model.power(candidate.spec, device_load(step, None), step_ms / 1e3, COVERAGE)
