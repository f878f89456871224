"""Engines that a served model may run on: every split in every format on every GPU type, and their costs.

Only engines with room for keys and values are priced: the others bear no request, whatever their steps take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import structs

from app.bands.coverage import COVERAGE
from app.engine.power import Power, board_power, stated_power
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import BadInput, FieldError, TooLarge
from app.networks.transformers.architecture import Experts
from app.runtime.cancellation import check_cancelled
from app.services.compare.request import Candidate, device_load
from app.services.compare.served_engines import BUDGETS, Limits, Option, option_of
from app.services.operators.predict_operators import require_predictor
from app.services.serving.deployment import Deployment, model_workload, resolve_deployment
from app.services.serving.engines import engines_on, have_room, shape_of
from app.services.serving.known_times import uncertainties
from app.services.serving.predict_serving import runnable
from app.steps.timing import StepQuery
from app.tables.gpus import DEVICES_PER_NODE, GpuSpec
from app.wire.compare_form import ServedCost, ServedSplit
from app.wire.prediction_form import Skipped
from app.wire.serving_form import ServedFigures, ServingParallelism, ServingRequest, ServingWorkload

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
                link=workload.parallelism.link,
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


def in_formats(
    workload: ServingWorkload, dtypes: Sequence[str] | None, kv_dtypes: Sequence[str] | None
) -> Iterator[ServingWorkload]:
    """Yield the workload in each pair of number formats of weights and of keys and values; None: its own alone.

    One with speculative decoding also without it, and with fewer drafted tokens, by halves.
    """
    for dtype in dict.fromkeys(dtypes or (workload.dtype,)):
        for kv_dtype in dict.fromkeys(kv_dtypes or (workload.kv_dtype,)):
            given = structs.replace(workload, dtype=dtype, kv_dtype=kv_dtype)
            yield given
            if (drafting := workload.speculative) is not None:
                yield structs.replace(given, speculative=None)
                for tokens in (drafting.tokens // 2**k for k in range(1, int(drafting.tokens).bit_length())):
                    yield structs.replace(given, speculative=structs.replace(drafting, tokens=tokens))


def cost_of(
    snapshot: Snapshot,
    candidate: Candidate,
    deployment: Deployment,
    served: ServedFigures,
    prompt_share: float,
    duty_cycle: float | None,
) -> ServedCost:
    """Return the costs of a deployment under its load, rented for `duty_cycle` of all hours; None: for all.

    prompt_share  share of the devices' busy time that prompts take, the share of the price that input tokens pay
    """
    tokens, power = served.output_tokens_per_s, _power(snapshot, candidate, deployment, served)
    rate = None if candidate.rate is None else candidate.rate.under(power)
    hourly = None if rate is None else rate.usd_per_hour * deployment.devices
    prompts = (served.requests_per_s or 0.0) * shape_of(deployment).prompt
    busy = 1.0 if duty_cycle is None else duty_cycle
    monthly = None if candidate.rate is None else candidate.rate.monthly(power, board_power(candidate.spec), busy)
    watts = None if power is None else power.middle * deployment.devices
    return ServedCost(
        usd_per_hour=hourly,
        monthly_usd=None if monthly is None else monthly * deployment.devices,
        usd_per_million_input_tokens=_per_million(hourly, prompt_share, prompts),
        usd_per_million_output_tokens=_per_million(hourly, 1.0 - prompt_share, tokens),
        cost_per_million_tokens=_per_million(hourly, 1.0, tokens),
        energy_per_token_j=None if watts is None or not tokens else watts / tokens,
        power_w=None if power is None else power.middle,
        power_source=None if power is None else power.source,
        price_usd_per_hour=None if rate is None else rate.usd_per_hour,
        price_source=None if rate is None else rate.source,
    )


def _per_million(hourly: float | None, share: float, tokens_per_s: float | None) -> float | None:
    """Return the US dollars of a million tokens that pay a share of the hourly price."""
    return None if hourly is None or not tokens_per_s else share * hourly / _HOUR_S / tokens_per_s * _MILLION


def _power(snapshot: Snapshot, candidate: Candidate, deployment: Deployment, served: ServedFigures) -> Power | None:
    """Return the power of a device in a decode step: as stated, by the power model, or that of the board."""
    model = snapshot.engine.power
    if candidate.watts is not None:
        return stated_power(candidate.watts)
    step_ms = served.step_ms.decode
    if step_ms is None or served.sequences.mean is None:
        return model.board(candidate.spec)
    replicas, shape = deployment.attention_replicas, shape_of(deployment)
    batch = replicas * max(round(served.sequences.mean / deployment.engines / replicas), 1)
    step = model_workload(deployment.workload, "decode", batch, max(round(shape.context), 1))
    load, at = device_load(step, None), snapshot.table_of(candidate.spec)
    return model.power(candidate.spec, load, step_ms / 1e3, COVERAGE, at)


# Splits x pairs of formats x GPU types of a plan, a few milliseconds each.
MOST_ENGINES = 20_000
_NARROWED = ("gpus", "dtypes", "kv_dtypes", "max_devices")


class Unpriced(NamedTuple):
    """An engine on a GPU type, a row of the request's table; `among`: the GPU types that can run it."""

    deployment: Deployment
    target: int
    among: Sequence[GpuSpec]


