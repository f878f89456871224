"""Partition a network over unequal GPUs (POST /partition; PM2Lat, section IV-D)."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from app.bands.band import EXACT, Band, sum_correlated
from app.bands.coverage import COVERAGE
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import BadInput
from app.networks.partition import Partition, Units, partition, units_of
from app.services.graphs.graph_store import Graphs
from app.services.models.resolve_networks import resolve_network
from app.services.operators.predict_operators import (
    gpu_warnings,
    require_predictor,
    supported_targets,
    unsupported_dtypes,
)
from app.steps.networks import Prepared, prepare
from app.steps.schedule import EAGER_GAP_S
from app.steps.stages import RESERVE_BYTES
from app.steps.timing import Step, StepQuery, time_step
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuSpec
from app.tables.ops import OpTable
from app.tables.predictions import EXTRAPOLATED
from app.warning_codes import CodedWarning, warning
from app.wire.decoding import decode
from app.wire.graph_form import GraphRequest, NetworkRequest
from app.wire.network_form import PARTITION_EXAMPLE, Cut, ModelRequest, PartitionRequest, PartitionResponse, Stage
from app.wire.predict_body import read_request
from app.wire.prediction_form import AnsweredBy, Interval, MemoryUse

# The dynamic program visits every pair of units.
MOST_UNITS = 3_000
_DECODER = msgspec.json.Decoder(PartitionRequest)


def read_partition(body: bytes) -> tuple[PartitionRequest, NetworkRequest]:
    """Return the request, and the predict request in it, from JSON. Raises Malformed or BadInput."""
    request = decode(_DECODER, body, example=PARTITION_EXAMPLE)
    inner = {name: getattr(request, name) for name in ("gpus", "workload", "predictor", "coverage")}
    predict_request = read_request(msgspec.json.encode(inner))
    if not isinstance(predict_request, ModelRequest | GraphRequest):
        raise BadInput.at(("workload", "kind"), "only a model or a graph can be cut into stages", end=".")
    return request, predict_request


def partition_network(
    snapshot: Snapshot, request: PartitionRequest, predict_request: NetworkRequest, graphs: Graphs | None = None
) -> PartitionResponse:
    """Return the best partition. Raises NotFound, BadInput or NotTrained. `graphs` holds those of POST /graphs."""
    engine, rows = snapshot.engine, GpuRows(snapshot)
    targets = rows.targets(predict_request)
    require_predictor(engine, rows, predict_request.predictor, targets)
    network, run = resolve_network(predict_request.workload, graphs)
    if run.mode == "training" or run.parallelism.devices > 1:
        raise BadInput.at(
            ("workload",), "partitions are for inference, prefill or decode, without parallelism", end="."
        )
    ready = prepare(network, run)
    gpus = rows.table()
    table, work = ready.distinct.table, ready.work
    supported_targets(engine, table, work, gpus, targets, partial(_refusal, table), assumed=run.assumed)
    units = units_of(ready.workload)
    if not len(targets) <= len(units.block) <= MOST_UNITS:
        message = f"{len(units.block):,} units cannot be cut into {len(targets)} stages (at most {MOST_UNITS:,} units)"
        raise BadInput.at(("workload",), message, end=".")
    launched = run.release.eager
    query = StepQuery(engine, gpus, targets, predict_request.predictor)
    step = time_step(query, ready, run, launched=launched)
    links = _links(request, rows, targets)
    link_s = _link_s(units, links.bytes_per_s, request.link_latency_ms * 1e-3)
    capacity = np.array([rows.spec(target).memory_bytes for target in targets])
    best = partition(
        units, _unit_s(ready, units, step, run.release.eager_host_s * launched), link_s, capacity, RESERVE_BYTES
    )
    answering = AnsweredBy(predict_request.predictor, engine.version_of(predict_request.predictor, rows.id(targets[0])))
    notes = _notes(rows, targets, predict_request.predictor, step, best, links.over_slot)
    stages = _stages(
        ready, units, best, link_s, step.band, predict_request.coverage, [rows.spec(target).id for target in targets]
    )
    return PartitionResponse(
        _cut(best, stages, float(run.batch), predict_request.coverage, answering, notes),
        [
            float(total) * 1e3 if ready.memory.required_bytes <= room else None
            for total, room in zip(step.done.step_s, capacity, strict=True)
        ],
    )


def _refusal(table: OpTable, gpu: str, missing: Ints) -> BadInput:
    """That a GPU lacks a number format of the network."""
    return BadInput.at(("workload", "dtype"), unsupported_dtypes(gpu, table, missing), end=".")


def _unit_s(ready: Prepared, units: Units, step: Step, host_s: float) -> Floats:
    """Return the time of every unit on every GPU, float64 [u, g]: the larger of device time and host launch time.

    `host_s`: host seconds per operator; 0 where the host launches none.
    """
    workload, table = ready.workload, ready.distinct.table
    each = step.answer.latency_s.reshape(-1, len(table)).T[ready.distinct.row]
    gap, host = EAGER_GAP_S if host_s else 0.0, host_s
    count = workload.ops.column("count")[:, None]
    device, issued = count * (each + gap), count * host
    whole = np.zeros((2, len(workload.repeats), each.shape[1]))
    np.add.at(whole[0], workload.block, device)
    np.add.at(whole[1], workload.block, np.broadcast_to(issued, each.shape))
    one = np.maximum(device, issued)[units.row]
    times: Floats = np.where(units.row[:, None] < 0, whole.max(axis=0)[units.block], one)
    return times


class _Links(NamedTuple):
    """Links between consecutive stages, [stages - 1]: bytes per second, and whether they go over a slot."""

    bytes_per_s: Floats
    over_slot: Bools


def _links(request: PartitionRequest, rows: GpuRows, targets: list[int]) -> _Links:
    """Return the link into each stage but the first: as requested, else the GPUs' link if it joins both, else slots."""
    if request.link_bandwidth_bytes_per_s is not None:
        rates_given = np.full(len(targets) - 1, request.link_bandwidth_bytes_per_s)
        return _Links(rates_given, np.zeros(len(rates_given), dtype=np.bool_))
    specs = [rows.spec(target) for target in targets]
    rates, slotted, alike = [], [], 1
    for first, other in pairwise(specs):
        joined = first == other and alike % (first.link_domain_gpus or len(specs)) > 0
        alike = alike + 1 if first == other else 1
        rates.append(min(_rate(spec, joined=joined) for spec in (first, other)))
        slotted.append(not joined and any(_slot(spec) is not None for spec in (first, other)))
    return _Links(np.array(rates), np.array(slotted, dtype=np.bool_))


