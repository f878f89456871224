"""POST /compare: one workload predicted on all GPUs at once, then ranked in time, throughput, money or energy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Self

import numpy as np
from msgspec import structs

from app.engine.gpu_rows import Snapshot
from app.engine.power import Power, board_power, power_notes, stated_power
from app.engine.prices import today_utc
from app.services.compare.figures import compared
from app.services.compare.likelihood import Figures, alike
from app.services.compare.load import AskedWorkload, load_of
from app.services.compare.pareto import pareto
from app.services.compare.request import Asked, Entrant, asked_of, entrants
from app.services.compare.splits import devices_of, feasible
from app.services.dispatch import reply
from app.services.graphs.stored import Graphs
from app.wire.compare_form import Compared, CompareRequest, CompareResponse, Split
from app.wire.network_form import GraphRequest, ModelRequest, NetworkWorkload
from app.wire.prediction_form import Interval, Prediction, PredictResponse
from app.wire.rankings import RankBy

# What each ranking looks at: the figure, and its interval.
_FIGURES: Mapping[RankBy, tuple[str, str]] = {
    "latency": ("latency_ms", "interval_ms"),
    "throughput": ("throughput_per_s", "throughput_interval_per_s"),
    "cost": ("cost_usd", "cost_interval_usd"),
    "energy": ("energy_j", "energy_interval_j"),
}
_UNKNOWN: Mapping[RankBy, str] = {
    "cost": "no price is known, so it is ranked last: send one in prices, or import a table (gpucast prices import)",
    "energy": "no power is known, so it is ranked last: send one in powers_w",
    "throughput": "it takes no time, so it has no throughput",
}


def compare(
    snapshot: Snapshot,
    request: CompareRequest,
    *,
    max_rows: int,
    graphs: Graphs | None = None,
    today: date | None = None,
) -> CompareResponse:
    """Answer a request; NotFound, BadInput, TooLarge or NotTrained say what to send instead.

    `graphs` are those stored by POST /graphs; `today` decides which stored prices count.
    """
    comparing = Comparing.of(snapshot, request, max_rows=max_rows, graphs=graphs, today=today)
    answer = comparing.predicted(comparing.asked)
    rows = {found.gpu: comparing.row(found) for found in answer.predictions}
    for row in comparing.searched(rows):
        rows[row.gpu] = min(rows[row.gpu], row, key=lambda one: _order(one, request.rank_by))
    ranked = _ranked([*rows.values()], request.rank_by)
    notes = power_notes(row.power_source for row in ranked)
    return CompareResponse(request.rank_by, ranked, answer.skipped, notes)


def figure_of(row: Compared, rank_by: RankBy) -> tuple[float | None, Interval | None]:
    """The figure that is ranked by, and its interval; None where it is not known."""
    name, interval = _FIGURES[rank_by]
    return getattr(row, name), getattr(row, interval)


@dataclass(frozen=True, slots=True)
class Comparing:
    """A request whose GPUs are found, by their ids."""

    snapshot: Snapshot
    request: CompareRequest
    asked: Asked
    entered: Mapping[str, Entrant]
    max_rows: int
    graphs: Graphs | None

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        request: CompareRequest,
        *,
        max_rows: int,
        graphs: Graphs | None = None,
        today: date | None = None,
    ) -> Self:
        """With the request's workload read and its GPUs found; BadInput or NotFound otherwise."""
        asked = asked_of(request)
        entered = {one.spec.id: one for one in entrants(snapshot, request, asked, today or today_utc())}
        return cls(snapshot, request, asked, entered, max_rows, graphs)

    def predicted(self, asked: Asked) -> PredictResponse:
        """As POST /predict answers."""
        found = reply(self.snapshot, asked, max_rows=self.max_rows, graphs=self.graphs, advise=False)
        assert isinstance(found, PredictResponse)
        return found

    def row(self, found: Prediction, workload: NetworkWorkload | None = None) -> Compared:
        """A prediction in all figures; `workload` is how a network is split, unless as asked."""
        entrant = self.entered[found.gpu]
        asked = self.asked.workload if workload is None else workload
        return compared(found, _split_of(asked), entrant.rate, self._power(entrant, found, asked))

    def _power(self, entrant: Entrant, found: Prediction, workload: AskedWorkload) -> Power | None:
        """The request's word, else what was measured, else what the board allows."""
        known = self.snapshot.engine.power
        if entrant.watts is not None:
            return stated_power(entrant.watts)
        if known.pooled is None and not known.own:
            return board_power(entrant.spec)
        load = load_of(workload, self.graphs)
        return known.power(entrant.spec, load, found.latency_ms / 1e3, self.request.coverage)

    def searched(self, rows: Mapping[str, Compared]) -> Iterator[Compared]:
        """Every other way to split the network, on the GPUs where it fits: of those that need it, or of all."""
        asked, request = self.asked, self.request
        if not isinstance(asked, ModelRequest | GraphRequest):
            return
        workload, alone = asked.workload, devices_of(asked.workload.parallelism) == 1
        gpus = [gpu for gpu, row in rows.items() if request.search_parallelism or (alone and not row.memory.fits)]
        if not gpus:
            return
        capacity = [self.entered[gpu].spec.memory_bytes for gpu in gpus]
        for split, fits in feasible(workload, int(request.max_devices), capacity, self.graphs):
            refs = [self.entered[gpus[k]].ref for k in fits]
            answer = self.predicted(structs.replace(asked, workload=split, gpus=refs))
            yield from (self.row(found, split) for found in answer.predictions)


