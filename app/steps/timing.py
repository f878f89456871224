"""Time a network: distinct rows are predicted once for all configurations and GPUs, corrected, and scheduled.

Rows have device time; the schedule adds the cost of host launches, links and pipeline bubbles. A step has a band: one
width for all coverages, so its rows are predicted with intervals at COVERAGE.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from app.bands.band import EAGER_HOST, EAGER_HOST_KNOWN, Band, band_of_rows, sum_correlated
from app.bands.coverage import COVERAGE
from app.bands.error_model import Levels, Uncertainty, widened
from app.bands.uploads import Upload, confirmed, nearest
from app.coefficients import Coefficients
from app.engine.engine import Engine
from app.engine.exact_hits import UploadedStep
from app.errors import BadInput
from app.networks.batched import expanded
from app.networks.run import Run
from app.predictors import capabilities
from app.predictors.priors import EAGER_START_S, HOST_SHARES
from app.runtime.sized_cache import SizedCache
from app.stacks.release import plain_release
from app.steps.correction import Correction, Stage, Subject
from app.steps.corrections import CORRECTIONS
from app.steps.levels import figure_of_step, is_assumed, levels_of
from app.steps.networks import StepRows, prepare
from app.steps.predict_rows import OperatorQuery, predict_quickest, surroundings_of
from app.steps.schedule import EAGER_GAP_S, Schedule, schedule
from app.steps.stages import stage_transfer
from app.tables.architectures import GENERATIONS
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable, concatenate
from app.tables.predictions import Predictions
from app.tables.workload import Workload


class Step(NamedTuple):
    """A step on g GPUs; one of c configurations has g c figures, GPU by GPU, in place of g.

    answer  predictions of the u distinct rows, GPU by GPU, [g u], with intervals at COVERAGE
    done    the schedule
    own     band of the step by its operators and waits alone, [g]
    band    of the step, by the error model as well, [g]
    uncertainties  of the error model, per GPU, [g]
    measured  bool [g], whether the step was measured as a whole
    longer  float64 [g u], how many times as long the rows take in the network as alone
    """

    answer: Predictions
    done: Schedule
    own: Band[Floats]
    band: Band[Floats]
    uncertainties: Sequence[Uncertainty]
    measured: Bools
    longer: Floats

    def ends(self, coverage: float) -> tuple[Floats, Floats]:
        """Return the lower and upper end of the step's interval, seconds, [g] each."""
        return self.band.ends(self.done.step_s, coverage)

    def with_measured(self, seconds: Floats, band: Band[float]) -> Step:
        """Return the step with measured times [g] where not NaN, of this band, its parts scaled in proportion."""
        hit = np.isfinite(seconds)
        done = self.done.times(np.where(hit, seconds / self.done.step_s, 1.0))
        done = done._replace(step_s=np.where(hit, seconds, self.done.step_s))
        return self._replace(done=done, band=self.band.replaced(hit, band), measured=hit)


class StepQuery(NamedTuple):
    """Who predicts, on which g rows of which GPU table, and with which intervals of rows that run alone."""

    engine: Engine
    gpus: GpuTable
    targets: Sequence[int]
    predictor: str
    coverage: float = COVERAGE

    @property
    def uncapped(self) -> StepQuery:
        """Itself, with boards at their own power."""
        return self._replace(engine=self.engine.uncapped)

    def predict(self, ops: OpTable, run: Run) -> Predictions:
        """Return the predictions of rows that run alone, GPU by GPU."""
        return predict_quickest(self.of_rows(ops, run), self.targets)

    def predict_each(self, steps: Sequence[tuple[OpTable, Run]]) -> list[Predictions]:
        """Return the same of the rows of each step, predicted together where their networks have one bandwidth."""
        if len({surroundings_of(run.parallelism) for _, run in steps}) > 1:
            return [self.predict(ops, run) for ops, run in steps]
        tables, g = [ops for ops, _ in steps], len(self.targets)
        together, ends = self.predict(concatenate(tables), steps[0][1]), np.cumsum([ops.kind.size for ops in tables])
        first = np.arange(g)[:, None] * ends[-1]
        parts = zip([0, *ends.tolist()], ends.tolist(), strict=False)
        return [together.take((first + np.arange(start, end)).ravel()) for start, end in parts]

    def of_rows(self, ops: OpTable, run: Run) -> OperatorQuery:
        """Return the query of rows that run alone, on any GPUs."""
        around = surroundings_of(run.parallelism)
        return OperatorQuery(self.engine, ops, self.gpus, self.predictor, self.coverage, around, run.assumed)


