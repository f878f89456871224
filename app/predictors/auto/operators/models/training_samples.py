"""Training samples of one operator: features, physics terms, measured times and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.ops import OPS
from app.ops.kinds import kinds_of
from app.ops.moe import GROUPED, OTHER_GATE, router_class
from app.predictors.auto.operators.models.features import FEATURES, ROUTER_CLASS, fill_features, shape_features
from app.predictors.auto.operators.models.gaussian_process import Places, chooses
from app.predictors.auto.operators.models.trend import Axes
from app.predictors.physics.analytic_model import ANY_TILE, TERMS, Devices, devices_of, fill_terms
from app.predictors.physics.operator_features import OperatorFeatures, operator_features, products_of
from app.predictors.physics.physics_fit import fill_scaled
from app.predictors.priors import FAST_LINK_BYTES_PER_S
from app.runtime.compiled import compiled
from app.tables.arrays import Bools, Floats, Ints, Singles
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.tables.operator_runs import OperatorRuns

# Most rows that a GPU's serving stacks teach: training takes a time in proportion to them.
MOST_ROWS = 40_000
# Fields of Samples whose last axis is the rows.
_BY_ROW = ("features", "terms", "latency_s", "gpu", "tile", "isolated")


@dataclass(frozen=True, slots=True)
class Samples:
    """Training samples of one cell (operator and dtype), n rows.

    features   float32 [columns, n] of models.features
    terms      float64 [TERMS, n] of physics.analytic_model
    latency_s  float64 [n]
    gpu        int [n], index into `names` (GPU ids) and `architectures` (their architecture keys)
    tile       int [n], the only tile of the GPU's kernels, or ANY_TILE
    places     columns of the smooth part for few rows; `own_places` for a GPU whose model stands alone
    axes       columns of the trend over parts
    moves      whether the operator mostly moves bytes
    streams    whether it only streams them, once
    waits      whether much of its time is waiting that no term of the analytic model covers, so that any may absorb it
    chosen     whether a library chooses among algorithms for the operator
    isolated   bool [n], rows that are not representative of other layers: other kernels, or another load
    blank      distillation inputs: features float32 [columns, q] of unmeasured rows, and their GPUs, int [q]
    """

    features: Singles
    terms: Floats
    latency_s: Floats
    gpu: Ints
    tile: Ints
    names: Sequence[str]
    architectures: Sequence[str]
    places: Places
    own_places: Places
    axes: Axes
    moves: bool
    streams: bool
    waits: bool
    chosen: bool
    isolated: Bools
    blank: tuple[Singles, Ints] = (np.empty((FEATURES, 0), np.float32), np.empty(0, np.intp))

    def of(self, rows: Ints) -> Samples:
        """Return the samples of `rows`."""
        columns: dict[str, Any] = {name: np.ascontiguousarray(getattr(self, name)[..., rows]) for name in _BY_ROW}
        return replace(self, **columns)

    def of_one_gpu(self) -> Samples:
        """Return the samples, all of one GPU, as they are without any other: its name and distillation inputs alone."""
        code, none = int(self.gpu[0]), np.zeros_like(self.gpu)
        features, on = self.blank
        blank = np.ascontiguousarray(features[:, on == code])
        return replace(
            self,
            gpu=none,
            names=(self.names[code],),
            architectures=(self.architectures[code],),
            blank=(blank, np.zeros(blank.shape[1], dtype=on.dtype)),
        )

    def residual(self, factors: Floats) -> Floats:
        """Return log(measured / physics under `factors`), float64 [n]."""
        physics = np.empty(len(self.latency_s))
        fill_scaled(self.terms, factors, physics)
        return np.log(self.latency_s / physics)


def together(parts: Sequence[Samples]) -> Samples:
    """Return the samples of all parts, of one operator and one table of GPUs."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in _BY_ROW
    }
    return replace(parts[0], **columns)


def usual_rows(run: OperatorRuns) -> OperatorRuns:
    """Return the forward, non-burst rows of each GPU's serving stacks, or of its most frequent other software.

    Rows that the host launched are those of one software. Other rows would blur these. Of more than MOST_ROWS on a GPU
    as many are kept, by the order of their keys.
    """
    eager = run.rows.ops.column("eager")
    plain = ~((run.rows.ops.column("backward") > 0.0) | (run.rows.ops.column("burst") > 0.0))
    serving = np.isfinite(run.rows.ops.column("stack"))
    kept = [np.empty(0, dtype=np.intp)]
    for gpu in np.unique(run.rows.gpu):
        for mode in (plain & (eager > 0.0), plain & ~(eager > 0.0)):
            rows = np.flatnonzero((run.rows.gpu == gpu) & mode)
            if len(rows):
                kept.append(_of_usual_software(rows, run.software[rows], serving[rows] & ~(eager[rows] > 0.0)))
    return run.take(np.concatenate(kept))