def _split_of(workload: object) -> Split | None:
    """How a network is split; None of anything else."""
    if not isinstance(workload, NetworkWorkload):
        return None
    asked = workload.parallelism
    return Split(**{name: int(getattr(asked, name)) for name in Split.__struct_fields__})


def _order(row: Compared, rank_by: RankBy) -> tuple[bool, bool, float, str]:
    """What fits goes before what does not, the known to the unknown (fastest first), better to worse."""
    figure, _ = figure_of(row, rank_by)
    if figure is None:
        return not row.memory.fits, True, row.latency_ms, row.gpu
    return not row.memory.fits, False, -figure if rank_by == "throughput" else figure, row.gpu


def _ranked(rows: Sequence[Compared], rank_by: RankBy) -> list[Compared]:
    """The rows in their order, with what only shows beside others."""
    ordered = sorted(rows, key=lambda row: _order(row, rank_by))
    unsure, best = _unsure(ordered, rank_by), _pareto(ordered)
    return [
        structs.replace(
            row,
            rank=k + 1,
            pareto=row.gpu in best,
            indistinguishable_from=unsure.get(row.gpu, []),
            warnings=[*row.warnings, *([_UNKNOWN[rank_by]] if figure_of(row, rank_by)[0] is None else [])],
        )
        for k, row in enumerate(ordered)
    ]


def _unsure(ordered: Sequence[Compared], rank_by: RankBy) -> dict[str, list[str]]:
    """Per GPU those that it cannot be told apart from, best first, by the figure ranked by."""
    fit = [(row, *figure_of(row, rank_by)) for row in ordered if row.memory.fits]
    known = [(row, figure, ends) for row, figure, ends in fit if figure is not None and ends is not None]
    if not known:
        return {}
    columns = zip(*((figure, ends.low, ends.high) for _, figure, ends in known), strict=True)
    middle, low, high = (np.array(column, dtype=np.float64) for column in columns)
    same = alike(Figures(middle, low, high, known[0][2].coverage))
    return {row.gpu: [known[j][0].gpu for j in np.flatnonzero(same[i])] for i, (row, _, _) in enumerate(known)}


def _pareto(rows: Sequence[Compared]) -> set[str]:
    """GPUs of the Pareto set of time, money and energy; one whose memory is too small is no choice."""
    fit = [row for row in rows if row.memory.fits]
    if not fit:
        return set()
    costs = np.array([(row.latency_ms, row.cost_usd, row.energy_j) for row in fit], dtype=np.float64)  # None is NaN
    return {row.gpu for row, best in zip(fit, pareto(costs), strict=True) if best}