class RowTimes(NamedTuple):
    """Times of n rows in c configurations on g GPUs: g c of them, GPU by GPU.

    workload  the n rows, in g c configurations where there are several of both
    gpus      the GPU of each of the g c, a row each
    answer    predictions of the u distinct rows in the network, GPU by GPU, [g u]
    of        int [n, g c], into `answer`
    launch_s  float64 [n, g c], seconds of a launch
    host_s    float64 [n, g c] or 0, what the host adds to each
    longer    float64 [g u], how many times as long the rows take in the network as alone
    """

    workload: Workload
    gpus: GpuTable
    answer: Predictions
    of: Ints
    launch_s: Floats
    host_s: Floats | float
    longer: Floats


def corrected_rows(
    answer: Predictions,
    ops: OpTable,
    run: Run,
    gpus: GpuTable,
    corrections: Sequence[Correction] = CORRECTIONS,
    coverage: float = COVERAGE,
) -> Predictions:
    """Return predictions of a network's u distinct rows on g GPUs, GPU by GPU, as they run in it.

    `coverage` is that of their intervals.
    """
    shape = len(gpus.ids), ops.kind.size
    for correction in _of_stage("row", corrections):
        subject = Subject(run, gpus, ops, answer.latency_s.reshape(shape), answer.bound.reshape(shape))
        if (figure := correction.figure(subject)) is None:
            continue
        each = np.broadcast_to(figure, shape).ravel()
        ends = answer.low_s, answer.latency_s, answer.high_s
        if correction.added_s is None:
            low, middle, high = (end * each for end in ends)
        else:
            least, most = correction.band.filled(each.shape).ends(each, coverage)
            low, middle, high = (end + more for end, more in zip(ends, (least, each, most), strict=True))
        answer = replace(answer, latency_s=middle, low_s=low, high_s=high)
    return answer


def corrected_launches(latency_s: Floats, w: Workload, run: Run, gpus: GpuTable) -> tuple[Floats, Floats | float]:
    """Return seconds per launch of the rows in the step, and what the host adds to each, [n, g] each."""
    subject = Subject(run, gpus, w.ops, workload=w)
    for correction in _of_stage("launch"):
        if (figure := correction.figure(subject)) is not None:
            latency_s = latency_s + figure if correction.factor is None else latency_s * figure
    host_s: Floats | float = 0.0
    for correction in _of_stage("host"):
        if (figure := correction.figure(subject)) is not None:
            host_s = host_s + figure
    return latency_s, host_s


def _of_stage(stage: Stage, corrections: Sequence[Correction] = CORRECTIONS) -> list[Correction]:
    return [correction for correction in corrections if correction.stage == stage]