def _of_usual_software(rows: Ints, software: Ints, serving: Bools) -> Ints:
    """Return the rows of all serving stacks if these have the most frequent software, else that software's."""
    usual = np.bincount(software).argmax()
    if serving[software == usual].all():
        rows = rows[serving]
        kept: Ints = rows[np.arange(0, len(rows), max(len(rows) / MOST_ROWS, 1.0)).astype(np.intp)]
        return kept
    kept = rows[software == usual]
    return kept


def architecture_keys(gpus: GpuTable, *, collective: bool) -> tuple[str, ...]:
    """Return the architecture key of every GPU, equal for siblings, whose kernels are alike; "" if unknown.

    For a collective the key includes the kind of link: times over NVLink do not predict those over PCIe.
    """
    architectures = gpus.architectures or ("",) * len(gpus)
    if not collective:
        return architectures
    fast = gpus.column("link_bandwidth_bytes_per_s") > FAST_LINK_BYTES_PER_S
    return tuple(
        architecture if quick or not architecture else f"{architecture}/pcie"
        for architecture, quick in zip(architectures, fast, strict=True)
    )


def samples(rows: Measurements, gpus: GpuTable, tile: Ints | None = None) -> Samples:
    """Return the samples of measured rows of one operator in one dtype.

    `tile`: int [n], the only tile of each row's kernels; any if None.
    """
    i, only = np.arange(len(rows)), np.full(len(rows), ANY_TILE) if tile is None else tile
    kinds = kinds_of(rows.ops)
    products = products_of(kinds)
    op_features = operator_features(rows.ops, kinds, products)
    devices = devices_of(gpus)
    terms, features = np.empty((TERMS, len(i))), np.empty((FEATURES, len(i)), dtype=np.float32)
    fill_terms(op_features, devices, (i, rows.gpu), only, terms)
    fill_all(shape_features(kinds, products, len(i)), op_features, devices, rows.gpu, terms, features)
    kind, product = int(rows.ops.kind[0]), products[0] is not None
    places, own_places = Places.of_few(kind, product=product), Places.of(kind, product=product)
    op, axes = OPS[kind], Axes.of(kind, product=product)
    names, architectures = gpus.ids, architecture_keys(gpus, collective=op.pattern is not None)
    moves, streams = op.traffic != "computes", op.traffic == "streams"
    isolated = np.zeros(len(i), dtype=np.bool_)
    fields = (features, terms, rows.latency_s, rows.gpu, only, names, architectures, places, own_places, axes)
    return Samples(*fields, moves, streams, op.waits, chooses(kind), isolated)


def with_isolated_rows(samples_of_runs: Samples, runs: OperatorRuns) -> Samples:
    """Return the samples of `runs` with `isolated` rows marked, by kernel name; only experts have such rows."""
    if OPS[int(runs.rows.ops.kind[0])].kernel_class is not router_class:
        return samples_of_runs  # the same codes mean other things: kinds of attention, say
    return replace(
        samples_of_runs, isolated=_isolated(samples_of_runs.features[ROUTER_CLASS], runs.rows.gpu, runs.kernel)
    )


def _isolated(router: Singles, gpu: Ints, kernel: Ints) -> Bools:
    """Return the isolated rows, bool [n]: grouped routers, and other gates that run on kernels of no other layer."""
    gate = router == OTHER_GATE
    isolated: Bools = gate & (kernel >= 0)
    for code in np.unique(gpu[isolated]):
        usual = np.unique(kernel[(gpu == code) & ~gate])
        isolated &= (gpu != code) | ~np.isin(kernel, usual)
    isolated |= router == GROUPED
    return isolated


@compiled
def fill_all(
    shape: Singles, op_features: OperatorFeatures, devices: Devices, gpu: Ints, terms: Floats, features: Singles
) -> None:
    """Fill `features` float32 [FEATURES, n] of row q on GPU row `gpu[q]`, given the terms [TERMS, n]."""
    for q in range(len(gpu)):
        fill_features(shape, op_features, devices, q, gpu[q], terms, q, features, q)
