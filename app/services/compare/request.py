"""What comparisons and plans are about: their requests, GPUs, prices and powers, and the figures to compare by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import isfinite
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from app.bands.band import Band
from app.engine.power import GIVEN, Load, Power
from app.engine.prices import STALE_DAYS, age_days, describe_source
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import BadInput, FieldError, NotFound
from app.predictors.operator_digests import Distinct
from app.services.compare.price_rows import MOST_USD
from app.services.graphs.graph_store import Graphs
from app.services.models.resolve_networks import resolve_network
from app.services.operators.predict_operators import read_operators
from app.steps.levels import figure_of_step, levels_of
from app.steps.networks import prepare
from app.steps.schedule import runs_in_step
from app.store.gpus import Price
from app.tables.arrays import Floats
from app.tables.gpus import GpuSpec
from app.tables.names import normalise
from app.warning_codes import CodedWarning, warning
from app.wire.compare_form import COMPARE_EXAMPLE, SERVED_RANKINGS, Compared, CompareRequest, Split
from app.wire.decoding import decode
from app.wire.graph_form import GraphRequest, NetworkWorkload
from app.wire.job_plan_form import PLAN_EXAMPLE, PlanRequest
from app.wire.kernel_tables import kernel_table
from app.wire.kernel_workload import MOST_WATTS, GpuRef, KernelWorkload
from app.wire.network_form import ModelRequest
from app.wire.operator_forms import OperatorsRequest, OperatorsWorkload, OperatorTableRequest
from app.wire.predict_body import read_request
from app.wire.prediction_form import BaseRequest, Interval, Prediction, PredictRequest
from app.wire.serving_form import ServingPrediction, ServingRequest

SingleWorkloadRequest = PredictRequest | OperatorsRequest | ModelRequest | GraphRequest

# Fields of a comparison that are those of the equivalent prediction.
_SHARED = ("workload", "gpus", "predictor", "coverage", "strict_names", "power_cap_w")
_COMPARE, _PLAN = msgspec.json.Decoder(CompareRequest), msgspec.json.Decoder(PlanRequest)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GPU to compare: its name in the request, its specification, its price, and its power if stated."""

    ref: GpuRef
    spec: GpuSpec
    rate: Rate | None
    watts: float | None


def read_compare(body: bytes) -> CompareRequest:
    """Return the request from JSON. Raises Malformed, or BadInput that names every wrong field."""
    return decode(_COMPARE, body, example=COMPARE_EXAMPLE)


def read_plan(body: bytes) -> PlanRequest:
    """Return the request of POST /plan from JSON. Raises as `read_compare`."""
    return decode(_PLAN, body, example=PLAN_EXAMPLE)


def to_predict_request(request: CompareRequest) -> SingleWorkloadRequest | ServingRequest:
    """Return the equivalent POST /predict request. Raises BadInput that names every wrong field of the workload."""
    if request.currency != "USD":
        message = f"{request.currency[:20]!r} cannot be used: no exchange rate is known here; send prices in USD"
        raise BadInput.at(("currency",), message, end=".")
    inner = {name: getattr(request, name) for name in _SHARED}
    predict_request = read_request(msgspec.json.encode(inner))
    if isinstance(predict_request, OperatorTableRequest):
        known = "kernel, operators, model, graph or serving"
        raise BadInput.at(("workload", "kind"), f"columns hold many workloads: send {known}", end=".")
    return predict_request


def to_single_request(request: CompareRequest) -> SingleWorkloadRequest:
    """Return `to_predict_request` of one run. Raises BadInput for a served model, and for its figures."""
    predict_request = to_predict_request(request)
    if isinstance(predict_request, ServingRequest):
        raise BadInput.at(
            ("workload", "kind"), "a served model is not one run: send kernel, operators, model or graph", end="."
        )
    if request.duty_cycle is not None:
        raise BadInput.at(("duty_cycle",), "is of served models: send a workload of kind serving", end=".")
    if request.rank_by in SERVED_RANKINGS:
        raise BadInput.at(
            ("rank_by",), f"{request.rank_by} is a figure of served models: send a workload of kind serving", end="."
        )
    return predict_request


