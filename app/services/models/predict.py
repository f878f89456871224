"""POST /predict, kinds `model` and `graph`: import, passes, one prediction for all GPUs, schedule, memory, answer."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

import numpy as np

from app.engine.engine import Engine
from app.engine.gpu_rows import GpuRows, Snapshot
from app.errors import BadInput, FieldError, TooLarge
from app.graphs.run import Run
from app.ops.stacks import doubts
from app.predictors import capabilities
from app.predictors.intervals.groups import EXACT
from app.services.graphs.graph_store import Graphs
from app.services.models.answers import Answering
from app.services.models.hits import key_of
from app.services.models.memory import Room
from app.services.models.networks import Network, Prepared, prepared
from app.services.models.runs import is_host_launched
from app.services.models.serving import serving_figures
from app.services.models.sources import asked_network
from app.services.models.steps import Step, timed
from app.services.models.whole_networks import NOTE, as_one_row, knows_networks_only
from app.services.operators.answers import lacks_among, require_predictor, runnable
from app.tables.arrays import Floats, Ints
from app.tables.ops import OpTable
from app.wire.network_form import ModelWorkload, NetworkRequest, NetworkWorkload
from app.wire.prediction_form import PredictResponse

_UNKNOWN_SHOWN = 5
_HOST_BOUND = (
    "products in fp8_block were measured with what the host does for each: in CUDA graphs a network of short ones is"
    " quicker than this"
)


def predict_network(
    snapshot: Snapshot, request: NetworkRequest, *, max_rows: int, graphs: Graphs | None = None, advise: bool = True
) -> PredictResponse:
    """Answer a request; NotFound, BadInput, TooLarge or NotTrained say what to send instead.

    `graphs` are those stored by POST /graphs; `advise` adds what would make it fit, which costs as much as the rest.
    """
    asked, engine = request.workload, snapshot.engine
    rows = GpuRows(snapshot)
    targets = rows.targets(request)
    require_predictor(engine, rows, request.predictor, targets)
    find = partial(asked_network, graphs=graphs)
    network, run = find(asked)
    whole = knows_networks_only(request.predictor)

    def rows_of(network: Network, run: Run) -> Prepared:
        ready = prepared(network, run)
        return as_one_row(ready, run) if whole else ready

    ready = rows_of(network, run)
    if len(ready.workload) * len(targets) > max_rows:
        asked_for = f"{len(ready.workload):,} operators on {len(targets)} GPUs"
        raise TooLarge(f"At most {max_rows:,} rows are taken at once; {asked_for} are more.")
    gpus = rows.table()
    refusal = None if request.gpus == "all" else partial(_refusal, ready.distinct.table)
    targets, skipped = runnable(engine, ready.distinct.table, ready.work, gpus, targets, refusal)
    if not targets:
        return PredictResponse([], skipped)
    launched = is_host_launched(asked.software, run.mode, run.dtype) and not whole

    def step_of(ready: Prepared, run: Run) -> Step:
        return timed(
            engine,
            ready,
            run,
            gpus,
            targets,
            predictor=request.predictor,
            coverage=request.coverage,
            launched=launched,
        )

    def step_s(asked: ModelWorkload) -> Floats:
        network, run = find(asked)
        return step_of(rows_of(network, run), run).done.step_s

    key = key_of(network, run, launched=launched)
    answering = Answering(
        engine,
        rows,
        gpus,
        request,
        run,
        ready,
        _with_measured(step_of(ready, run), engine, key, rows, targets, request),
        Room(asked, run, ready, find),
        targets,
        [NOTE] if whole else _notes(asked, ready, launched=launched),
        serving_figures(asked, step_s) if isinstance(asked, ModelWorkload) and asked.output_tokens else None,
        advise,
    )
    return PredictResponse(answering.predictions(), skipped)


def _refusal(table: OpTable, gpu: str, missing: Ints) -> BadInput:
    """That a GPU lacks a number format of the network."""
    reason = lacks_among(gpu, table, missing)
    return BadInput(f"The network cannot run: {reason}.", errors=[FieldError(("workload", "dtype"), reason)])


def _with_measured(
    step: Step, engine: Engine, key: Hashable, rows: GpuRows, targets: list[int], request: NetworkRequest
) -> Step:
    """The step with what was measured of this very network, if the predictor takes measured times."""
    found = engine.models.times.get(key)
    if found is None or not capabilities(request.predictor).takes_measured:
        return step
    known = [np.nan if rows.is_uncatalogued(target) else found.get(rows.id(target), np.nan) for target in targets]
    offsets = engine.serving(request.predictor, rows.id(targets[0])).log_offsets(request.coverage)
    return step.with_measured(np.array(known), offsets[:, EXACT])


def _notes(asked: NetworkWorkload, ready: Prepared, *, launched: bool) -> list[str]:
    """Warnings that hold on every GPU."""
    notes = []
    if unknown := ready.workload.unknown:
        named = ", ".join(f"{name} ({count})" for name, count in list(unknown.items())[:_UNKNOWN_SHOWN])
        more = f" and {len(unknown) - _UNKNOWN_SHOWN} more" if len(unknown) > _UNKNOWN_SHOWN else ""
        notes.append(f"{sum(unknown.values())} operators are not known and count as memory traffic: {named}{more}")
    if isinstance(asked, ModelWorkload) and asked.config is not None and "quantization_config" in asked.config:
        notes.append(f"quantization_config is not read: weights and products are in the dtype asked, {asked.dtype}")
    if asked.software is None:
        stack = "PyTorch, eager: the host launches each operator" if launched else "a serving stack with CUDA graphs"
        notes.append(f"no software is named, so {stack}")
    if asked.dtype == "fp8_block" and not launched:
        notes.append(_HOST_BOUND)
    return [*notes, *doubts([asked.software])]
