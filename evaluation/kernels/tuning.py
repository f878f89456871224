"""Auto-tuned kernels carried between GPUs: every configuration was timed on each GPU, so ratios of times are clean.

A query is a configuration on the target. Its evidence is the same configuration on one source GPU, and n other
configurations on both GPUs. What `auto` fits (app.predictors.auto.kernels.spreads) is fitted without the kernel and
without both GPUs of the pair, from the other rows of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.stats import spearmanr

from app.bands.coverage import COVERAGE
from app.engine.engine import Served, finished
from app.errors import NotFound
from app.predictors.auto.kernels.transfer import VARIANCES, Variances
from app.predictors.auto.predictor import Auto
from app.predictors.roofline import hardware_limit
from app.services.kernels.tune_plan import first_ones
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable
from app.wire.kernel_tables import kernel_table
from app.wire.kernel_workload import KernelWorkload
from evaluation.first_contact.kernels import TUNED, TUNED_GPUS
from evaluation.first_contact.question import read_rows
from evaluation.render import Report, Table
from evaluation.study import PREDICTOR, Result, grouped, shipped_snapshot

FOLDER = "kernel_tuning"
MEASURED = (0, 1, 3, 10)
# Configurations asked per pair of GPUs, and the blocks of them that share the rows measured on the target.
_ASKED, _BLOCKS = 200, 4
_SAMPLES, _TRIALS, _CHANNELS = 25_000, 2048, 1536
TOP = 10  # configurations that `gpucast tune-plan` lists
_METHODS = ("auto", "scaled", "ratio")
_CLASSES = ("NVIDIA", "AMD and NVIDIA")
# Variances before the data: a kernel's ratio within an architecture is known to 15 %, between two to 25, and to a
# factor of three between compilers; so are configurations.
PRIOR = VARIANCES._replace(
    gpu=0.1**2, architecture=0.15**2, vendor=1.3**2, gpu_shape=0.1**2, vendor_shape=0.8**2, shape=0.4**2
)


def _dedispersion(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the launch of AMBER's dedispersion: a sum of bytes over channels for each sample and trial."""
    tile = int(row["tile_size_x"] * row["tile_size_y"])
    across, down = (int(row[f"block_size_{axis}"] * row[f"tile_size_{axis}"]) for axis in "xy")
    moved = float(_SAMPLES * (_CHANNELS + 4 * _TRIALS))
    return {
        "name": "dedispersion",
        "flops": float(_SAMPLES * _TRIALS * _CHANNELS),
        "bytes": moved,
        "working_set_bytes": moved,
        "threads_per_block": int(row["block_size_x"] * row["block_size_y"]),
        "blocks": ceil(_SAMPLES / across) * ceil(_TRIALS / down),
        "registers_per_thread": min(24 + 2 * tile, 255),
        "shared_memory_per_block": 0,
    }


_DEDISPERSION = ("block_size_x", "block_size_y", "tile_size_x", "tile_size_y", "tile_stride_x", "tile_stride_y")
_KERNELS = {**TUNED, "dedispersion": (_dedispersion, (*_DEDISPERSION, "loop_unroll_factor_channel"))}


@dataclass(frozen=True, slots=True)
class Space:
    """Configurations of a kernel that were all timed on the same GPUs, and their times.

    kernel   name
    ops      OpTable of the c configurations
    gpu      int [g], GPU rows
    seconds  float64 [c, g]
    """

    kernel: str
    ops: OpTable
    gpu: Ints
    seconds: Floats


def read_spaces(folder: Path, gpus: GpuTable) -> list[Space]:
    """Return some configurations of each kernel and study. Raises NotFound without the folder."""
    if not (folder / FOLDER).is_dir():
        raise NotFound(f"{folder} has no {FOLDER}.")
    return [space for kernel in _KERNELS for space in _spaces(folder / FOLDER / f"{kernel}.parquet", kernel, gpus)]