def _rate(spec: GpuSpec, *, joined: bool) -> float:
    """Return bytes per second to a device on the same link, or to any other."""
    slot = None if joined else _slot(spec)
    if (rate := slot or spec.link_bandwidth_bytes_per_s) is None:
        raise BadInput.at(("link_bandwidth_bytes_per_s",), f"required: the link of {spec.id} is not known", end=".")
    return rate


def _slot(spec: GpuSpec) -> float | None:
    """Return bytes per second of the slot of a device whose link joins only some others; None for others and racks."""
    return None if spec.link_domain_gpus is None else spec.slot_bandwidth_bytes_per_s


def _link_s(units: Units, links: Floats, latency_s: float) -> Floats:
    """Return the transfer time of each unit's input to each stage, float64 [u, stages]."""
    times = np.zeros((len(units.block), len(links) + 1))
    times[1:, 1:] = units.sent_bytes[:-1, None] / links + latency_s
    return times


def _stages(
    ready: Prepared,
    units: Units,
    best: Partition,
    link_s: Floats,
    band: Band[Floats],
    coverage: float,
    ids: list[str],
) -> list[Stage]:
    """Return the stages; each takes as much longer or less than the whole step would on its GPU, its transfer aside."""
    names = _names(ready, units)
    stages = []
    for s, gpu in enumerate(ids):
        first, last = int(best.first[s]), int(best.first[s + 1]) - 1
        latency, transfer = float(best.stage_s[s]) * 1e3, float(link_s[first, s]) * 1e3
        computed = Band(float(band.below[s]), float(band.above[s]))
        of_stage = sum_correlated([(latency - transfer, computed), (transfer, EXACT)])
        stages.append(
            Stage(
                gpu,
                first,
                last,
                names[first],
                names[last],
                latency,
                Interval.of(latency, of_stage, coverage),
                transfer,
                float(units.sent_bytes[last]) if s + 1 < len(ids) else 0.0,
                MemoryUse(float(best.bytes[s]), float(best.capacity_bytes[s]), bool(best.fits[s])),
            )
        )
    return stages


def _names(ready: Prepared, units: Units) -> list[str]:
    """Return the name of each unit: its operator, or its layer number."""
    names, layer = [], 0
    for row in units.row.tolist():
        layer += row < 0
        names.append(f"layer {layer}" if row < 0 else ready.workload.names[row])
    return names


def _cut(
    best: Partition, stages: list[Stage], batch: float, coverage: float, answered: AnsweredBy, notes: list[CodedWarning]
) -> Cut:
    slowest = stages[int(best.stage_s.argmax())]
    at_80 = [stage.interval_ms.band(stage.latency_ms).ends(stage.latency_ms, COVERAGE) for stage in stages]
    low, high = (max(ends) for ends in zip(*at_80, strict=True))
    return Cut(
        stages,
        slowest.latency_ms,
        Interval.of(slowest.latency_ms, Band.of(slowest.latency_ms, low, high), coverage),
        best.latency_s * 1e3,
        batch / best.bottleneck_s,
        bool(best.fits.all()),
        int(best.first[-1]),
        answered,
        [each.text for each in notes],
        notes,
    )


def _notes(
    rows: GpuRows, targets: list[int], predictor: str, step: Step, best: Partition, over_slot: Bools
) -> list[CodedWarning]:
    notes = []
    unmeasured = (step.answer.support == EXTRAPOLATED).reshape(len(targets), -1).sum(axis=1).tolist()
    unanswered = (~step.answer.answered).reshape(len(targets), -1).sum(axis=1).tolist()
    for k, target in enumerate(targets):
        messages = gpu_warnings(
            rows.spec(target),
            predictor,
            unanswered=unanswered[k],
            unmeasured=unmeasured[k],
            slotted=_slot(rows.spec(target)) is not None and bool(over_slot[max(k - 1, 0) : k + 1].any()),
            notes=rows.notes(target),
        )
        notes += [CodedWarning(each.code, f"{rows.id(target)}: {each.text}") for each in messages]
        if not best.fits[k]:
            text = f"{rows.id(target)}: no partition fits the memory of all GPUs; this one has too little"
            notes.append(warning("memory_exceeded", text))
    return notes
