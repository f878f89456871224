"""Engines that a served model may run on: every split in every format on every GPU type, their costs and batch limits.

How many engines a rate needs follows from the closed form. Only engines with room for keys and values are priced: the
others bear no request, whatever their steps take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
from msgspec import structs

from app.bands.band import LIMIT_MARGINS, limit_of_estimate
from app.bands.coverage import COVERAGE
from app.engine.power import Power, board_power, stated_power
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import BadInput, FieldError, TooLarge
from app.networks.transformers.architecture import Experts
from app.runtime.cancellation import check_cancelled
from app.services.compare.request import Candidate, device_load
from app.services.operators.predict_operators import require_predictor
from app.services.serving.deployment import Deployment, model_workload, resolve_deployment
from app.services.serving.engines import Engine, engines_on, have_room, shape_of, with_limits
from app.services.serving.load_figures import LoadFigures
from app.services.serving.predict_serving import runnable
from app.serving.steady_state import closed_loop, highest_rate, open_load
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


# Token budgets that are tried, as shares of the stack's own.
BUDGETS = (0.25, 0.5, 2.0, 4.0)
_BISECTIONS, _LEAST_TOKENS = 24, 512
# Share of the highest rate that engines get where their limits cannot be kept.
_BORNE = 0.7
# Sequences that a cap leaves beyond the mean ones.
_SPARE = 1.05


class Limits(NamedTuple):
    """Most milliseconds of the times by name, for this percentage of requests, with this probability."""

    ms: Mapping[str, float]
    percentile: float
    probability: float

    def of_means(self) -> dict[str, float]:
        """Return what the means may take, so that the limits are kept in spite of the usual uncertainty."""
        margins = LIMIT_MARGINS
        return {name: limit_of_estimate(limit, margins[name], self.probability) for name, limit in self.ms.items()}

    def missed(self, figures: LoadFigures) -> bool:
        """Return whether the percentile of a time is over its limit, or the load saturates the engines."""
        times = {"ttft_ms": figures.ttft, "tpot_ms": figures.tpot, "e2e_ms": figures.e2e}
        return figures.e2e is None or any(
            time is not None and 1e3 * time.chosen > self.ms[name] for name, time in times.items() if name in self.ms
        )


class Option(NamedTuple):
    """An engine on a GPU type, and how many the rate needs by the closed form; `able`: they keep the limits."""

    deployment: Deployment
    engine: Engine
    candidate: Candidate
    engines: int
    able: bool

    @property
    def each(self) -> float:
        """What a device adds to `price`: its rent; 1 without a price, or if it is owned."""
        rate = self.candidate.rate
        return 1.0 if rate is None or rate.usd_per_kwh is not None else rate.usd_per_hour or 1.0

    @property
    def price(self) -> float:
        """US dollars per hour of all devices, or without a price their number."""
        return self.engines * self.deployment.run.parallelism.devices * self.each

    @property
    def token_s(self) -> float:
        """Mean seconds per output token at the rate, by the closed form."""
        rate = self.deployment.rate_per_s / self.engines
        return open_load(self.engine.times, self.engine.limits, shape_of(self.deployment), rate).tpot_s


def option_of(deployment: Deployment, engine: Engine, candidate: Candidate, limits: Limits) -> Option:
    """Return the option with as many engines as the rate needs."""
    return Option(deployment, engine, candidate, *_engines_needed(deployment, engine, limits))


def _engines_needed(deployment: Deployment, engine: Engine, limits: Limits) -> tuple[int, bool]:
    """Return how many engines keep the limits in their means at the rate; or, with False, how many bear the rate."""
    shape, rate = shape_of(deployment), deployment.rate_per_s
    allowed = limits.of_means()

    def keeps(each: float) -> bool:
        state = open_load(engine.times, engine.limits, shape, each)
        means = {"ttft_ms": state.ttft_s, "tpot_ms": state.tpot_s, "e2e_ms": state.e2e_s}
        return bool(np.isfinite(state.e2e_s)) and all(1e3 * means[name] <= limit for name, limit in allowed.items())

    if keeps(rate):
        return 1, True
    most = highest_rate(engine.times, engine.limits, shape)
    if most == 0.0 or not keeps(1e-3 * most):
        return (1 if most == 0.0 else ceil(rate / (_BORNE * most))), False
    low, high = 1e-3 * most, most
    for _ in range(_BISECTIONS):
        if ceil(rate / low) == ceil(rate / high):
            break
        middle = 0.5 * (low + high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return max(ceil(rate / low), 1), True


def with_best_budget(option: Option, limits: Limits) -> Option:
    """Return the option with the token budget that needs the fewest engines; the stack's own among equals."""
    if option.deployment.workload.max_batched_tokens is not None or (option.able and option.engines == 1):
        return option
    return min((option, *_other_budgets(option, limits)), key=lambda one: (not one.able, one.engines))


def _other_budgets(option: Option, limits: Limits) -> Iterator[Option]:
    own = option.engine.settings.budget_tokens
    for share in BUDGETS:
        tokens = int(share * own)
        if tokens >= _LEAST_TOKENS:
            deployment, engine = with_batch_limits(
                option.deployment, option.engine, option.candidate.spec, tokens=tokens
            )
            yield option_of(deployment, engine, option.candidate, limits)


def with_capped_batch(option: Option, limits: Limits) -> Option | None:
    """Return the option with as many sequences at once as keep the time per token; None where that changes nothing.

    Arrivals come in bunches: without a cap those of a bunch slow one another down, with it they wait.
    """
    limit, workload = limits.of_means().get("tpot_ms"), option.deployment.workload
    if limit is None or workload.max_sequences is not None:
        return None
    engine, shape = option.engine, shape_of(option.deployment)
    replicas = option.deployment.attention_replicas
    steady = open_load(engine.times, engine.limits, shape, option.deployment.rate_per_s / option.engines)
    if not np.isfinite(steady.tpot_s):
        return None
    low, high = ceil(_SPARE * steady.running / replicas), engine.settings.sequences

    def keeps(each: int) -> bool:
        return 1e3 * closed_loop(engine.times, engine.limits, shape, float(each * replicas)).tpot_s <= limit

    if low >= high or not keeps(low) or keeps(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    deployment, capped = with_batch_limits(option.deployment, engine, option.candidate.spec, sequences=low)
    return option._replace(deployment=deployment, engine=capped)


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
            option_of(deployment, engine, self._of[target], self._limits)
            for target, engine in zip(targets, engines, strict=True)
        ]


def _too_many() -> TooLarge:
    why = f"the splits of the model in all pairs of formats on all GPUs are over {MOST_ENGINES:,} engines"
    message = f"{why}: send fewer gpus, dtypes or kv_dtypes, or less max_devices"
    return TooLarge(message, errors=[FieldError((name,), message) for name in _NARROWED])
