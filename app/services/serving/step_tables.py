"""Step times of a deployment on GPUs: lower few states of a step at once, predict their distinct rows, sum by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import ref

import msgspec
import numpy as np

from app.engine.engine import Engine
from app.networks.batched import lower_groups, per_configuration
from app.networks.run import Mode
from app.ops import OPS
from app.runtime.sized_cache import SizedCache
from app.services.serving.deployment import Deployment
from app.steps.networks import step_rows
from app.steps.schedule import by_row
from app.steps.timing import StepQuery, time_rows
from app.tables.arrays import Bools, Floats, Ints
from app.tables.workload import Workload

_OF_EXPERTS = np.array([op.name in ("moe", "all_to_all") for op in OPS])
# Operators whose time depends on whose tokens they are given: those with queries of sequences.
_BY_SEQUENCE = np.array(["query_length" in op.fields for op in OPS])


class Axes(NamedTuple):
    """States of a step that are predicted, float64: see app.serving.engine.StepTimes, here not as logarithms."""

    tokens: Floats
    sequences: Floats
    contexts: Floats
    chunks: Floats
    ratios: Floats


class Tables(NamedTuple):
    """Seconds of a step's parts on g GPUs, by the axes; bytes of a sequence and of weights on the fullest device.

    body, experts [g, tokens], head [g, sequences], decode [g, sequences, contexts], prefill [g, chunks, ratios]
    draft       [g, sequences, contexts], of drafting a token of each sequence
    held_bytes  float64 [contexts], keys and values of one sequence on a device
    """

    axes: Axes
    body: Floats
    experts: Floats
    head: Floats
    decode: Floats
    draft: Floats
    prefill: Floats
    held_bytes: Floats


def axes_of(budget: float, sequences: float, prompt: float, output: float, positions: float) -> Axes:
    """Return the axes for steps of up to these tokens and sequences of a replica, prompts and outputs.

    positions  most keys that the model takes; 0: any
    """
    longest = prompt + output
    tokens = _doubling(1.0, max(budget, sequences), between=True)
    contexts = _doubling(min(64.0, longest), longest)
    if positions:
        contexts = np.unique(np.minimum(contexts, positions))
        contexts = contexts if len(contexts) > 1 else np.array([0.5 * contexts[0], contexts[0]])
    chunks = _doubling(1.0, min(budget, prompt))
    ratios = _doubling(1.0, max(prompt / max(min(budget, prompt) / 4.0, 1.0), 2.0))
    return Axes(tokens, _doubling(1.0, sequences), contexts, chunks, ratios)


def _doubling(first: float, last: float, *, between: bool = False) -> Floats:
    """Return powers of two times `first` up to one that reaches `last`; `between`: and 1.5 times each from 32 on."""
    count = max(int(np.ceil(np.log2(max(last / first, 1.0)))), 1)
    steps: Floats = first * np.exp2(np.arange(count + 1.0))
    return np.unique(np.concatenate([steps, 1.5 * steps[steps >= 32.0][:-1]])) if between else steps


def step_tables(query: StepQuery, deployment: Deployment, axes: Axes) -> Tables:
    """Return the seconds of the parts of a step on all targets, cached: loads of a deployment share them.

    Raises BadInput for states that the model refuses.
    """
    if any(target >= len(query.engine.gpus) for target in query.targets):  # GPUs that only the request describes
        return _computed(query, deployment, axes)
    run = replace(deployment.run, batch=1, sequence=1)
    drafting = msgspec.json.encode(deployment.workload.speculative)
    sizes = tuple(axis.tobytes() for axis in axes)
    key = (id(query.engine), query.predictor, tuple(query.targets), deployment.network.key, run, drafting, sizes)
    known = _cache.get(key)
    if known is not None and known.engine() is query.engine:
        return known.tables
    tables = _computed(query, deployment, axes)
    size = sum(part.nbytes for part in tables[1:]) + deployment.network.key_bytes
    _cache.put(key, _Cached(ref(query.engine), tables), size)
    return tables


def _computed(query: StepQuery, deployment: Deployment, axes: Axes) -> Tables:
    b, k = len(axes.sequences), len(axes.contexts)
    grid = np.stack(np.meshgrid(axes.sequences, axes.contexts, indexing="ij")).reshape(2, -1)
    apart = np.stack([axes.tokens, np.full(len(axes.tokens), axes.contexts[0])])
    decodes = np.concatenate([grid, apart], axis=1)
    chunk, ratio = np.stack(np.meshgrid(axes.chunks, axes.ratios, indexing="ij")).reshape(2, -1)
    keys = np.minimum(chunk * ratio, _positions(deployment) or np.inf)
    queries = np.minimum(chunk, keys)
    steps = _Steps(query, deployment)
    decoded = steps.seconds("decode", decodes[0], decodes[1], np.zeros(decodes.shape[1]))
    prompted = steps.seconds("prefill", np.ones(len(chunk)), keys, keys - queries)
    g, verified = len(query.targets), deployment.run.verified
    alone = decoded.own[:, : b * k].reshape(g, b, k)
    own = alone
    if verified > 1:
        own = steps.seconds("decode", grid[0], grid[1], np.zeros(b * k), verified).own.reshape(g, b, k)
    tables = Tables(
        axes,
        decoded.body[:, b * k :],
        decoded.experts[:, b * k :],
        decoded.head[:, : b * k].reshape(g, b, k)[:, :, 0],
        own,
        np.zeros_like(own),
        prompted.own.reshape(g, len(axes.chunks), len(axes.ratios)),
        decoded.held_bytes[:k],
    )
    return tables if verified == 1 else tables._replace(draft=_drafted(query, deployment, tables, alone))


def _drafted(query: StepQuery, deployment: Deployment, tables: Tables, alone: Floats) -> Floats:
    """Return the seconds of drafting a token of each sequence, [g, sequences, contexts]; `alone`: attention of one.

    By a draft model it is its step, else that of one more layer and the head, which multi-token prediction adds.
    """
    speculative, share = deployment.workload.speculative, 1.0 / deployment.architecture.layers
    if deployment.draft is not None:
        other = step_tables(query, deployment.draft, tables.axes)
        return _step(other, other.decode, 1.0, 1.0)
    if speculative is not None and speculative.draft_share is not None:
        return speculative.draft_share * _step(tables, tables.decode, float(deployment.run.verified), 1.0)
    return _step(tables, alone, 1.0, share)


def _step(tables: Tables, attention: Floats, verified: float, share: float) -> Floats:
    """Return the seconds of a decode step with this share of the layers and the head, [g, sequences, contexts]."""
    sequences, tokens = np.log(verified * tables.axes.sequences), np.log(tables.axes.tokens)
    layers = np.array([np.interp(sequences, tokens, one) for one in tables.body + tables.experts])
    head = np.array([np.interp(sequences, np.log(tables.axes.sequences), one) for one in tables.head])
    whole: Floats = share * (layers[:, :, None] + attention) + head[:, :, None]
    return whole


class _Cached(NamedTuple):
    """Tables, and the engine whose predictors gave them: another one may get its address."""

    engine: ref[Engine]
    tables: Tables


_cache: SizedCache[_Cached] = SizedCache(16 * 2**20)


def _positions(deployment: Deployment) -> float:
    return float(deployment.architecture.stacks[0].embedding.max_positions)


class _Seconds(NamedTuple):
    """Seconds of c steps on g GPUs by part, [g, c]; `held_bytes` [c] keys and values of one sequence."""

    body: Floats
    experts: Floats
    head: Floats
    own: Floats
    held_bytes: Floats


class _Steps:
    """Lowers and predicts steps of one deployment."""

    def __init__(self, query: StepQuery, deployment: Deployment) -> None:
        self._query, self._deployment = query, deployment
        # Rows of both modes are of tokens, whosever they are.
        names = [self._names(mode) for mode in ("decode", "prefill")]
        self._common = names[0] & names[1]

    def _names(self, mode: Mode) -> set[tuple[int, str]]:
        rows = self._deployment.network.lower(replace(self._deployment.run, mode=mode))
        return set(zip(rows.block.tolist(), rows.names, strict=True))

    def seconds(self, mode: Mode, batch: Floats, keys: Floats, cached: Floats, verified: int = 1) -> _Seconds:
        """Return the times of steps of `batch` sequences a replica with `keys` each, `cached` of them before, [c].

        verified  tokens of a sequence that a decode step computes
        """
        c, g = len(batch), len(self._query.targets)
        parts = np.empty((4, g, c))
        seconds = _Seconds(parts[0], parts[1], parts[2], parts[3], np.empty(c))
        for of, rows in self._groups(mode, batch, keys, cached, verified):
            times = self._times(rows, len(of))
            own, head, expert = self._own(rows), rows.block == rows.block[-1], _OF_EXPERTS[rows.ops.kind]
            layers = ~own & ~head
            for part, some in zip(seconds, (layers & ~expert, layers & expert, head, own & ~head), strict=False):
                part[:, of] = times[:, some].sum(axis=1)
            kept = np.broadcast_to(rows.kv_bytes * rows.repeats[..., rows.block], (len(of), len(rows)))
            seconds.held_bytes[of] = kept.sum(axis=1) / batch[of] / self._deployment.run.parallelism.pipeline
        return seconds

    def _groups(
        self, mode: Mode, batch: Floats, keys: Floats, cached: Floats, verified: int
    ) -> Iterator[tuple[Ints, Workload]]:
        replicas = self._deployment.attention_replicas

        def lower(these: Ints) -> Workload:
            figures = (replicas * batch[these], keys[these], cached[these])
            batched, sequence, before = (per_configuration(np.round(figure)) for figure in figures)
            sizes: Any = {"batch": batched, "sequence": sequence, "cached": before, "verified": verified}
            run = replace(self._deployment.run, mode=mode, **sizes)
            return self._deployment.network.lower(run)

        for group in lower_groups(len(batch), lower):
            if group.workload is None:
                lower(group.of)  # raises what is wrong
            assert group.workload is not None
            yield group.of, group.workload

    def _own(self, rows: Workload) -> Bools:
        """Return rows whose time depends on the mode and on sequences, bool [n]."""
        pairs = zip(rows.block.tolist(), rows.names, strict=True)
        apart = np.array([pair not in self._common for pair in pairs])
        own: Bools = apart | _BY_SEQUENCE[rows.ops.kind]
        return own

    def _times(self, rows: Workload, c: int) -> Floats:
        """Return the seconds of every row in a step of an engine whose host waits for nothing, [g, n, c]."""
        times = time_rows(self._query, step_rows(rows, c), self._deployment.run)
        seconds = times.launch_s * by_row(times.workload.runs)
        return np.moveaxis(seconds.reshape(len(rows), -1, c), 1, 0)
