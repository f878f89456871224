"""Which configurations of an auto-tuned kernel to run first on a GPU, by a cache of another GPU.

Of one vendor's GPUs the source's order is kept: over pairs of NVIDIA's GPUs it has the best configuration among its
first ten more often than predicted times do, which know launches but not the other tuning parameters (`gpucast evaluate
kernel-tuning`), also once some ran on the GPU itself, which narrows their intervals. Between vendors predicted times
decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from app.coefficients import Coefficients
from app.engine.snapshot import Snapshot
from app.errors import BadInput, GpucastError
from app.formats.tuning_caches import TuningCache, launch_of
from app.predictors.roofline import peaks
from app.services.kernels.predict_kernels import predict_kernels
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuSpec, GpuTable
from app.tables.ops import DTYPE_CODE
from app.wire.prediction_form import Interval, PredictRequest, PredictResponse

# Candidates: the quickest configurations of the source, so many for each one that is to be run.
_CANDIDATES_EACH, _LEAST_CANDIDATES = 20, 200
# Rows measured on both GPUs that each request takes as evidence.
_MOST_KNOWN = 16
# Part of its peaks at which the source is taken to run the quickest configuration where the work is not given.
_TUNED_SHARE = Coefficients("launches").number("tuned_share")


class PlannedConfiguration(Struct, frozen=True):
    """A configuration to run, with its predicted time and that on the other GPU, milliseconds."""

    rank: int
    configuration: dict[str, Any]
    latency_ms: float
    interval_ms: Interval
    source_ms: float


class TunePlan(Struct, frozen=True):
    """Configurations to run first on a GPU, the most promising first."""

    kernel: str
    gpu: str
    source_gpu: str
    configurations: list[PlannedConfiguration]
    notes: list[str]


def first_ones(source: Floats, predicted: Floats, *, keeps_order: bool) -> Ints:
    """Return configurations in the order to run them, int [c], by their times; `keeps_order`: that of the source."""
    return np.lexsort((predicted, source) if keeps_order else (source, predicted))


class _Task(NamedTuple):
    """A cache with its GPU, the GPU to tune for, sizes of the problem, and the work that all configurations share."""

    cache: TuningCache
    source: GpuSpec
    target: GpuSpec
    problem: tuple[float, ...]
    work: Mapping[str, Any]

    def launch(self, k: int) -> dict[str, Any]:
        """Return the launch of configuration k."""
        return launch_of(self.cache.configurations[k], self.problem)

    def source_ms(self, k: int) -> float:
        """Return its milliseconds on the source."""
        return 1e3 * float(self.cache.seconds[k])

    def request(self, k: int, evidence: Sequence[Mapping[str, Any]]) -> PredictRequest:
        """Return the request for configuration k. Raises BadInput for one that is no launch."""
        measured = [{"gpu": self.source.id, "latency_ms": self.source_ms(k)}, *evidence]
        workload = {"kind": "kernel", **self.launch(k), **self.work, "measured": measured}
        try:
            return msgspec.convert({"gpu": self.target.id, "workload": workload}, PredictRequest)
        except msgspec.ValidationError as error:
            raise BadInput(f"A configuration is no launch: {error}") from None

    def both(self, k: int, target_ms: float) -> list[dict[str, Any]]:
        """Return configuration k, which ran on both GPUs, as evidence."""
        pairs = (self.source, self.source_ms(k)), (self.target, target_ms)
        return [{"gpu": gpu.id, "latency_ms": ms, **self.launch(k)} for gpu, ms in pairs]


def tune_plan(
    snapshot: Snapshot,
    cache: TuningCache,
    gpus: tuple[str, str],
    fields: Mapping[str, Any],
    top: int,
    known: TuningCache | None = None,
) -> TunePlan:
    """Return the plan for GPU `gpus[1]` by a cache of `gpus[0]`; `known`: what ran on the former. Raises BadInput."""
    source, target = (snapshot.engine.catalog.resolve(name) for name in gpus)
    problem = tuple(fields.get("problem", cache.problem))
    if not problem:
        raise BadInput("The cache does not say its problem_size: add --problem X[,Y[,Z]].")
    work, notes = _work(cache, source, fields)
    task, ran = _Task(cache, source, target, problem, work), _times(known)
    order = np.argsort(cache.seconds, kind="stable").tolist()
    both = [k for k in order if _key(cache.configurations[k]) in ran]
    candidates = [k for k in order if _key(cache.configurations[k]) not in ran][
        : max(_CANDIDATES_EACH * top, _LEAST_CANDIDATES)
    ]
    evidence = [row for k in _spread(both) for row in task.both(k, ran[_key(cache.configurations[k])])]
    answers = predict_kernels(snapshot, [task.request(k, evidence) for k in candidates])
    pairs = zip(candidates, answers, strict=True)
    predicted = [(k, answer.predictions[0]) for k, answer in pairs if isinstance(answer, PredictResponse)]
    if not predicted:
        refused = next((answer for answer in answers if isinstance(answer, GpucastError)), None)
        raise refused or BadInput("Every configuration of the cache ran on the GPU already.")
    if len(predicted) < len(candidates):
        notes.append(f"{len(candidates) - len(predicted)} configurations cannot run on {target.id}: they are left out")
    measured_ms = np.array([task.source_ms(k) for k, _ in predicted])
    predicted_ms = np.array([row.latency_ms for _, row in predicted])
    ranked = first_ones(measured_ms, predicted_ms, keeps_order=source.vendor == target.vendor)
    rows = [
        PlannedConfiguration(rank, dict(cache.configurations[k]), row.latency_ms, row.interval_ms, task.source_ms(k))
        for rank, (k, row) in enumerate((predicted[place] for place in ranked[:top].tolist()), 1)
    ]
    return TunePlan(str(work["name"]), target.id, source.id, rows, notes)


def _times(known: TuningCache | None) -> dict[str, float]:
    """Return milliseconds by configuration."""
    if known is None:
        return {}
    return {_key(each): 1e3 * float(s) for each, s in zip(known.configurations, known.seconds, strict=True)}


def _key(configuration: Mapping[str, Any]) -> str:
    return msgspec.json.encode(configuration, order="sorted").decode()


def _spread(both: Sequence[int]) -> Sequence[int]:
    """Return some of the configurations measured on both GPUs, the quickest and others evenly."""
    places = np.unique(np.linspace(0, len(both) - 1, min(len(both), _MOST_KNOWN)).astype(np.intp))
    return [both[place] for place in places.tolist()]


def _work(cache: TuningCache, source: GpuSpec, fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a workload that all configurations share, and notes on what was assumed."""
    given = {name: value for name, value in fields.items() if name != "problem"}
    work: dict[str, Any] = {"name": cache.kernel or "kernel", "dtype": "fp32", "access_pattern": "coalesced", **given}
    notes = []
    if "flops" not in work and "bytes" not in work:
        quickest = float(cache.seconds.min())
        peak = float(np.nan_to_num(peaks(GpuTable.from_specs([source]))[DTYPE_CODE[work["dtype"]], 0]))
        work["flops"] = round(_TUNED_SHARE * peak * quickest) + 1
        work["bytes"] = round(_TUNED_SHARE * source.memory_bandwidth_bytes_per_s * quickest) + 1
        notes.append(
            f"flops and bytes are not given: taken as half of what {source.id} can do in its quickest time; "
            "--set flops=N --set bytes=N"
        )
    work.setdefault("flops", 0)
    work.setdefault("bytes", 0)
    work.setdefault("working_set_bytes", work["bytes"])
    if cache.failed:
        notes.append(f"{cache.failed} configurations failed on {source.id}: they are left out")
    return work, notes
