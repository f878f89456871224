"""Render the explanations of predictions (`detail`) in the HTTP contract's terms."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Literal

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from app.bands.groups import S_UNTRAINED, SITUATIONS
from app.predictors.auto.operators.explain import Explanation as Explained
from app.predictors.auto.operators.explain import Member
from app.predictors.base import explainer
from app.predictors.links import gpu_id_of, over_link
from app.steps.predict_rows import OperatorQuery
from app.tables.predictions import Predictions
from app.wire.prediction_form import Explanation, MemberAnswer, NetworkParts, PhysicsTerms, RooflinePosition, TileUse

_UNTRAINED = SITUATIONS[S_UNTRAINED]


def explanations(query: OperatorQuery, target: int, answer: Predictions) -> Sequence[Explanation | UnsetType]:
    """Return an explanation per row on GPU row `target`, for the query's `answer`; UNSET if it has none."""
    served = query.engine.serving(query.predictor, query.gpus.ids[target]).predictor
    if not explainer(served):
        return [UNSET] * len(query.requested)
    parts = query.parts(answer, target)
    gpus, j, link = query.gpus, np.full(len(parts.ops), target), query.surroundings.link
    if link is not None:
        gpus, j = over_link(parts.ops, gpus, np.arange(len(j)), j, link)
    rendered = [_render(item) for item in served.explained(parts.ops, gpus, j, parts.answer)]
    seconds = np.stack([*(part[:, 0] for part in parts.across), answer.limit_s[parts.several]], axis=1)
    for q, nodes, times in zip(parts.several.tolist(), parts.nodes.tolist(), seconds.tolist(), strict=True):
        rendered[q] = _over_nodes(rendered[q], int(nodes), times)
    return rendered


def _over_nodes(node: Explanation, nodes: int, seconds: Sequence[float]) -> Explanation:
    """Return the explanation over nodes; `node` explains one node's part, `seconds` are all parts and the limit."""
    inside, adapters, hops, limit = seconds
    bound: Literal["node", "network", "limit"] = "node" if inside > adapters else "network"
    if limit > max(inside, adapters) + hops:
        bound = "limit"
    network = NetworkParts(nodes, inside * 1e3, adapters * 1e3, hops * 1e3, limit * 1e3, bound)
    if inside > 0.0:
        return replace(node, network=network)
    return replace(
        node,
        situation=_UNTRAINED,
        learned_dtype=None,
        roofline=replace(node.roofline, compute_share=None, dram_share=None),
        physics=PhysicsTerms(*(0.0 for _ in PhysicsTerms.__struct_fields__)),
        members=[],
        network=network,
    )


def _render(item: Explained) -> Explanation:
    tile = item.tile
    return Explanation(
        situation=item.situation,
        learned_dtype=item.learned,
        sustained_clock_hz=_known(item.clock_hz),
        roofline=RooflinePosition(*(_known(figure) for figure in item.roof)),
        tile=None if tile is None else TileUse(*tile),
        physics=PhysicsTerms(*(seconds * 1e3 for seconds in item.physics)),
        members=[_member(member) for member in item.members],
        fading=item.fading,
        corrects="time" if item.whole else "work",
        network=None,
    )


def _member(member: Member) -> MemberAnswer:
    source, gpu, weight, log_correction, latency_s = member
    return MemberAnswer(source, None if gpu is None else gpu_id_of(gpu), weight, log_correction, latency_s * 1e3)  # type: ignore[arg-type]


def _known(figure: float) -> float | None:
    return figure if isfinite(figure) else None