def time_rows(query: StepQuery, rows: StepRows, run: Run, alone: Predictions | None = None) -> RowTimes:
    """Return the times of a network's rows: distinct ones are predicted once, by their quickest kernels, and corrected.

    run    batch, sequence and image size are numbers, or one per configuration
    alone  what the query predicts of the distinct rows, where that is known
    """
    ops, g, c = rows.distinct.table, len(query.targets), rows.configurations
    workload = rows.workload if c == 1 or g == 1 else expanded(rows.workload, np.tile(np.arange(c), g))
    gpus, n, u = query.gpus.take(np.asarray(query.targets, dtype=np.intp)), workload.ops.kind.size, ops.kind.size
    if alone is None:
        alone = query.predict(ops, run)
    answer = corrected_rows(alone, ops, run, gpus, coverage=query.coverage)
    each = np.broadcast_to(rows.distinct.row.reshape(n, -1), (n, c))
    of = (each[:, None, :] + u * np.arange(g)[:, None]).reshape(n, g * c)
    gpus = gpus if c == 1 else gpus.take(np.repeat(np.arange(g), c))
    launch_s, host_s = corrected_launches(answer.latency_s[of], workload, run, gpus)
    longer = answer.latency_s / np.maximum(alone.latency_s, np.finfo(np.float64).tiny)
    return RowTimes(workload, gpus, answer, of, launch_s, host_s, longer)


def time_step(query: StepQuery, rows: StepRows, run: Run, *, launched: bool, alone: Predictions | None = None) -> Step:
    """Return the step of a network's c configurations on each of g GPUs, [g c] GPU by GPU.

    run, alone  as in `time_rows`, `alone` at COVERAGE
    launched  whether the host launches each operator
    """
    step = own = _predicted(query, rows, run, launched=launched, alone=alone)
    if not query.engine.models.uploads:
        return step
    if query.engine.power_cap_w is not None:
        own = _predicted(query.uncapped, rows, run, launched=launched, alone=None)
    return with_uploads(step, own, query, figure_of_step(rows, run))


def _predicted(query: StepQuery, rows: StepRows, run: Run, *, launched: bool, alone: Predictions | None) -> Step:
    """Return the step without what uploads teach."""
    times = time_rows(query._replace(coverage=COVERAGE), rows, run, alone)
    w, size = times.workload, (len(query.targets), rows.configurations)
    transfer_s: Floats | float = 0.0
    if run.parallelism.pipeline > 1:
        sent = query.predict(stage_transfer(rows.workload, run), run).latency_s
        transfer_s = np.broadcast_to(sent.reshape(len(query.targets), -1), size).ravel()
    host, gap = (_host_s(run, times.gpus), EAGER_GAP_S) if launched else (np.zeros(len(times.gpus)), 0.0)
    in_training = run.mode == "training"
    each = host if in_training else host * HOST_SHARES[w.ops.kind][:, None]
    done = schedule(w, times.launch_s, each + times.host_s, run, gap_s=gap, transfer_s=transfer_s)
    if not in_training:
        done = done.after(EAGER_START_S / plain_release().eager_host_s * host)
    own = band_of_rows(done.rows_s, times.answer, times.of, rows.group)
    # The host's speed is unknown, and less so in training and where the request says who launches.
    known = in_training or run.release.launcher is not None
    _, slower = (EAGER_HOST_KNOWN if known else EAGER_HOST).ends(1.0, COVERAGE)
    own = own.wider(Band.of(done.step_s, done.step_s, slower * host * done.launches))
    for correction in _of_stage("step"):
        if (waited := correction.figure(Subject(run, times.gpus, w.ops, workload=w))) is not None:
            waited = np.broadcast_to(waited, done.step_s.shape)
            own = sum_correlated([(done.step_s, own), (waited, correction.band.filled(waited.shape))])
            done = done.after(waited)
    levels = levels_of(rows, run, query.gpus, query.targets)
    errors = query.engine.error_models[figure_of_step(rows, run)]
    uncertainties = [errors.uncertainty(each, assumed=not in_training and is_assumed(run, each)) for each in levels]
    band = widened(own, uncertainties)
    return Step(times.answer, done, own, band, uncertainties, np.zeros(len(done.step_s), dtype=np.bool_), times.longer)


# GPUs since Hopper are in newer hosts: the time of a launch there over that of older ones.
_HOPPER, _NEWER_HOST_SHARE = float(GENERATIONS.index("hopper")), Coefficients("steps").number("newer_host_share")


