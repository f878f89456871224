"""Measured rows of an operator as what learns of them sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.ops import OPS
from app.ops.kinds import kinds_of
from app.ops.moe import GROUPED, OTHER_GATE
from app.predictors.auto.operators.models.features import FEATURES, ROUTER_CLASS, fill_features, shape_features
from app.predictors.auto.operators.models.gaussian_process import Places, chooses
from app.predictors.auto.operators.physics.analytic_model import ANY_TILE, TERMS, Devices, devices_of, fill_terms
from app.predictors.auto.operators.physics.operator_features import OperatorFeatures, operator_features, products_of
from app.predictors.auto.operators.physics.physics_fit import fill_scaled
from app.predictors.priors import FAST_LINK_BYTES_PER_S
from app.runtime.compiled import compiled
from app.tables.arrays import Bools, Floats, Ints, Singles
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.tables.operator_runs import OperatorRuns


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured rows of one cell, n of them.

    features   float32 [columns, n] of models.features
    terms      float64 [TERMS, n] of physics.analytic_model
    latency_s  float64 [n]
    gpu        int [n], code into `names` and `architectures`
    tile       int [n], the only one that its GPU's kernels have, or ANY_TILE
    places     where the smooth rest of few rows looks, and `own_places` that of a GPU that stands by itself
    moves      whether the operator does little but move bytes
    streams    whether it only moves them through, once
    waits      whether much of its time is waiting that no term of the physics names, and any may stand in for
    chosen     whether a library chooses among algorithms for the operator
    apart      bool [n], rows that tell of no other layers, whose kernels or load were others
    blank      float32 [columns, q], features of what was not measured, and of which GPU, int [q]
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
    moves: bool
    streams: bool
    waits: bool
    chosen: bool
    isolated: Bools
    blank: tuple[Singles, Ints] = (np.empty((FEATURES, 0), np.float32), np.empty(0, np.intp))

    def of(self, rows: Ints) -> Samples:
        """The rows given."""
        terms = np.ascontiguousarray(self.terms[:, rows])
        kept = {name: getattr(self, name)[rows] for name in ("latency_s", "gpu", "tile", "isolated")}
        return replace(self, features=self.features[:, rows], terms=terms, **kept)

    def residual(self, factors: Floats) -> Floats:
        """log(measured / physics under `factors`), [n]."""
        physics = np.empty(len(self.latency_s))
        fill_scaled(self.terms, factors, physics)
        return np.log(self.latency_s / physics)


def usual_rows(run: OperatorRuns) -> OperatorRuns:
    """Forward rows on busy cards of each GPU's most frequent software stack, eager and not: others would blur these."""
    eager = run.rows.ops.column("eager")
    plain = ~((run.rows.ops.column("backward") > 0.0) | (run.rows.ops.column("burst") > 0.0))
    kept = [np.empty(0, dtype=np.intp)]
    for gpu in np.unique(run.rows.gpu):
        for mode in (plain & (eager > 0.0), plain & ~(eager > 0.0)):
            rows = np.flatnonzero((run.rows.gpu == gpu) & mode)
            if len(rows):
                stack = np.bincount(run.software[rows]).argmax()
                kept.append(rows[run.software[rows] == stack])
    return run.take(np.concatenate(kept))


def architecture_keys(gpus: GpuTable, *, collective: bool) -> tuple[str, ...]:
    """The make of every GPU, the same of those whose kernels are alike; "" where it is not known.

    For a collective also by the sort of link: how it fares over NVLink says nothing of PCIe.
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
    """Features and residuals of measured rows of one operator in one dtype; `tile` [n], the usual ones if None."""
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
    op = OPS[kind]
    names, architectures = gpus.ids, architecture_keys(gpus, collective=op.link_bytes is not None)
    moves, streams = op.traffic != "computes", op.traffic == "streams"
    isolated = np.zeros(len(i), dtype=np.bool_)
    fields = (features, terms, rows.latency_s, rows.gpu, only, names, architectures, places, own_places)
    return Samples(*fields, moves, streams, op.waits, chooses(kind), isolated)


def with_isolated_rows(found: Samples, runs: OperatorRuns) -> Samples:
    """Samples of these runs; of experts, with the rows that tell of no other layers, as kernels' names say."""
    if OPS[int(runs.rows.ops.kind[0])].kernel_class is None:
        return found
    return replace(found, isolated=_isolated(found.features[ROUTER_CLASS], runs.rows.gpu, runs.kernel))


def _isolated(router_class: Singles, gpu: Ints, kernel: Ints) -> Bools:
    """Rows of grouped routers, and of layers whose other gate their GPU runs on kernels of no other layer, bool [n]."""
    gate = router_class == OTHER_GATE
    isolated: Bools = gate & (kernel >= 0)
    for code in np.unique(gpu[isolated]):
        usual = np.unique(kernel[(gpu == code) & ~gate])
        isolated &= (gpu != code) | ~np.isin(kernel, usual)
    isolated |= router_class == GROUPED
    return isolated


@compiled
def fill_all(
    shape: Singles, op_features: OperatorFeatures, devices: Devices, gpu: Ints, terms: Floats, features: Singles
) -> None:
    """Fill `features` float32 [FEATURES, n] for row q on GPU row `gpu[q]`, with the terms in column q."""
    for q in range(len(gpu)):
        fill_features(shape, op_features, devices, q, gpu[q], terms, q, features, q)