def _spaces(path: Path, kernel: str, gpus: GpuTable) -> Iterator[Space]:
    launch_of, parameters = _KERNELS[kernel]
    timed: dict[str, dict[tuple[Any, ...], dict[str, float]]] = {}
    for row in read_rows(path, [*parameters, "variant", "gpu", "time_ms", "failed"]):
        if row["failed"] is None and row["time_ms"] and row["gpu"] in TUNED_GPUS:
            key = tuple(row[name] for name in parameters)
            timed.setdefault(row["variant"], {}).setdefault(key, {})[row["gpu"]] = 1e-3 * row["time_ms"]
    for of_variant in timed.values():
        names = sorted({gpu for times in of_variant.values() for gpu in times})
        whole = [key for key, times in of_variant.items() if len(times) == len(names)]
        keys = [whole[k] for k in np.unique(np.linspace(0, len(whole) - 1, 2 * _ASKED).astype(np.intp))]
        launches = [launch_of(dict(zip(parameters, key, strict=True))) for key in keys]
        described = [{"kind": "kernel", **each, "access_pattern": "coalesced", "dtype": "fp32"} for each in launches]
        seconds = np.array([[of_variant[key][name] for name in names] for key in keys])
        at = np.array([list(TUNED_GPUS).index(name) for name in names])
        yield Space(kernel, kernel_table(msgspec.convert(described, list[KernelWorkload])), at, seconds)


class Pair(NamedTuple):
    """Configurations of a space asked on one of its GPUs, from another: positions in the space's `gpu`."""

    space: Space
    source: int
    target: int


def pairs(spaces: Sequence[Space]) -> list[Pair]:
    """Return every ordered pair of GPUs of every space."""
    return [Pair(space, *two) for space in spaces for two in permutations(range(len(space.gpu)), 2)]