def _host_s(run: Run, gpus: GpuTable) -> Floats:
    """Return the host's seconds for the mean operator's launch, [g]; in training the same of all hosts."""
    newer = (gpus.column("generation") >= _HOPPER) & (run.mode != "training")
    return run.release.eager_host_s * np.where(newer, _NEWER_HOST_SHARE, 1.0)


# Levels and figures of uploaded steps, and their errors.
_levels: SizedCache[tuple[str, Levels] | None] = SizedCache(100_000)
_errors: SizedCache[float] = SizedCache(100_000)


def with_uploads(step: Step, at_own_power: Step, query: StepQuery, figure: str) -> Step:
    """Return a step moved and narrowed by what was uploaded of others on each GPU (ErrorModel.learned).

    Uploads are of boards at their own power, and so say of `at_own_power` how far it is off.
    """
    engine, g = query.engine, len(query.targets)
    if not capabilities(query.predictor).takes_measured:
        return step
    shift, left = np.zeros((g, len(step.done.step_s) // g)), np.ones((g, len(step.done.step_s) // g))
    below, above = (side.reshape(left.shape) for side in (at_own_power.own.below, at_own_power.own.above))
    uncertainties = list(step.uncertainties)
    for k, target in enumerate(query.targets):
        levels = uncertainties[k].levels
        uploads = engine.models.uploads.get(query.gpus.ids[target], ()) if target < len(engine.gpus) else ()
        if teaching := _teaching(query, target, figure, levels, uploads):
            shift[k], left[k] = engine.error_models[figure].learned(levels, Band(below[k], above[k]), teaching)
            uncertainties[k] = uncertainties[k].narrowed(float(left[k, 0]))
    if (left == 1.0).all():
        return step
    own = step.own.times(left.ravel() ** 0.5)
    band = widened(own, step.uncertainties, left.ravel())
    return step._replace(done=step.done.times(np.exp(shift.ravel())), own=own, band=band, uncertainties=uncertainties)


def _teaching(
    query: StepQuery, target: int, figure: str, levels: Levels, uploads: Sequence[UploadedStep]
) -> list[tuple[Levels, float]]:
    """Return the nearest uploaded steps of a figure on a GPU that count, with their errors."""
    alike = [(one, of[1]) for one in uploads if (of := _levels_of_upload(query, target, one)) and of[0] == figure]
    if not alike:
        return []
    order = nearest(query.engine.error_models[figure], levels, [of for _, of in alike])
    chosen = [alike[k] for k in order]
    return confirmed([Upload(one.upload, of, _error(query, target, one)) for one, of in chosen])


def _levels_of_upload(query: StepQuery, target: int, upload: UploadedStep) -> tuple[str, Levels] | None:
    """Return the figure and the levels of an uploaded step; None if its network cannot run."""
    key = query.gpus.ids[target], upload.network.key, upload.run
    if (known := _levels.get(key)) is None:
        with suppress(BadInput):
            ready = prepare(upload.network, upload.run)
            (levels,) = levels_of(ready, upload.run, query.gpus, [target])
            known = figure_of_step(ready, upload.run), levels
            _levels.put(key, known, 1)
    return known


def _error(query: StepQuery, target: int, upload: UploadedStep) -> float:
    """Return ln(measured / predicted) of an uploaded step."""
    query = query.uncapped
    engine, gpu = query.engine, query.gpus.ids[target]
    key = (engine.revision, engine.version_of(query.predictor, gpu), query.predictor, gpu, upload)
    if (known := _errors.get(key)) is None:
        ready, alone = prepare(upload.network, upload.run), query._replace(targets=[target])
        step = _predicted(alone, ready, upload.run, launched=upload.launched, alone=None)
        known = float(np.log(upload.seconds / step.done.step_s[0]))
        _errors.put(key, known, 1)
    return known