def resolve_candidates(
    snapshot: Snapshot, request: CompareRequest, predict_request: BaseRequest, today: date
) -> list[Candidate]:
    """Return the GPUs in request order, each once. Raises NotFound or BadInput at the wrong name or figure."""
    rows = GpuRows(snapshot)
    targets = rows.targets(predict_request)
    refs = [rows.id(target) for target in targets] if request.gpus == "all" else request.gpus
    first = {target: k for k, target in reversed([*enumerate(targets)])}
    resolved = sorted((k, refs[k], rows.spec(target)) for target, k in first.items())
    owner: dict[str, int] = {}
    for k, _, spec in resolved:
        if owner.setdefault(spec.id, k) != k:
            raise BadInput.at(
                ("gpus", k), f"another GPU in this request also has the id {spec.id!r}: send another id", end="."
            )
    specs = [spec for _, _, spec in resolved]
    prices = _by_gpu(snapshot, request.prices, "prices", specs, MOST_USD)
    watts = _by_gpu(snapshot, request.powers_w, "powers_w", specs, MOST_WATTS)
    owned = _owned(snapshot, request, specs)

    def rate(spec: GpuSpec) -> Rate | None:
        if spec.id in owned:
            return Rate(prices.get(spec.id, 0.0), GIVEN, usd_per_kwh=request.usd_per_kwh)
        return _rate(snapshot, prices, spec, today, request.price_term)

    rates = {spec.id: rate(spec) for spec in specs}
    return [Candidate(ref, spec, rates[spec.id], watts.get(spec.id)) for _, ref, spec in resolved]


def _rate(snapshot: Snapshot, prices: Mapping[str, float], spec: GpuSpec, today: date, term: str) -> Rate | None:
    """Return the request's price, else the stored one of the term that applies today."""
    if spec.id in prices:
        return Rate(prices[spec.id], GIVEN)
    stored = snapshot.engine.prices.find(spec.id, today, term)
    return None if stored is None else Rate.of(stored, today)


def _owned(snapshot: Snapshot, request: CompareRequest, specs: Sequence[GpuSpec]) -> set[str]:
    """Return the ids of the owned GPUs. Raises BadInput if they or the price of electricity are given alone."""
    if request.owned and request.usd_per_kwh is None:
        raise BadInput.at(("usd_per_kwh",), "owned GPUs cost electricity: send its price", end=".")
    if request.usd_per_kwh is not None and not request.owned:
        raise BadInput.at(("owned",), "electricity is paid for owned GPUs: send which are", end=".")
    names = _names(specs)
    return {_id_of(snapshot, names, name, ("owned", k)) for k, name in enumerate(request.owned)}


def _names(specs: Sequence[GpuSpec]) -> dict[str, str]:
    return {normalise(name): spec.id for spec in specs for name in (*spec.aliases, spec.name, spec.id)}


def _id_of(snapshot: Snapshot, names: Mapping[str, str], name: str, loc: tuple[str | int, ...]) -> str:
    """Return the id of a GPU of the request, or of any other. Raises NotFound with the location `loc`."""
    try:
        return names.get(normalise(name)) or snapshot.engine.catalog.resolve(name, families=True).id
    except NotFound as error:
        error.errors = (FieldError(loc, error.detail),)
        raise


def _by_gpu(
    snapshot: Snapshot, figures: Mapping[str, float], field: str, specs: Sequence[GpuSpec], most: float
) -> dict[str, float]:
    """Return figures by GPU id, keyed by any name of a GPU. Names of GPUs that are not compared are checked too."""
    names, by_id = _names(specs), dict[str, float]()
    for name, figure in figures.items():
        if not (isfinite(figure) and 0 <= figure <= most):
            raise BadInput.at((field, name), f"must be between 0 and {most:,.0f}, got {figure:g}", end=".")
        gpu = _id_of(snapshot, names, name, (field, name))
        if by_id.setdefault(gpu, figure) != figure:
            raise BadInput.at((field, name), f"another name of {gpu} has {by_id[gpu]:g}: send only one", end=".")
    return by_id


