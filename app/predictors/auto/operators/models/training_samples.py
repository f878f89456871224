"""Training samples of one operator: features, physics terms, measured times and groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.ops import OP_CODE, OPS, kinds_of
from app.ops.gemm import alignment_of
from app.ops.moe import GROUPED, OTHER_GATE, router_class
from app.predictors.auto.operators.models.features import FEATURES, ROUTER_CLASS, Rows, fill_features, shape_features
from app.predictors.physics.analytic_model import ANY_TILE, TERMS, devices_of, fill_terms
from app.predictors.physics.operator_features import operator_features, products_of
from app.predictors.physics.physics_fit import fill_scaled
from app.predictors.priors import FAST_LINK_BYTES_PER_S
from app.runtime.compiled import compiled
from app.tables.arrays import Bools, Floats, Ints, Singles
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements, OperatorRuns

# Most rows of a GPU that teach an operator, of each launch mode: training takes a time in proportion to them.
MOST_ROWS = 120_000
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
    kind       the operator's code
    isolated   bool [n], rows that are not representative of other layers: other kernels, or another load
    blank      distillation inputs: features float32 [columns, q] of unmeasured rows, and their GPUs, int [q]
    """

    features: Singles
    terms: Floats
    latency_s: Floats
    gpu: Ints
    tile: Ints
    kind: int
    names: Sequence[str]
    architectures: Sequence[str]
    isolated: Bools
    blank: tuple[Singles, Ints] = (np.empty((FEATURES, 0), np.float32), np.empty(0, np.intp))

    def of(self, rows: Ints) -> Samples:
        """Return the samples of `rows`."""
        columns: dict[str, Any] = {name: np.ascontiguousarray(getattr(self, name)[..., rows]) for name in _BY_ROW}
        return replace(self, **columns)

    def by_gpu(self) -> Iterator[tuple[str, str, Samples]]:
        """Return id, architecture key and samples of every GPU."""
        for code in np.unique(self.gpu).tolist():
            yield self.names[code], self.architectures[code], self.of(np.flatnonzero(self.gpu == code))

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
    """Return the forward, non-burst, aligned rows of each GPU's serving stacks, or of its most frequent other software.

    Chosen apart for rows that the host launched. Other rows would blur these. Of more than MOST_ROWS on a GPU as many
    are kept, by the order of their keys.
    """
    eager = run.rows.ops.column("eager")
    plain = ~((run.rows.ops.column("backward") > 0.0) | (run.rows.ops.column("burst") > 0.0))
    alignment = alignment_of(OPS[OP_CODE[run.op]], run.rows.ops)
    if alignment is not None:
        plain &= alignment.usual
    serving = np.isfinite(run.rows.ops.column("stack"))
    kept = [np.empty(0, dtype=np.intp)]
    for gpu in np.unique(run.rows.gpu):
        for mode in (plain & (eager > 0.0), plain & ~(eager > 0.0)):
            rows = np.flatnonzero((run.rows.gpu == gpu) & mode)
            if len(rows):
                kept.append(_of_usual_software(rows, run.software[rows], serving[rows]))
    return run.take(np.concatenate(kept))


def _of_usual_software(rows: Ints, software: Ints, serving: Bools) -> Ints:
    """Return the rows of all serving stacks if these have the most frequent software, else that software's."""
    usual = np.bincount(software).argmax()
    is_kept = serving if serving[software == usual].all() else software == usual
    kept: Ints = rows[is_kept]
    return kept[np.linspace(0, len(kept), min(len(kept), MOST_ROWS), endpoint=False).astype(np.intp)]


def architecture_keys(gpus: GpuTable, *, collective: bool) -> tuple[str, ...]:
    """Return the architecture key of every GPU, equal for siblings, whose kernels are alike; "" if unknown.

    For collectives a GPU in a PCIe slot has no siblings: the machine decides what many slots share, not the GPU. Of
    eight, one machine's L40S pass on 2 GB/s each, another's L20 over 10 and a third's RTX PRO 6000 23.
    """
    architectures = gpus.architectures or ("",) * len(gpus)
    if not collective:
        return architectures
    fast = gpus.column("link_bandwidth_bytes_per_s") > FAST_LINK_BYTES_PER_S
    return tuple(architecture if quick else "" for architecture, quick in zip(architectures, fast, strict=True))


def samples(rows: Measurements, gpus: GpuTable, tile: Ints | None = None) -> Samples:
    """Return the samples of measured rows of one operator in one dtype.

    `tile`: int [n], the only tile of each row's kernels; any if None.
    """
    n, kinds, kind = len(rows), kinds_of(rows.ops), int(rows.ops.kind[0])
    products, only = products_of(kinds), np.full(n, ANY_TILE) if tile is None else tile
    op_features, devices = operator_features(rows.ops, kinds, products), devices_of(gpus)
    terms, features = np.empty((TERMS, n)), np.empty((FEATURES, n), dtype=np.float32)
    fill_terms(op_features, devices, (np.arange(n), rows.gpu), only, terms)
    fill_all(Rows(shape_features(kinds, products, n), op_features, devices, terms), rows.gpu, features)
    architectures = architecture_keys(gpus, collective=OPS[kind].pattern is not None)
    isolated = np.zeros(n, dtype=np.bool_)
    return Samples(features, terms, rows.latency_s, rows.gpu, only, kind, gpus.ids, architectures, isolated)


def with_isolated_rows(samples_of_runs: Samples, runs: OperatorRuns) -> Samples:
    """Return the samples of `runs` with `isolated` rows marked, by kernel name; only experts have such rows."""
    if OPS[samples_of_runs.kind].kernel_class is not router_class:
        return samples_of_runs  # the same codes mean other things: kinds of attention, say
    isolated = _isolated(samples_of_runs.features[ROUTER_CLASS], runs.rows.gpu, runs.kernel)
    return replace(samples_of_runs, isolated=isolated)


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
def fill_all(rows: Rows, gpu: Ints, features: Singles) -> None:
    """Fill `features` float32 [FEATURES, n] of row q on GPU row `gpu[q]`."""
    for q in range(len(gpu)):
        fill_features(rows, q, gpu[q], q, features, q)
