"""Predict networks (POST /predict, kinds `model` and `graph`): lower, predict on all GPUs at once, schedule, answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from math import inf
from statistics import median
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from app.bands.band import Band
from app.bands.coverage import COVERAGE
from app.bands.groups import EXACT
from app.engine.exact_hits import MeasuredModels, UploadedStep
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import BadInput, FieldError
from app.networks.importers import hf
from app.networks.roles import of_scores
from app.networks.run import Mode, Run, has_formats
from app.networks.serving import DEFINITIONS, decode_contexts, serving
from app.ops import OP_CODE
from app.predictors import capabilities
from app.predictors.roofline import formats_run, hardware_limit
from app.services.graphs.graph_store import Graphs
from app.services.models.memory_fit import MemoryFit
from app.services.models.network_answers import NetworkAnswer, TimedNetwork
from app.services.models.resolve_networks import (
    config_of,
    formats_of,
    is_network_name,
    published_dtype,
    resolve_network,
    run_assumption,
    workload_dtype,
)
from app.services.models.whole_networks import NETWORKS_ONLY, NOTE, as_one_row
from app.services.operators.machines import joined_by
from app.services.operators.predict_operators import (
    check_rows,
    require_predictor,
    supported_targets,
    unsupported_dtypes,
)
from app.stacks.release import is_eager, plain_release, software_warnings
from app.steps.networks import Network, Prepared, prepare, runs_that_fit
from app.steps.run_formats import activations_note
from app.steps.schedule import schedule
from app.steps.timing import Step, StepQuery, time_step
from app.store.measurements import MeasurementRow, training_set_hash
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable
from app.warning_codes import CodedWarning, warning
from app.wire.graph_form import NetworkRequest, NetworkWorkload
from app.wire.measurement_form import MeasuredModel
from app.wire.network_form import ModelWorkload
from app.wire.prediction_form import Prediction, PredictResponse, ServingFigures

_UNKNOWN_SHOWN = 5
# Uploaded steps of a GPU among which the nearest are looked for.
_MOST_UPLOADS = 256
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
    every = request.gpus == "all"
    if run.parallelism.link:
        targets = joined_by(rows, targets, run.parallelism, every=every)
    whole = request.predictor in NETWORKS_ONLY
    ready = rows_for(request.predictor, network, run)
    check_rows(ready.workload.ops.kind.size, len(targets), max_rows=max_rows, detail=request.detail)
    gpus = rows.table()
    refusal = None if every else partial(_refusal, ready.distinct.table)
    targets, skipped = supported_targets(
        engine, ready.distinct.table, ready.work, gpus, targets, refusal, assumed=run.assumed
    )
    skipped += rows.skipped
    launched = run.release.eager and not whole

    def answered(run: Run, targets: list[int]) -> list[Prediction]:
        query = StepQuery(engine, gpus, targets, request.predictor, request.coverage)

        def step_s(workload: ModelWorkload) -> Floats:
            network, run = find(workload)
            return time_step(query, rows_for(request.predictor, network, run), run, launched=launched).done.step_s

        ready = rows_for(request.predictor, network, run)
        step = time_step(query, ready, run, launched=launched)
        timed = TimedNetwork(query, rows, run, ready, known_step(step, query, rows, network, run, launched=launched))
        of_serving = isinstance(workload, ModelWorkload) and workload.output_tokens
        return NetworkAnswer(
            timed,
            request,
            MemoryFit(workload, run, ready, find),
            [NOTE, *_unused_host(workload, "ConvMeter knows no hosts")]
            if whole
            else notes_of(workload, ready, run, launched=launched),
            serving_figures(workload, step_s) if isinstance(workload, ModelWorkload) and of_serving else None,
            advise,
        ).predictions()

    measured = engine.models.times.get(network_key(network, run, launched=launched), {})
    # A step that was measured as it is did fit.
    specs = [rows.spec(one) for one in targets]
    specs = [replace(spec, memory_bytes=inf) if spec.id in measured else spec for spec in specs]
    predictions: dict[int, Prediction] = {}
    for each, places in runs_that_fit(network, run, specs):
        predictions |= zip(places, answered(each, [targets[k] for k in places]), strict=True)
    return PredictResponse([predictions[k] for k in range(len(targets))], skipped)


def rows_for(predictor: str, network: Network, run: Run) -> Prepared:
    """Return the network as run, cached; as one row for a predictor of whole networks. Raises BadInput if it cannot."""
    ready = prepare(network, run)
    return as_one_row(ready, run) if predictor in NETWORKS_ONLY else ready


def _refusal(table: OpTable, gpu: str, missing: Ints) -> BadInput:
    """That a GPU lacks a number format of the network."""
    reason = unsupported_dtypes(gpu, table, missing)
    return BadInput(f"The network cannot run: {reason}.", errors=[FieldError(("workload", "dtype"), reason)])


def known_step(step: Step, query: StepQuery, rows: GpuRows, network: Network, run: Run, *, launched: bool) -> Step:
    """Return the step as it is known: measured on GPUs, if the predictor takes such times, or else of a known stack."""
    engine, targets = query.engine, query.targets
    if not engine.models.times or not capabilities(query.predictor).takes_measured:
        return step

    def measured_s(target: int) -> float:
        dtype = DTYPES[formats_run(query.gpus)[DTYPE_CODE[run.dtype], target]] if run.assumed else run.dtype
        key = network_key(network, replace(run, dtype=dtype), launched=launched)
        known = {} if rows.is_uncatalogued(target) else engine.models.times.get(key, {})
        return known.get(rows.id(target), np.nan)

    times = np.array([measured_s(one) for one in targets])
    if np.isfinite(times).any():
        below, above = engine.serving(query.predictor, rows.id(targets[0])).log_offsets(COVERAGE)[:, EXACT].tolist()
        own = step  # with boards at their own power, at which it was measured
        if engine.power_cap_w is not None:
            own = time_step(query.uncapped, rows_for(query.predictor, network, run), run, launched=launched)
        slower = step.done.step_s / own.done.step_s
        step = step.with_measured(times * slower, Band(-below, above))
        step = step._replace(measured=step.measured & (slower == 1.0))
    return step


def _configuration_notes(workload: ModelWorkload, config: Mapping[str, Any], run: Run) -> list[CodedWarning]:
    """Return notes on the number formats and the longest context that a configuration states."""
    notes = []
    if run.formats is not None:
        used = {field.name: getattr(run.formats, field.name) or run.dtype for field in fields(run.formats)}
        named = ", ".join(f"{name} {dtype}" for name, dtype in used.items())
        given = "no dtype is given" if workload.dtype is None else f"the model is published in {workload.dtype}"
        text = f"{given}: formats are those of quantization_config: {named}; all else {run.dtype}"
        text += activations_note(run.formats.experts, run.release) if run.assumed else ""
        notes.append(warning("formats_assumed", text))
    elif has_formats(config):
        which = (
            "in training weights and products are in"
            if workload.dtype is None
            else "weights and products use the requested dtype,"
        )
        text = f"quantization_config is ignored: {which} {run.dtype}"
        notes.append(warning("formats_ignored", text))
    if "vision_config" in config and hf.read(config).towers:
        tower = config["vision_config"]
        side, patch = tower.get("image_size"), tower.get("patch_size")
        known = isinstance(side, int) and isinstance(patch, int) and patch > 0
        image = f": {(side // patch) ** 2:,} patches of an image of {side} pixels a side" if known else ""
        text = f"the vision encoder's weights take memory, its time is not in{image}"
        notes.append(warning("encoder_left_out", text))
    return notes + context_notes(config, run.sequence + int(workload.output_tokens or 1) - 1)


def context_notes(config: Mapping[str, Any], context: int) -> list[CodedWarning]:
    """Return a warning if a context is longer than a configuration says that its model can read, in tokens."""
    nested = config.get("text_config")
    own = nested if isinstance(nested, Mapping) else config
    longest, scaling = own.get("max_position_embeddings"), own.get("rope_scaling")
    if not isinstance(longest, int) or isinstance(longest, bool):
        return []
    if isinstance(scaling, Mapping):
        factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
        if isinstance(factor, int | float) and isinstance(original, int | float):
            longest = max(longest, factor * original)
    text = (
        f"the context of {context:,} tokens exceeds max_position_embeddings, {longest:,.0f}: it was not trained so far"
    )
    return [warning("context_too_long", text)] if 0 < longest < context else []


def _unused_host(workload: NetworkWorkload, reason: str) -> list[CodedWarning]:
    return [] if workload.host is None else [warning("field_ignored", f"host is ignored: {reason}")]


def _ignored_notes(workload: NetworkWorkload, ready: Prepared, run: Run) -> list[CodedWarning]:
    """Return which fields of a request change nothing."""
    texts = []
    if run.mode != "training" and workload.optimizer not in ("adam", "none"):
        texts.append(f"optimizer is ignored in mode {run.mode}: it is of training steps")
    if run.recompute == ("core_attn",) and not of_scores(ready.workload).any():
        texts.append("recompute selective changes nothing: fused attention keeps no scores to compute again")
    return [warning("field_ignored", text) for text in texts]


def _attention_notes(ready: Prepared, run: Run) -> list[CodedWarning]:
    """Return which kernels of attention training is assumed to run, of a network that has attention."""
    kernels = "FlashAttention 1 (PyTorch before 2.2)" if run.release.first_flash else "FlashAttention 2 or later"
    op, text = "attention_prefill", f"no attention is given: fused, {kernels}, is assumed"
    if run.attention == "eager":
        op, text = "bmm", "no attention is given: eager, separate products and softmax"
    return [warning("attention_assumed", text)] if (ready.distinct.table.kind == OP_CODE[op]).any() else []


def _training_notes(workload: NetworkWorkload, ready: Prepared, run: Run) -> list[CodedWarning]:
    """Return what of a training run is assumed to be as its stack usually does it."""
    notes, split, given = [], run.parallelism, workload.parallelism
    if run.release.trains_mtp and any(name.startswith("mtp.") for name in ready.workload.names):
        text = (
            f"the model's layers of multi-token prediction are trained, as {run.release.stack} does: mtp_num_layers 0"
        )
        text += " in config leaves them out"
        notes.append(warning("mtp_assumed", text))
    if (run.recompute, run.recompute_layers) in run.recompute_or:
        of = f" in {run.recompute_layers:.0%} of the layers" * (run.recompute_layers < 1.0)
        what = f"{', '.join(run.recompute)}{of}"
        text = f"no recompute is given: {what}, the least of what users of {run.release.stack} do that fits"
        notes.append(warning("recompute_assumed", text))
    elif workload.recompute is None and run.release.recompute != "none":
        usual = run.release.recompute
        notes.append(warning("recompute_assumed", f"no recompute is given: {usual}, as {run.release.stack} does"))
    assumed = [f"zero {split.zero}"] * (given.zero is None and split.zero > 0 and split.replicas > 1)
    assumed += ["sequence true"] * (split.sequence and not given.sequence)
    if assumed:
        text = f"{' and '.join(assumed)} as {run.release.stack} usually does, as nothing else is given"
        notes.append(warning("parallelism_assumed", text))
    return notes


def notes_of(workload: NetworkWorkload, ready: Prepared, run: Run, *, launched: bool) -> list[CodedWarning]:
    """Return the warnings that hold on every GPU."""
    notes = []
    if unknown := ready.workload.unknown:
        named = ", ".join(f"{name} ({count})" for name, count in list(unknown.items())[:_UNKNOWN_SHOWN])
        more = f" and {len(unknown) - _UNKNOWN_SHOWN} more" if len(unknown) > _UNKNOWN_SHOWN else ""
        text = f"{sum(unknown.values())} operators are unknown and counted as memory traffic: {named}{more}"
        notes.append(warning("operators_unknown", text))
    config = config_of(workload) if isinstance(workload, ModelWorkload) else None
    if isinstance(workload, ModelWorkload) and workload.dtype is None and run.formats is None:
        mixed, published = "mixed precision, ", published_dtype(config or {})
        stated = f"; published are {published[:40]} weights" if published else ""
        text = f"no dtype is given: {mixed if run.mode == 'training' else ''}{run.dtype} is assumed{stated}"
        notes.append(warning("dtype_assumed", text))
    if isinstance(workload, ModelWorkload) and config is not None:
        notes += _configuration_notes(workload, config, run)
    if isinstance(workload, ModelWorkload) and run.mode == "training" and workload.attention is None:
        notes += _attention_notes(ready, run)
    notes += _training_notes(workload, ready, run)
    notes += _ignored_notes(workload, ready, run)
    if not launched:
        notes += _unused_host(workload, f"{run.release.software} replays graphs, which its host does not hold up")
    if workload.software is None:
        stack = "PyTorch, eager: the host launches each operator" if launched else "a serving stack with CUDA graphs"
        notes.append(warning("software_assumed", f"no software is given: {stack} is assumed"))
    if workload.dtype == "fp8_block" and not launched:
        notes.append(_HOST_BOUND)
    assumption = run_assumption(run)
    return [*notes, *(software_warnings([workload.software]) if assumption is None else [assumption.warning])]


def network_key(network: Network, run: Run, *, launched: bool) -> Hashable:
    """Return the identity of a network and its run; equal keys take the same time, on whatever host."""
    release = replace(run.release, eager_host_s=plain_release().eager_host_s, launcher=None)
    return network.key, replace(run, release=release), launched


def measured_models(rows: Sequence[MeasurementRow]) -> MeasuredModels:
    """Return the index of stored rows of kind `model`."""
    seconds: dict[Hashable, dict[str, list[float]]] = {}
    uploads: dict[str, list[UploadedStep]] = {}
    for row in rows:
        launched = is_eager(row.software)
        named = _networks(msgspec.convert(row.workload, MeasuredModel), row.software)
        for key in {network_key(*each, launched=launched) for each in named}:
            seconds.setdefault(key, {}).setdefault(row.gpu_id, []).append(row.latency_s)
        if named and row.upload_id is not None:
            of_gpu = uploads.setdefault(row.gpu_id, [])
            of_gpu.append(UploadedStep(*named[-1], launched, row.latency_s, row.upload_id))
    times = {key: {gpu: median(each) for gpu, each in by_gpu.items()} for key, by_gpu in seconds.items()}
    last_ones = {gpu: sorted(of, key=lambda one: -one.upload)[:_MOST_UPLOADS] for gpu, of in uploads.items()}
    return MeasuredModels(times, last_ones, training_set_hash(rows))


def to_workload(measured: MeasuredModel) -> ModelWorkload | None:
    """Return the workload whose prediction would be this time; None for unknown names."""
    if measured.name is not None and not is_network_name(measured.name):
        return None
    return ModelWorkload(**{name: getattr(measured, name) for name in ModelWorkload.__struct_fields__})


def _networks(measured: MeasuredModel, software: str) -> list[tuple[Network, Run]]:
    """Return the requests that it answers, without its software and with it; none where no request can be."""
    workload, networks = to_workload(measured), list[tuple[Network, Run]]()
    if workload is None:
        return networks
    for named in (workload, structs.replace(workload, software=workload.software or software)):
        with suppress(BadInput):
            networks.append(resolve_network(named, None))
    return networks


def in_its_format(measured: MeasuredModel, gpus: GpuTable, gpu: int) -> MeasuredModel:
    """Return a measured network with the format that it ran in on a GPU; one with formats of its own is as given."""
    if measured.dtype is not None or formats_of(measured) is not None:
        return measured
    dtype = formats_run(gpus)[DTYPE_CODE[workload_dtype(measured, None)], gpu]
    return structs.replace(measured, dtype=DTYPES[dtype])


def model_limit_s(measured: MeasuredModel, gpus: GpuTable, gpu: int) -> float | None:
    """Return the hardware limit of the network on a GPU, seconds; None if the network is unknown.

    Raises BadInput for an impossible configuration or run.
    """
    workload = to_workload(in_its_format(measured, gpus, gpu))
    if workload is None:
        return None
    network, run = resolve_network(workload, None)
    ready = prepare(network, run)
    u = len(ready.distinct.table)
    limit = hardware_limit(ready.distinct.table, gpus, np.arange(u), np.full(u, gpu)).latency_s
    return float(schedule(ready.workload, limit[ready.distinct.row][:, None], 0.0, run).step_s[0])


def serving_figures(workload: ModelWorkload, step_s: Callable[[ModelWorkload], Floats]) -> list[ServingFigures]:
    """Return one per GPU. `step_s` returns the seconds of a step on each, [g]. Prompts have `sequence` tokens."""
    if workload.mode == "training":
        raise _refused("is only valid in modes inference, prefill and decode, not in training")
    prompt, output = int(workload.sequence or 1), int(workload.output_tokens or 1)

    def step(mode: Mode, sequence: int) -> Floats:
        try:
            return step_s(structs.replace(workload, mode=mode, sequence=sequence, output_tokens=None))
        except BadInput as error:
            raise _refused(f"this network cannot serve so many tokens: {error.detail}") from error

    prefill = step("prefill", prompt)
    contexts = decode_contexts(prompt, output)
    decode = np.array([step("decode", context) for context in contexts]).reshape(-1, len(prefill))
    figures = serving(prefill, decode, contexts, batch=int(workload.batch), output=output)
    times = [seconds * 1e3 for seconds in (figures.ttft_s, figures.tpot_s, figures.request_s)]
    columns = zip(*(part.tolist() for part in (*times, *figures[len(times) :])), strict=True)
    return [ServingFigures(*(*row, dict(DEFINITIONS))) for row in columns]


def _refused(message: str) -> BadInput:
    return BadInput(message, errors=[FieldError(("workload", "output_tokens"), message)])
