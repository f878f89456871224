"""Compare GPUs on a served model (POST /compare, kind serving)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date

import numpy as np
from msgspec import structs

from app.engine.power import power_notes
from app.engine.snapshot import Snapshot
from app.services.compare.pareto import pareto
from app.services.compare.request import Candidate, resolve_candidates
from app.services.compare.served_options import cost_of, deployments, split_of
from app.services.serving.deployment import Deployment, resolve_deployment
from app.services.serving.predict_serving import predict_serving
from app.warning_codes import CodedWarning, texts, warning
from app.wire.compare_form import ComparedServing, CompareRequest, RankBy, ServingCompareResponse
from app.wire.serving_form import ServingPrediction, ServingRequest

_UNRANKED: Mapping[RankBy, CodedWarning] = {
    "cost": warning(
        "price_unknown",
        "no price is known, so it is ranked last: send one in prices, or import a table (gpucast prices import)",
    ),
    "cost_per_million_tokens": warning(
        "price_unknown", "no price is known, so it is ranked last: send one in prices, or import a table"
    ),
    "energy": warning("power_unknown", "no power is known, so it is ranked last: send one in powers_w"),
}


def compare_served(
    snapshot: Snapshot, request: CompareRequest, asked: ServingRequest, *, max_rows: int, today: date
) -> ServingCompareResponse:
    """Return the ranked GPU types; those that the load saturates, or the model does not fit, get other splits."""
    candidates = {one.spec.id: one for one in resolve_candidates(snapshot, request, asked, today)}
    answer = predict_serving(snapshot, asked, max_rows=max_rows)
    given = resolve_deployment(asked.workload)
    rows = {row.gpu: row for row in _rows(snapshot, candidates, given, answer.predictions)}
    wider = [gpu for gpu, row in rows.items() if request.search_parallelism or row.serving.saturated]
    for deployment in deployments(asked.workload, int(request.max_devices)) if wider else ():
        if deployment.devices < given.devices and not request.search_parallelism:
            continue  # bears no more than the given split
        refs = [candidates[gpu].ref for gpu in wider if request.search_parallelism or rows[gpu].serving.saturated]
        if not refs:
            break
        tried = structs.replace(asked, gpu=None, gpus=refs, workload=deployment.workload)
        found = predict_serving(snapshot, tried, max_rows=max_rows).predictions
        for row in _rows(snapshot, candidates, deployment, found):
            rows[row.gpu] = min(rows[row.gpu], row, key=lambda option: _order(option, request.rank_by))
    ranked = _ranked([*rows.values()], request.rank_by)
    return ServingCompareResponse(
        request.rank_by, ranked, answer.skipped, power_notes(row.cost.power_source for row in ranked)
    )


def _rows(
    snapshot: Snapshot,
    candidates: Mapping[str, Candidate],
    deployment: Deployment,
    found: Sequence[ServingPrediction],
) -> Iterator[ComparedServing]:
    for one in found:
        served = one.serving
        cost = cost_of(snapshot, candidates[one.gpu], deployment, served)
        yield ComparedServing(
            rank=0,
            gpu=one.gpu,
            devices=one.devices,
            parallelism=split_of(deployment),
            latency_ms=one.latency_ms,
            interval_ms=one.interval_ms,
            tokens_per_s=served.output_tokens_per_s,
            tokens_per_s_per_gpu=served.output_tokens_per_s_per_gpu,
            tokens_per_s_per_user=None if served.tpot_ms is None else 1e3 / served.tpot_ms.mean,
            cost=cost,
            cost_per_million_tokens=cost.cost_per_million_tokens,
            memory=one.memory,
            bound=one.bound,
            support=one.support,
            predictor=one.predictor,
            serving=served,
            pareto=False,
            warnings=one.warnings,
            warning_codes=one.warning_codes,
        )


def _figure(row: ComparedServing, rank_by: RankBy) -> float | None:
    """Return the ranked figure, less is better; of cost and energy that of a generated token."""
    if rank_by in ("throughput", "tokens_per_s_per_gpu"):
        rate = row.tokens_per_s if rank_by == "throughput" else row.tokens_per_s_per_gpu
        return None if rate is None else -rate
    if rank_by == "latency":
        return row.latency_ms
    return row.cost.energy_per_token_j if rank_by == "energy" else row.cost_per_million_tokens


def _order(row: ComparedServing, rank_by: RankBy) -> tuple[bool, bool, float, str]:
    """Sort key: deployments that fit first, then known figures, then better ones; of saturated ones who bear most."""
    figure = _figure(row, rank_by)
    if figure is None:
        figure = -row.serving.highest_rate_per_s if row.serving.saturated else row.devices
        return not row.memory.fits, True, figure, row.gpu
    return not row.memory.fits, False, figure, row.gpu


def _ranked(rows: Sequence[ComparedServing], rank_by: RankBy) -> list[ComparedServing]:
    ordered = sorted(rows, key=lambda row: _order(row, rank_by))
    costs = np.array(
        [[-(row.tokens_per_s_per_user or np.nan), -(row.tokens_per_s_per_gpu or np.nan)] for row in ordered]
    )
    best = pareto(costs.reshape(-1, 2)) & np.isfinite(costs.reshape(-1, 2)).all(axis=1)
    note = _UNRANKED.get(rank_by)
    unranked = [[note] if note and row.tokens_per_s and _figure(row, rank_by) is None else [] for row in ordered]
    warnings = [[*row.warning_codes, *added] for row, added in zip(ordered, unranked, strict=True)]
    return [
        structs.replace(
            row,
            rank=k + 1,
            pareto=bool(best[k]),
            warnings=texts(warnings[k]),
            warning_codes=warnings[k],
        )
        for k, row in enumerate(ordered)
    ]