_HOUR_S, _KILO = 3600.0, 1e3
# Hours of a mean month.
MONTH_HOURS = 730


class Rate(NamedTuple):
    """Price of one device-hour, with its source; of an owned device its write-off, and the price of electricity."""

    usd_per_hour: float
    source: str
    warning: CodedWarning | None = None
    usd_per_kwh: float | None = None

    def at(self, watts: float) -> float:
        """Return US dollars per hour of a device that draws so many watts."""
        return self.usd_per_hour + (self.usd_per_kwh or 0.0) * watts / _KILO

    def under(self, power: Power | None) -> Rate | None:
        """Return the price of a device under a load; None for an owned one whose power is unknown."""
        if self.usd_per_kwh is None:
            return self
        if power is None:
            return None
        written_off = f", and {self.usd_per_hour:g} USD written off" if self.usd_per_hour else ""
        source = f"owned: {self.usd_per_kwh:g} USD per kWh at {power.middle:.0f} W{written_off} an hour"
        return self._replace(usd_per_hour=self.at(power.middle), source=source)

    def monthly(self, power: Power | None, board: Power | None, busy: float) -> float | None:
        """Return US dollars per month of a device under a load for the share `busy` of the hours; None: unknown power.

        A rented device is given back for the other hours; an owned one idles.
        """
        loaded = self.under(power)
        if loaded is None:
            return None
        idle = 0.0 if self.usd_per_kwh is None else self.at(0.0 if board is None else board.low)
        return MONTH_HOURS * (busy * loaded.usd_per_hour + (1.0 - busy) * idle)

    @classmethod
    def of(cls, price: Price, today: date) -> Rate:
        """Return the rate of a stored price, with a warning if it is old."""
        age, source = age_days(price, today), describe_source(price)
        text = f"the price of {price.gpu_id} is {age} days old ({source})"
        return cls(price.usd_per_hour, source, warning("price_stale", text) if age > STALE_DAYS else None)


def warnings_of(prediction: Prediction | ServingPrediction, rate: Rate | None) -> list[CodedWarning]:
    """Return the warnings of a prediction and of the price."""
    return [*prediction.warning_codes, *([rate.warning] if rate and rate.warning else [])]


def to_compared(prediction: Prediction, split: Split | None, rate: Rate | None, power: Power | None) -> Compared:
    """Return the prediction as time, throughput, cost and energy; not ranked yet."""
    devices = 1 if prediction.devices is UNSET else prediction.devices
    seconds, time = prediction.latency_ms / 1e3, prediction.interval_ms
    per_s, owned = _per_s(prediction), None if rate is None or rate.usd_per_kwh is None else rate
    rate = None if rate is None else rate.under(power)
    cost = None if rate is None else devices * rate.usd_per_hour / _HOUR_S
    watts = None if power is None else devices * power.middle
    warnings = warnings_of(prediction, rate)
    return Compared(
        0,
        prediction.gpu,
        devices,
        split,
        prediction.latency_ms,
        time,
        per_s,
        None if per_s is None else _inverse(per_s, prediction),
        None if cost is None else seconds * cost,
        None if cost is None else _cost(prediction, cost, owned, power),
        None if watts is None else seconds * watts,
        None if power is None else _energy(prediction, power, devices),
        None if power is None else power.middle,
        None if power is None else power.source,
        None if rate is None else rate.usd_per_hour,
        None if rate is None else rate.source,
        None if per_s is None or not cost else per_s / cost,
        None if per_s is None or not watts else per_s / watts,
        prediction.memory,
        prediction.bound,
        prediction.support,
        prediction.predictor,
        False,
        [],
        [each.text for each in warnings],
        warnings,
    )


def _per_s(prediction: Prediction) -> float | None:
    """Return sequences or images per second for a network, runs per second otherwise; None if it takes no time."""
    if prediction.latency_ms <= 0:
        return None
    return 1e3 / prediction.latency_ms if prediction.throughput_per_s is UNSET else prediction.throughput_per_s


