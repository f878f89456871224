"""Compare GPUs on one workload (POST /compare): predict on all, then rank by time, throughput, cost or energy.

Splits of a network over devices have sizes that are powers of two. Tensor ranks stay within one machine, as is common
practice. Microbatches fill a pipeline as far as the batch divides. The first stage of ZeRO that fits is used, because
later ones only cost time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import product
from typing import Self

import numpy as np
from msgspec import structs

from app.bands.band import Band, are_tied
from app.engine.power import Power, power_notes, stated_power
from app.engine.prices import today_utc
from app.engine.snapshot import Snapshot
from app.errors import BadInput
from app.predictors.links import link_refusal
from app.services.compare.request import (
    Candidate,
    ComparableWorkload,
    SingleWorkloadRequest,
    device_load,
    errors_in_common,
    pareto,
    resolve_candidates,
    to_compared,
    to_single_request,
)
from app.services.dispatch import predict_workload
from app.services.graphs.graph_store import Graphs
from app.services.models.resolve_networks import resolve_network
from app.stacks.release import release_of
from app.steps.networks import check_stages, forward_rows
from app.steps.stages import memory
from app.tables.gpus import DEVICES_PER_NODE
from app.warning_codes import CodedWarning, warning
from app.wire.compare_form import Compared, CompareRequest, CompareResponse, RankBy, Split
from app.wire.graph_form import GraphRequest, NetworkWorkload
from app.wire.network_form import ModelRequest, ParallelismIn
from app.wire.prediction_form import Interval, Prediction, PredictResponse

# Field of the figure per ranking, and of its interval.
_FIGURES: Mapping[RankBy, tuple[str, str]] = {
    "latency": ("latency_ms", "interval_ms"),
    "throughput": ("throughput_per_s", "throughput_interval_per_s"),
    "cost": ("cost_usd", "cost_interval_usd"),
    "energy": ("energy_j", "energy_interval_j"),
}
# Why a row without the ranked figure is last.
UNRANKED: Mapping[RankBy, CodedWarning] = {
    "cost": warning(
        "price_unknown",
        "no price is known, so it is ranked last: send one in prices, or import a table (gpucast prices import)",
    ),
    "energy": warning("power_unknown", "no power is known, so it is ranked last: send one in powers_w"),
    "throughput": warning("throughput_unknown", "it takes no time, so it has no throughput"),
}


def compare(
    snapshot: Snapshot,
    request: CompareRequest,
    *,
    max_rows: int,
    graphs: Graphs | None = None,
    today: date | None = None,
) -> CompareResponse:
    """Return the ranked GPUs. Raises NotFound, BadInput, TooLarge or NotTrained with what to send instead.

    `graphs` holds those stored by POST /graphs; `today` selects the stored prices that apply.
    """
    predict_request = to_single_request(request)
    comparison = Comparison.of(snapshot, request, predict_request, max_rows=max_rows, graphs=graphs, today=today)
    answer = comparison.predict(comparison.predict_request)
    rows = {prediction.gpu: comparison.row(prediction) for prediction in answer.predictions}
    for row in comparison.search_splits(rows):
        rows[row.gpu] = min(rows[row.gpu], row, key=lambda option: _order(option, request.rank_by))
    ranked = _ranked([*rows.values()], request.rank_by, errors_in_common(snapshot, predict_request.workload, graphs))
    notes = power_notes(row.power_source for row in ranked)
    return CompareResponse(request.rank_by, ranked, answer.skipped, notes)


def figure_of(row: Compared, rank_by: RankBy) -> tuple[float | None, Interval | None]:
    """Return the ranked figure and its interval; None where unknown."""
    name, interval = _FIGURES[rank_by]
    return getattr(row, name), getattr(row, interval)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A compare request with resolved GPUs, by id."""

    snapshot: Snapshot
    request: CompareRequest
    predict_request: SingleWorkloadRequest
    candidates: Mapping[str, Candidate]
    max_rows: int
    graphs: Graphs | None

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        request: CompareRequest,
        predict_request: SingleWorkloadRequest,
        *,
        max_rows: int,
        graphs: Graphs | None = None,
        today: date | None = None,
    ) -> Self:
        """Return the comparison with its GPUs resolved. Raises BadInput or NotFound."""
        resolved = resolve_candidates(snapshot, request, predict_request, today or today_utc())
        candidates = {candidate.spec.id: candidate for candidate in resolved}
        return cls(snapshot, request, predict_request, candidates, max_rows, graphs)

    def predict(self, request: SingleWorkloadRequest) -> PredictResponse:
        """Return the answer that POST /predict would give."""
        answer = predict_workload(self.snapshot, request, max_rows=self.max_rows, graphs=self.graphs, advise=False)
        assert isinstance(answer, PredictResponse)
        return answer

    def row(self, prediction: Prediction, workload: NetworkWorkload | None = None) -> Compared:
        """Return a prediction with all figures; `workload` is the split network, if not as requested."""
        candidate = self.candidates[prediction.gpu]
        requested: ComparableWorkload = self.predict_request.workload if workload is None else workload
        return to_compared(
            prediction, _split_of(requested), candidate.rate, self._power(candidate, prediction, requested)
        )

    def _power(self, candidate: Candidate, prediction: Prediction, workload: ComparableWorkload) -> Power | None:
        """Return the power stated in the request, else from the power model."""
        model = self.snapshot.engine.power
        if candidate.watts is not None:
            return stated_power(candidate.watts)
        load = device_load(workload, self.graphs)
        at = self.snapshot.table_of(candidate.spec)
        return model.power(candidate.spec, load, prediction.latency_ms / 1e3, self.request.coverage, at)

    def search_splits(self, rows: Mapping[str, Compared]) -> Iterator[Compared]:
        """Yield all other splits of a network on the GPUs where they fit: GPUs that need a split, or all on request."""
        predict_request, request = self.predict_request, self.request
        if not isinstance(predict_request, ModelRequest | GraphRequest):
            return
        workload, alone = predict_request.workload, device_count(predict_request.workload.parallelism) == 1
        gpus = [gpu for gpu, row in rows.items() if request.search_parallelism or (alone and not row.memory.fits)]
        if not gpus:
            return
        capacity = [self.candidates[gpu].spec.memory_bytes for gpu in gpus]
        for split, fits in feasible_splits(workload, int(request.max_devices), capacity, self.graphs):
            devices = int(device_count(split.parallelism) // split.parallelism.nodes)
            tried, link = [self.candidates[gpus[k]] for k in fits], split.parallelism.link
            refs = [one.ref for one in tried if not link_refusal(one.spec, link, devices)]
            if not refs:
                continue
            answer = self.predict(structs.replace(predict_request, workload=split, gpus=refs))
            yield from (self.row(prediction, split) for prediction in answer.predictions)


def _split_of(workload: object) -> Split | None:
    """Return how a network is split; None for other workloads."""
    if not isinstance(workload, NetworkWorkload):
        return None
    parallelism = workload.parallelism
    sizes = {name: getattr(parallelism, name) for name in Split.__struct_fields__}
    if parallelism.zero is None:
        sizes["zero"] = release_of(workload.software or "", workload.mode).zero
    return Split(**{name: int(size) for name, size in sizes.items()})


def _order(row: Compared, rank_by: RankBy) -> tuple[bool, bool, float, str]:
    """Sort key: workloads that fit first, then known figures, then better ones; unknown figures by latency."""
    figure, _ = figure_of(row, rank_by)
    if figure is None:
        return not row.memory.fits, True, row.latency_ms, row.gpu
    return not row.memory.fits, False, -figure if rank_by == "throughput" else figure, row.gpu


def _ranked(rows: Sequence[Compared], rank_by: RankBy, common: float) -> list[Compared]:
    """Return the rows in ranked order, with the fields that depend on the other rows.

    `common`: the variance that their errors have in common.
    """
    ordered = sorted(rows, key=lambda row: _order(row, rank_by))
    ties, best = _ties(ordered, rank_by, common), _pareto(ordered)
    unranked = [[UNRANKED[rank_by]] if figure_of(row, rank_by)[0] is None else [] for row in ordered]
    warnings = [[*row.warning_codes, *added] for row, added in zip(ordered, unranked, strict=True)]
    return [
        structs.replace(
            row,
            rank=k + 1,
            pareto=row.gpu in best,
            indistinguishable_from=ties.get(row.gpu, []),
            warnings=[each.text for each in warnings[k]],
            warning_codes=warnings[k],
        )
        for k, row in enumerate(ordered)
    ]


def _ties(ordered: Sequence[Compared], rank_by: RankBy, common: float) -> dict[str, list[str]]:
    """Return, per GPU, those statistically tied with it in the ranked figure, best first."""
    fit = [(row, *figure_of(row, rank_by)) for row in ordered if row.memory.fits]
    known = [(row, figure, ends) for row, figure, ends in fit if figure is not None and ends is not None]
    if not known:
        return {}
    columns = zip(*((figure, ends.low, ends.high) for _, figure, ends in known), strict=True)
    middle, low, high = (np.array(column, dtype=np.float64) for column in columns)
    coverage = known[0][2].coverage
    tied = are_tied(middle, Band.of(middle, low, high, coverage), coverage, common)
    return {row.gpu: [known[j][0].gpu for j in np.flatnonzero(tied[i])] for i, (row, _, _) in enumerate(known)}


def _pareto(rows: Sequence[Compared]) -> set[str]:
    """Return the GPUs of the Pareto set of time, cost and energy, among those with enough memory."""
    fit = [row for row in rows if row.memory.fits]
    if not fit:
        return set()
    costs = np.array([(row.latency_ms, row.cost_usd, row.energy_j) for row in fit], dtype=np.float64)  # None is NaN
    return {row.gpu for row, best in zip(fit, pareto(costs), strict=True) if best}


# With this many microbatches per pipeline stage, bubbles take at most a fifth of the time.
_MICROBATCHES = 4
_ZERO: tuple[int, ...] = (0, 1, 2, 3)


def feasible_splits(
    workload: NetworkWorkload, most: int, capacity_bytes: Sequence[float], graphs: Graphs | None
) -> Iterator[tuple[NetworkWorkload, list[int]]]:
    """Yield possible splits over at most `most` devices, with the GPUs (rows of `capacity_bytes`) where each fits."""
    for data, tensor, pipeline in _sizes(most):
        left = list(range(len(capacity_bytes)))
        for zero in _ZERO if workload.mode == "training" and data > 1 else _ZERO[:1]:
            split = _split(workload, data, tensor, pipeline, zero)
            required = None if split is None else _required_bytes(split, graphs)
            if split is None or required is None:
                break
            if fits := [k for k in left if required <= capacity_bytes[k]]:
                yield split, fits
            left = [k for k in left if k not in fits]
            if not left:
                break


def _sizes(most: int) -> Iterator[tuple[int, int, int]]:
    powers = [2**k for k in range(most.bit_length()) if 2**k <= most]
    for data, tensor, pipeline in product(powers, powers, powers):
        if data * tensor * pipeline <= most and tensor <= DEVICES_PER_NODE:
            yield data, tensor, pipeline


def _split(workload: NetworkWorkload, data: int, tensor: int, pipeline: int, zero: int) -> NetworkWorkload | None:
    """Return the workload with this split; None if the batch does not divide."""
    each, rest = divmod(int(workload.batch), data * int(workload.gradient_accumulation))
    if rest:
        return None
    parallelism = workload.parallelism
    filling = [m for m in (2**k for k in range((_MICROBATCHES * pipeline).bit_length())) if each % m == 0]
    fields: dict[str, object] = {
        "data": data,
        "tensor": tensor,
        "pipeline": pipeline,
        "context": 1,
        "virtual_pipeline": 1,
        "microbatches": filling[-1] if pipeline > 1 else 1,
        "nodes": max(data * tensor * pipeline // DEVICES_PER_NODE, 1),
        "sequence": parallelism.sequence and tensor > 1,
        "expert": parallelism.expert if data * tensor % parallelism.expert == 0 else 1,
        "zero": zero,
    }
    return structs.replace(workload, parallelism=structs.replace(parallelism, **fields))


def _required_bytes(workload: NetworkWorkload, graphs: Graphs | None) -> float | None:
    """Return bytes on the fullest device; None if the network cannot be split this way."""
    try:
        network, run = resolve_network(workload, graphs)
        rows = forward_rows(network, run)
        check_stages(rows, run)
    except BadInput:
        return None
    return memory(rows, run).required_bytes


def device_count(split: ParallelismIn) -> int:
    """Return the number of devices of a split."""
    return int(split.data * split.tensor * split.pipeline)