def evidence_of(pair: Pair, measured: int) -> tuple[Ints, Evidence]:
    """Return the configurations asked, int [q], and their evidence.

    Even configurations are asked, odd ones are measured on both GPUs: `measured` of them, the same ones for a block of
    queries.
    """
    space, source, target = pair
    asked, others = np.arange(0, len(space.ops), 2), np.arange(1, len(space.ops), 2)
    drawn = np.random.default_rng(measured)
    sets = np.array([drawn.choice(others, measured, replace=False) for _ in range(_BLOCKS)], dtype=np.intp)
    both = sets[np.arange(len(asked)) * _BLOCKS // len(asked)]
    rows = np.concatenate([asked[:, None], both, both], axis=1)
    at = np.array([source] * (1 + measured) + [target] * measured)
    where = np.broadcast_to(at, rows.shape).ravel()
    known = Measurements(space.ops.take(rows.ravel()), space.gpu[where], space.seconds[rows.ravel(), where])
    return asked, Evidence(known, np.repeat(np.arange(len(asked)), rows.shape[1]))


class Answers(NamedTuple):
    """What is predicted for a pair's queries, seconds [q]: the measured times, `auto`'s, its interval, and baselines.

    scaled  the source's time by the ratio of DRAM bandwidths
    ratio   the source's time by the median measured ratio; NaN without one
    """

    measured: Floats
    auto: Floats
    low: Floats
    high: Floats
    scaled: Floats
    ratio: Floats


def answers(served: Served, gpus: GpuTable, pair: Pair, measured: int, variances: Variances) -> Answers:
    """Return the answers of a version of `auto` with these variances, and of the baselines."""
    (space, source, target), (asked, evidence) = pair, evidence_of(pair, measured)
    at = np.full(len(asked), space.gpu[target])
    assert isinstance(served.predictor, Auto)
    estimate = replace(served.predictor, variances_=variances).predict(space.ops, gpus, asked, at, evidence=evidence)
    limit = hardware_limit(space.ops, gpus, asked, at)
    done = finished(estimate, limit, served.log_offsets(COVERAGE), COVERAGE)
    bandwidth = gpus.column("memory_bandwidth_bytes_per_s")
    rows = evidence.rows.latency_s.reshape(len(asked), 1 + 2 * measured)
    ratio = np.full(len(asked), np.nan)
    if measured:
        ratio = np.median(rows[:, 1 + measured :] / rows[:, 1 : 1 + measured], axis=1)
    scaled = rows[:, 0] * bandwidth[space.gpu[source]] / bandwidth[space.gpu[target]]
    truth = space.seconds[asked, target]
    return Answers(truth, done.latency_s, done.low_s, done.high_s, scaled, rows[:, 0] * ratio)


def without_evidence(served: Served, gpus: GpuTable, space: Space) -> Iterator[Sequence[Any]]:
    """Yield a row for each GPU of a space: the median factor of errors, share inside the interval, and order."""
    queries, nothing = np.arange(len(space.ops)), np.empty(0, dtype=np.intp)
    for k, gpu in enumerate(space.gpu):
        at = np.full(len(queries), gpu)
        evidence = Evidence(Measurements(space.ops.take(nothing), nothing, np.empty(0)), nothing)
        estimate = served.predictor.predict(space.ops, gpus, queries, at, evidence=evidence)
        limit = hardware_limit(space.ops, gpus, queries, at)
        done, truth = finished(estimate, limit, served.log_offsets(COVERAGE), COVERAGE), space.seconds[:, k]
        factor = np.exp(np.median(np.abs(np.log(done.latency_s / truth))))
        inside = 100.0 * np.mean((done.low_s <= truth) & (truth <= done.high_s))
        yield space.kernel, gpus.ids[gpu], factor, inside, spearmanr(done.latency_s, truth)[0]


class Moments(NamedTuple):
    """Mean and variance of the log errors of an ordered pair whose kernel was measured on no other configuration.

    relation  0: one architecture, 1: one vendor, 2: two vendors
    times     variance of the source's log times
    """

    kernel: str
    gpus: frozenset[int]
    relation: int
    mean: float
    variance: float
    times: float


def moments(served: Served, gpus: GpuTable, pair: Pair) -> Moments:
    """Return the moments of a pair."""
    found = answers(served, gpus, pair, 0, VARIANCES)
    error = np.log(found.auto / found.measured)
    assert isinstance(served.predictor, Auto)
    devices = served.predictor.devices(gpus)
    a, b = pair.space.gpu[pair.source], pair.space.gpu[pair.target]
    vendors, same = devices.vendor[a] != devices.vendor[b], devices.architecture[a] == devices.architecture[b]
    times = np.log(pair.space.seconds[:, pair.source])
    relation = 2 if vendors else int(not same)
    return Moments(pair.space.kernel, frozenset((a, b)), relation, error.mean(), error.var(), times.var())


def fitted(rows: Sequence[Moments], prior: Variances) -> Variances:
    """Return variances by the moments: each is the mean over kernels, among which `prior` counts as one more."""

    def mean(relations: Sequence[int], figure: str, of_prior: float) -> float:
        of_kernels = grouped([row for row in rows if row.relation in relations], lambda row: row.kernel).values()
        means = [
            np.mean([getattr(row, figure) ** (2 if figure == "mean" else 1) for row in each]) for each in of_kernels
        ]
        return float(np.mean([*means, of_prior]))

    gpu = mean([0], "mean", 2 * prior.gpu) / 2
    architecture = max(mean([1], "mean", 2 * (prior.gpu + prior.architecture)) / 2 - gpu, 0.0)
    vendor = max(mean([2], "mean", 2 * (prior.gpu + prior.architecture + prior.vendor)) / 2 - gpu - architecture, 0.0)
    gpu_shape = mean([0, 1], "variance", 2 * prior.gpu_shape) / 2
    other = mean([2], "variance", 2 * prior.gpu_shape + prior.vendor_shape) - 2 * gpu_shape
    shape = mean([0, 1], "times", prior.shape)
    parts = {"gpu": gpu, "architecture": architecture, "vendor": vendor, "gpu_shape": gpu_shape, "shape": shape}
    return prior._replace(**parts, vendor_shape=max(other, 0.0))


def evaluate_kernel_tuning(folder: Path) -> Report:
    """Return the report on kernels carried between GPUs, and the variances fitted to all rows."""
    snapshot = shipped_snapshot()
    served = snapshot.engine.serving(PREDICTOR, next(iter(TUNED_GPUS.values())))
    gpus = GpuTable.from_specs([snapshot.engine.catalog.resolve(gpu) for gpu in TUNED_GPUS.values()])
    spaces = read_spaces(folder, gpus)
    every = pairs(spaces)
    known = [moments(served, gpus, pair) for pair in every]
    results: list[Result] = []
    for pair, own in zip(every, known, strict=True):
        rest = [row for row in known if row.kernel != own.kernel and not row.gpus & own.gpus]
        variances = fitted(rest, PRIOR)
        results += [_result(gpus, pair, own, n, answers(served, gpus, pair, n, variances)) for n in MEASURED]
    shipped = fitted(known, PRIOR)
    table = _table(results)
    lines = [f"{name:18} {value:.4f}" for name, value in shipped._asdict().items()]
    columns = {"kernel": "", "GPU": "", "factor": ".2f", "inside": ".0f", "Spearman": ".2f"}
    rows = [row for space in spaces for row in without_evidence(served, gpus, space)]
    alone = Table("Without any measurement", columns, rows)
    return Report(blocks=[table, alone, "", "Variances by all rows:", *lines], body={"cells": results})


def _result(gpus: GpuTable, pair: Pair, own: Moments, measured: int, found: Answers) -> Result:
    bandwidth = gpus.column("memory_bandwidth_bytes_per_s")
    source, target = pair.space.gpu[pair.source], pair.space.gpu[pair.target]
    blocks = zip(np.array_split(found.auto, _BLOCKS), np.array_split(found.measured, _BLOCKS), strict=True)
    errors = {name: 100.0 * np.abs(getattr(found, name) / found.measured - 1.0) for name in _METHODS}
    # In the order in which `gpucast tune-plan` lists them.
    first = first_ones(found.scaled, found.auto, keeps_order=own.relation < 2)[:TOP]
    return {
        "pair": _CLASSES[own.relation // 2],
        "kernel": own.kernel,
        "gpus": [gpus.ids[source], gpus.ids[target]],
        "faster": bool(bandwidth[target] > bandwidth[source]),
        "measured": measured,
        "errors": {name: of.tolist() for name, of in errors.items()},
        "inside": float(100.0 * np.mean((found.low <= found.measured) & (found.measured <= found.high))),
        "top": bool(found.measured.argmin() in first),
        "regret": float(100.0 * (found.measured[first].min() / found.measured.min() - 1.0)),
        "spearman": float(np.mean([spearmanr(ours, true)[0] for ours, true in blocks])),
    }


def _table(results: Sequence[Result]) -> Table:
    """Return a row per class of pairs and number of configurations measured on both GPUs."""
    medians = dict.fromkeys((*_METHODS, "to faster", "to slower"), ".1f")
    columns = {
        "pair": "",
        "measured": "d",
        **medians,
        "Spearman": ".2f",
        "pairs": "d",
        "best in top": "d",
        "regret": ".1f",
    }
    rows = []
    for (kind, measured), alike in sorted(grouped(results, lambda row: (row["pair"], row["measured"])).items()):
        errors = [np.median(np.concatenate([row["errors"][name] for row in alike])) for name in _METHODS]
        inside = [np.mean([row["inside"] for row in alike if row["faster"] is way]) for way in (True, False)]
        best, regret = sum(row["top"] for row in alike), np.mean([row["regret"] for row in alike])
        order = np.mean([row["spearman"] for row in alike])
        rows.append((kind, measured, *errors, *inside, order, len(alike), best, regret))
    title = (
        "Median error, share inside the 80 % interval by direction (percent), order, pairs whose best configuration is"
    )
    return Table(f"{title} among the {TOP} to run first, and the mean loss where it is not (percent)", columns, rows)