def _inverse(per_s: float, prediction: Prediction) -> Interval:
    time = prediction.interval_ms
    return Interval.of(per_s, time.band(prediction.latency_ms).inverse(), time.coverage)


def _energy(prediction: Prediction, power: Power, devices: int) -> Interval:
    """Return the energy's interval. Errors of time and power are independent."""
    middle = prediction.latency_ms / 1e3 * devices * power.middle
    of_power = Band.of(power.middle, power.low, power.high, prediction.interval_ms.coverage)
    return _over_time(prediction, middle, of_power)


def _cost(prediction: Prediction, usd_per_s: float, owned: Rate | None, power: Power | None) -> Interval:
    """Return the cost's interval: that of time, and of an owned device also that of its power."""
    if owned is None or power is None or not usd_per_s:
        return prediction.interval_ms.scaled(usd_per_s / 1e3)
    each, low, high = (owned.at(watts) for watts in power[:3])
    of_rate = Band.of(each, low, high, prediction.interval_ms.coverage)
    return _over_time(prediction, prediction.latency_ms / 1e3 * usd_per_s, of_rate)


def _over_time(prediction: Prediction, middle: float, of_rate: Band[float]) -> Interval:
    """Return the interval of a rate x the predicted time, whose errors are independent."""
    time = prediction.interval_ms
    return Interval.of(middle, time.band(prediction.latency_ms).widened(of_rate), time.coverage)


ComparableWorkload: TypeAlias = KernelWorkload | OperatorsWorkload | NetworkWorkload


def device_load(workload: ComparableWorkload, graphs: Graphs | None) -> Load:
    """Return the operators of a device and how often each runs; for a pipelined network those of the mean stage."""
    if isinstance(workload, KernelWorkload):
        return Load(kernel_table([workload]), np.ones(1))
    if isinstance(workload, OperatorsWorkload):
        distinct = read_operators(workload.operators)
        return _load(distinct, distinct.repeats)
    network, run = resolve_network(workload, graphs)
    rows = prepare(network, run)
    load = _load(rows.distinct, runs_in_step(rows.workload, run) / run.parallelism.pipeline)
    return load._replace(eager=run.release.eager)


def errors_in_common(snapshot: Snapshot, workload: ComparableWorkload, graphs: Graphs | None) -> float:
    """Return the variance in log space that a network's errors have in common on all GPUs; 0 of other workloads."""
    if isinstance(workload, KernelWorkload | OperatorsWorkload):
        return 0.0
    network, run = resolve_network(workload, graphs)
    rows, gpus = prepare(network, run), snapshot.engine.gpus
    (levels,) = levels_of(rows, run, gpus, [0])
    return snapshot.engine.error_models[figure_of_step(rows, run)].in_common(levels)


def _load(distinct: Distinct, times: Floats) -> Load:
    """Return the load of rows that run `times` often, float64 [n]."""
    runs = np.bincount(distinct.row, weights=times, minlength=len(distinct.table))
    return Load(distinct.table, runs.astype(np.float64))


_PAIR = 2


def pareto(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether each row of `costs` [n, criteria] (less is better) is undominated, bool [n].

    A row dominates another if it is nowhere worse and somewhere better. An unknown cost (NaN) counts as infinite.
    """
    known = np.where(np.isnan(costs), np.inf, costs)
    if known.shape[1] == _PAIR and len(known):
        return _of_pairs(known)
    no_worse = np.all(known[:, None, :] <= known[None, :, :], axis=2)
    better = np.any(known[:, None, :] < known[None, :, :], axis=2)
    best: NDArray[np.bool_] = ~np.any(no_worse & better, axis=0)
    return best


def _of_pairs(known: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the same of two criteria, in the time of a sort: thousands of rows are compared."""
    levels, level = np.unique(known[:, 0], return_inverse=True)
    least = np.full(len(levels), np.inf)
    np.minimum.at(least, level, known[:, 1])
    before = np.minimum.accumulate(least)[:-1]
    undominated = np.concatenate([[True], least[1:] < before])
    best: NDArray[np.bool_] = undominated[level] & (known[:, 1] == least[level])
    return best
