"""Predict networks (POST /predict, kinds `model` and `graph`): lower, predict on all GPUs at once, schedule, answer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from app.bands.band import Band
from app.bands.coverage import COVERAGE
from app.bands.groups import EXACT
from app.bands.widths import OTHER
from app.engine.engine import Engine
from app.engine.gpu_rows import GpuRows
from app.engine.snapshot import Snapshot
from app.errors import BadInput, FieldError
from app.networks.run import Run, has_formats
from app.ops import OPS
from app.predictors import capabilities
from app.services.graphs.graph_store import Graphs
from app.services.models.memory_fit import MemoryFit
from app.services.models.network_answers import NetworkAnswer
from app.services.models.network_hits import network_key
from app.services.models.resolve_networks import resolve_network
from app.services.models.run_options import run_assumption
from app.services.models.serving import serving_figures
from app.services.models.whole_networks import NOTE, as_one_row, predicts_networks_only
from app.services.operators.common import check_rows, require_predictor, supported_targets, unsupported_dtypes
from app.stacks.release import software_warnings
from app.steps.networks import Network, Prepared, prepare
from app.steps.timing import Step, StepQuery, time_step
from app.tables.arrays import Floats, Ints
from app.tables.ops import OpTable
from app.warning_codes import CodedWarning, warning
from app.wire.graph_form import NetworkRequest, NetworkWorkload
from app.wire.network_form import ModelWorkload
from app.wire.prediction_form import PredictResponse

_UNKNOWN_SHOWN = 5
_HOST_BOUND = warning(
    "host_bound_products",
    "products in fp8_block were measured with what the host does for each: in CUDA graphs a network of short ones is"
    " quicker than this",
)


def predict_network(
    snapshot: Snapshot, request: NetworkRequest, *, max_rows: int, graphs: Graphs | None = None, advise: bool = True
) -> PredictResponse:
    """Return the answer to a request. Raises NotFound, BadInput, TooLarge or NotTrained with what to send instead.

    `graphs` holds those of POST /graphs; `advise` adds suggestions to make it fit, which cost as much as the rest.
    """
    workload, engine = request.workload, snapshot.engine
    rows = GpuRows(snapshot)
    targets = rows.targets(request)
    require_predictor(engine, rows, request.predictor, targets)
    find = partial(resolve_network, graphs=graphs)
    network, run = find(workload)
    whole = predicts_networks_only(request.predictor)

    def rows_of(network: Network, run: Run) -> Prepared:
        ready = prepare(network, run)
        return as_one_row(ready, run) if whole else ready

    ready = rows_of(network, run)
    check_rows(len(ready.workload), len(targets), max_rows=max_rows, detail=request.detail)
    gpus = rows.table()
    refusal = None if request.gpus == "all" else partial(_refusal, ready.distinct.table)
    targets, skipped = supported_targets(engine, ready.distinct.table, ready.work, gpus, targets, refusal)
    if not targets:
        return PredictResponse([], skipped)
    launched = run.release.eager and not whole

    query = StepQuery(engine, gpus, targets, request.predictor, request.coverage)

    def step_s(workload: ModelWorkload) -> Floats:
        network, run = find(workload)
        return time_step(query, rows_of(network, run), run, launched=launched).done.step_s

    key = network_key(network, run, launched=launched)
    step = _with_measured(time_step(query, ready, run, launched=launched), engine, key, rows, targets, request)
    if (assumption := run_assumption(run)) is not None:
        step = step.widened(OTHER[assumption.other].token)
    answer = NetworkAnswer(
        query,
        rows,
        request,
        run,
        ready,
        step,
        MemoryFit(workload, run, ready, find),
        [NOTE] if whole else _notes(workload, ready, run, launched=launched),
        serving_figures(workload, step_s) if isinstance(workload, ModelWorkload) and workload.output_tokens else None,
        advise,
    )
    return PredictResponse(answer.predictions(), skipped)


def _refusal(table: OpTable, gpu: str, missing: Ints) -> BadInput:
    """That a GPU lacks a number format of the network."""
    reason = unsupported_dtypes(gpu, table, missing)
    return BadInput(f"The network cannot run: {reason}.", errors=[FieldError(("workload", "dtype"), reason)])


def _with_measured(
    step: Step, engine: Engine, key: Hashable, rows: GpuRows, targets: list[int], request: NetworkRequest
) -> Step:
    """Return the step with the measured times of this network on the requested GPUs, if the predictor takes any."""
    measured = engine.models.times.get(key)
    if measured is None or not capabilities(request.predictor).takes_measured:
        return step
    known = [np.nan if rows.is_uncatalogued(target) else measured.get(rows.id(target), np.nan) for target in targets]
    below, above = engine.serving(request.predictor, rows.id(targets[0])).log_offsets(COVERAGE)[:, EXACT].tolist()
    return step.with_measured(np.array(known), Band(-below, above))


def _configuration_notes(workload: ModelWorkload, config: Mapping[str, Any], run: Run) -> list[CodedWarning]:
    """Return notes on the number formats and the longest context that a configuration states."""
    notes = []
    if run.formats is not None:
        used = {field.name: getattr(run.formats, field.name) or run.dtype for field in fields(run.formats)}
        named = ", ".join(f"{name} {dtype}" for name, dtype in used.items())
        text = f"no dtype is given: formats are those of quantization_config: {named}; all else {run.dtype}"
        notes.append(warning("formats_assumed", text))
    elif has_formats(config):
        text = f"quantization_config is ignored: weights and products use the requested dtype, {run.dtype}"
        notes.append(warning("formats_ignored", text))
    nested = config.get("text_config")
    own = nested if isinstance(nested, Mapping) else config
    published = own.get("torch_dtype") or own.get("dtype") or config.get("torch_dtype")
    given = workload.config is not None and workload.dtype is None and run.formats is None
    if given and isinstance(published, str) and published != "float32":
        text = f"no dtype is given: {run.dtype}; the configuration says {published[:40]}, send it as dtype"
        notes.append(warning("dtype_assumed", text))
    longest = own.get("max_position_embeddings")
    context = run.sequence + int(workload.output_tokens or 1) - 1
    if isinstance(longest, int) and not isinstance(longest, bool) and 0 < longest < context:
        text = f"the context of {context} tokens exceeds max_position_embeddings, {longest}"
        notes.append(warning("context_too_long", text))
    return notes


def _attention_notes(ready: Prepared, run: Run) -> list[CodedWarning]:
    """Return which kernels of attention training is assumed to run, of a network that has attention."""
    kernels = "FlashAttention 1 (PyTorch before 2.2)" if run.release.first_flash else "FlashAttention 2 or later"
    op, text = "attention_prefill", f"no attention is given: fused, {kernels}, is assumed"
    if run.attention == "eager":
        op, text = "bmm", "no attention is given: eager, separate products and softmax"
    return [warning("attention_assumed", text)] if op in _ops_of(ready) else []


def _ops_of(ready: Prepared) -> set[str]:
    return {OPS[kind].name for kind in np.unique(ready.distinct.table.kind).tolist()}


def _notes(workload: NetworkWorkload, ready: Prepared, run: Run, *, launched: bool) -> list[CodedWarning]:
    """Return the warnings that hold on every GPU."""
    notes = []
    if unknown := ready.workload.unknown:
        named = ", ".join(f"{name} ({count})" for name, count in list(unknown.items())[:_UNKNOWN_SHOWN])
        more = f" and {len(unknown) - _UNKNOWN_SHOWN} more" if len(unknown) > _UNKNOWN_SHOWN else ""
        text = f"{sum(unknown.values())} operators are unknown and counted as memory traffic: {named}{more}"
        notes.append(warning("operators_unknown", text))
    if isinstance(workload, ModelWorkload) and workload.config is not None:
        notes += _configuration_notes(workload, workload.config, run)
    if isinstance(workload, ModelWorkload) and run.mode == "training" and workload.attention is None:
        notes += _attention_notes(ready, run)
    if workload.software is None:
        stack = "PyTorch, eager: the host launches each operator" if launched else "a serving stack with CUDA graphs"
        notes.append(warning("software_assumed", f"no software is given: {stack} is assumed"))
    if workload.dtype == "fp8_block" and not launched:
        notes.append(_HOST_BOUND)
    assumption = run_assumption(run)
    return [*notes, *(software_warnings([workload.software]) if assumption is None else [assumption.warning])]