class Splits:
    """Engines on the candidates' GPU types; `options`: the priced ones."""

    def __init__(
        self, snapshot: Snapshot, request: ServingRequest, candidates: Sequence[Candidate], limits: Limits
    ) -> None:
        """Raises NotFound or NotTrained for GPUs or predictors that are not there."""
        self._snapshot, self._request, self._limits = snapshot, request, limits
        self._rows = GpuRows(snapshot)
        self._of = {self._rows.row(candidate.ref, ("gpus",)): candidate for candidate in candidates}
        require_predictor(snapshot.engine, self._rows, request.predictor, [*self._of])
        self._largest = dict[str, tuple[int, Option | Unpriced]]()
        self.options = list[Option]()
        self._skipped = dict[str, Skipped]()

    @property
    def skipped(self) -> list[Skipped]:
        """GPU types that can run none."""
        return [one for one in self._skipped.values() if one.gpu not in self._largest]

    def by_gpu(self) -> dict[str, list[Option]]:
        """Return the priced engines on each GPU type that can run an engine, by its id."""
        priced: dict[str, list[Option]] = {gpu: [] for gpu in self._largest}
        for option in self.options:
            priced[option.candidate.spec.id].append(option)
        return priced

    def largest(self, gpu: str) -> Option:
        """Return the first engine of the most devices on a GPU type."""
        _, largest = self._largest[gpu]
        if isinstance(largest, Option):
            return largest
        (option,) = self._priced(largest.deployment, [largest.target], largest.among)
        return option

    def add(self, workloads: Iterable[ServingWorkload], most_devices: int) -> None:
        """Add every split of the workloads over at most so many devices.

        Raises TooLarge if they are too many, BadInput if no split can run.
        """
        every = list[Deployment]()
        formats = [*workloads]
        several = len({(workload.dtype, workload.kv_dtype) for workload in formats}) > 1
        for workload in formats:
            for deployment in deployments(workload, most_devices):
                check_cancelled()
                every.append(deployment)
                if len(every) * len(self._of) > MOST_ENGINES:
                    raise _too_many()
        for deployment in every:
            check_cancelled()
            self._add(deployment, every=several or len(self._of) > 1)
        if not self._largest and self._skipped:
            reasons = [FieldError(("workload", "dtype"), one.reason) for one in self._skipped.values()]
            raise BadInput(f"The model cannot run: {reasons[0].msg}.", errors=reasons)
        if not self._largest:
            raise BadInput("workload: no split of the model over max_devices devices can run", errors=[])

    def _add(self, deployment: Deployment, *, every: bool) -> None:
        targets, left_out = runnable(self._snapshot, self._rows, deployment, [*self._of], every=every)
        self._skipped |= {one.gpu: one for one in left_out}
        among = [self._of[target].spec for target in targets]
        room = have_room(deployment, among)
        able = [target for target, fits in zip(targets, room, strict=True) if fits]
        priced = dict(zip(able, self._priced(deployment, able, among), strict=True))
        self.options += priced.values()
        for target, spec in zip(targets, among, strict=True):
            devices, (most, _) = deployment.run.parallelism.devices, self._largest.get(spec.id, (0, None))
            if devices > most:
                self._largest[spec.id] = devices, priced.get(target, Unpriced(deployment, target, among))

    def _priced(self, deployment: Deployment, targets: Sequence[int], among: Sequence[GpuSpec]) -> list[Option]:
        if not targets:
            return []
        query = StepQuery(self._snapshot.engine, self._rows.table(), targets, self._request.predictor)
        specs = [self._of[target].spec for target in targets]
        engines = engines_on(query, deployment, specs, room=max(BUDGETS), among=among)
        return [
            option_of(
                deployment,
                engine,
                self._of[target],
                uncertainties(self._snapshot.engine, query.gpus, target, deployment),
                self._limits,
            )
            for target, engine in zip(targets, engines, strict=True)
        ]


def _too_many() -> TooLarge:
    why = f"the splits of the model in all pairs of formats on all GPUs are over {MOST_ENGINES:,} engines"
    message = f"{why}: send fewer gpus, dtypes or kv_dtypes, or less max_devices"
    return TooLarge(message, errors=[FieldError((name,), message) for name in _NARROWED])
