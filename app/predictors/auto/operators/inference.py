"""Inference of learned operators: the physics under fitted constants times the models' corrections, in one pass."""

from __future__ import annotations

import numpy as np

from app.bands.groups import (
    S_CALIBRATED,
    S_SEEN,
    S_SEEN_OUTSIDE,
    S_SIBLING,
    S_UNSEEN,
    S_UNSEEN_OUTSIDE,
    S_UNTRAINED,
    operator_codes,
)
from app.coefficients import Coefficients
from app.predictors.auto.operators.cell_choice import cells_of, extrapolation_distance, most_devices
from app.predictors.auto.operators.models.corrections import Smooth, add_smooth, add_trend
from app.predictors.auto.operators.models.features import DEVICES, EAGER, FEATURES, Rows, fill_features
from app.predictors.auto.operators.models.packed import GpuModels, Packed
from app.predictors.auto.operators.queries import MEMBERS, Answers, Block, Fit, Queries, Trace
from app.predictors.auto.operators.transfer import dram_scale
from app.predictors.physics.analytic_model import (
    COMPUTE_S,
    DRAM_S,
    LIMIT,
    TERMS,
    best_tile,
    bound_of,
    composed,
    compute_s,
    fill_terms,
)
from app.predictors.physics.operator_features import OperatorFeatures
from app.predictors.physics.physics_fit import COMPUTE, scaled_s, scaled_work_s
from app.predictors.priors import IS_COLLECTIVE
from app.predictors.trees.sums import BLOCK, Thresholds, add_trees
from app.runtime.compiled import compiled, compiled_per_row
from app.tables.arrays import Floats, Ints, Singles

_FITTED = Coefficients("learning")

# Decay of corrections with the extrapolation distance, per factor of e.
FADING = _FITTED.number("fading")
# Growth of intervals with the extrapolation distance, per factor of e.
STRETCH = _FITTED.number("stretch")
# Relative difference of DRAM bytes up to which the L2s of two GPUs keep the same part of a row's data.
SAME_TRAFFIC = _FITTED.number("same_traffic")

_group_of = compiled(operator_codes)


@compiled
def fill_answers(
    rows: Rows, packed: Packed, gpu_models: GpuModels, queries: Queries, answers: Answers, trace: Trace
) -> None:
    """Fill `answers`, and `trace` unless it is empty, for the queries in `order`, block by block."""
    shape, op_features = rows.shape, rows.op_features
    i, j, order = queries.row, queries.gpu, queries.order
    cells = cells_of(shape, (op_features.kind, op_features.dtype), (i, j), packed, gpu_models)
    fill_terms(op_features, rows.devices, (i, j), _tiles_of(cells, j, gpu_models), rows.terms)
    distance, correction, first = np.empty(BLOCK), np.empty(BLOCK), 0
    while first < len(order):
        query = order[first : first + _block_length(op_features, queries, cells, first)]
        row, gpu, cell = i[query[0]], j[query[0]], cells[query[0]]
        kind, dtype = op_features.kind[row], op_features.dtype[row]
        factors, low, high = gpu_models.factors[cell, gpu], packed.low[cell], packed.high[cell]
        situation, devices = gpu_models.situation[cell, gpu], most_devices(gpu_models, cell, gpu)
        other = cell != gpu_models.cell[kind, dtype, 0]
        trained = gpu_models.dtype[cell] if other and IS_COLLECTIVE[kind] else dtype
        borrowed = gpu_models.borrowed[kind, dtype] or (other and not IS_COLLECTIVE[kind])
        fit = Fit(factors, low, high, situation, devices, trained, borrowed)
        block = Block(query, i[query], cell, gpu, distance, correction)
        for k in range(len(query)):
            distance[k] = extrapolation_distance(shape, block.row[k], fit.low, fit.high)
        correction[: len(query)] = 0.0
        _fill_corrections(rows, packed, gpu_models, queries, block, trace)
        _fill_codes(rows, block, fit, answers)
        if len(trace.cell):
            _trace_physics(rows, gpu_models, block, trace)
        if gpu_models.donor[cell, gpu, 0] >= 0:
            _scale_to_sibling(rows, gpu_models, block, fit)
        _fill_times(rows, block, fit, answers)
        if len(trace.cell):
            _trace_members(rows, block, fit, trace)
        first += len(query)


@compiled
def _fill_corrections(
    rows: Rows, packed: Packed, gpu_models: GpuModels, queries: Queries, block: Block, trace: Trace
) -> None:
    """Add the models' corrections to `block.correction`, which is zero, faded by the extrapolation distance.

    A trend goes on beyond its rows, so that corrections with one do not fade.
    """
    count, share, correction = len(block.query), queries.share[block.query], block.correction
    single = np.zeros((MEMBERS if len(trace.cell) else 0, count))
    for side in range(2 if share.any() else 1):  # one call, which is inlined: its compilation takes seconds
        ones = queries.other[block.query] if side else queries.twin[block.query]
        part, parts = np.zeros(count), np.zeros_like(single)
        read = Block(ones, queries.row[ones], block.cell, block.gpu, block.distance, part)
        _add_models(rows, packed, gpu_models, read, parts)
        weight = share if side else 1.0 - share
        correction[:count] += weight * part
        single += weight * parts
    low, high = packed.low[block.cell], packed.high[block.cell]
    model = gpu_models.member[block.cell, block.gpu, 0]
    goes_on = model >= 0 and packed.trend_begin[model] < packed.trend_begin[model + 1]
    for k in range(count):
        fading = 1.0
        if block.distance[k] > 0.0 and not goes_on:
            row = queries.row[queries.twin[block.query[k]]]
            fading = np.exp(-FADING * extrapolation_distance(rows.shape, row, low, high))
            correction[k] *= fading
        if len(single):
            trace.fading[block.query[k]] = fading
            trace.correction[:, block.query[k]] = single[:, k]


@compiled_per_row
def _fill_codes(rows: Rows, block: Block, fit: Fit, answers: Answers) -> None:
    """Fill the bound, the support and the interval group of each answer of a block.

    A collective over more devices than in training counts as unseen: how a machine wires more is up to the machine.
    """
    for k in range(len(block.query)):
        q, row, distance = block.query[k], block.row[k], block.distance[k]
        situation = S_UNSEEN if rows.shape[DEVICES, row] > fit.devices else fit.situation
        # Training has no backward passes, no bursts and only aligned rows.
        op_features = rows.op_features
        if op_features.backward[row] > 0.0 or op_features.burst[row] > 0.0 or op_features.misaligned[row] > 0.0:
            situation = S_UNTRAINED
        situation = _situation_at(situation, distance > 0.0, fit.borrowed)
        answers.group[q] = _group_of(rows.op_features.kind[row], fit.dtype, situation)
        # A sibling outside its training range extrapolates; its interval stays.
        outside = distance > 0.0 and situation == S_SIBLING
        answers.bound[q], answers.situation[q] = bound_of(rows.terms, q), S_SEEN_OUTSIDE if outside else situation


@compiled_per_row
def _scale_to_sibling(rows: Rows, gpu_models: GpuModels, block: Block, fit: Fit) -> None:
    """Scale the DRAM and compute seconds of a block, in place, from its first donor to its own GPU.

    DRAM: by the ratio of bandwidths (`transfer`). Compute: where the tensor peak of this GPU is reduced below its
    chip's by more than the donor's is.
    """
    (op_features, devices, terms), (cell, gpu) = (rows.op_features, rows.devices, rows.terms), (block.cell, block.gpu)
    ratio, reduction = gpu_models.bandwidth_ratio[cell, gpu], devices.peak_reduction[op_features.dtype[block.row[0]]]
    scaled_peak = reduction[gpu] > reduction[gpu_models.donor[cell, gpu, 0]]
    for k in range(len(block.query)):
        q, row, correction = block.query[k], block.row[k], block.correction[k]
        if ratio != 1.0:
            in_turn = op_features.between[row] > 0.0
            terms[DRAM_S, q] *= dram_scale(op_features.kind[row], in_turn, fit.factors, correction, ratio)
        if scaled_peak:
            slower = fit.factors[COMPUTE] * np.exp(correction)
            terms[COMPUTE_S, q] = compute_s(op_features, row, devices, gpu, gpu_models.tile[cell, gpu], slower)


@compiled_per_row
def _fill_times(rows: Rows, block: Block, fit: Fit, answers: Answers) -> None:
    """Fill the seconds of each answer of a block, and the factor by which its interval is wider."""
    for k in range(len(block.query)):
        q = block.query[k]
        whole = fit.low[EAGER] <= rows.shape[EAGER, block.row[k]] <= fit.high[EAGER]
        answers.latency_s[q] = corrected_s(rows.terms, q, fit.factors, block.correction[k], whole)
        answers.stretch[q] = 1.0 + STRETCH * block.distance[k]


@compiled_per_row
def _trace_physics(rows: Rows, gpu_models: GpuModels, block: Block, trace: Trace) -> None:
    """Record the cell, the tile and the DRAM seconds of a block, these before `_scale_to_sibling`."""
    cell, gpu = block.cell, block.gpu
    only = gpu_models.tile[cell, gpu]
    for k in range(len(block.query)):
        q = block.query[k]
        trace.cell[q], trace.dram_s[q] = cell, rows.terms[DRAM_S, q]
        trace.tile[q], _ = best_tile(rows.op_features, block.row[k], rows.devices, gpu, only)


@compiled_per_row
def _trace_members(rows: Rows, block: Block, fit: Fit, trace: Trace) -> None:
    """Record the seconds by the physics alone and by each model alone; turn corrections into those of the time."""
    terms, factors = rows.terms, fit.factors
    for k in range(len(block.query)):
        q = block.query[k]
        whole = fit.low[EAGER] <= rows.shape[EAGER, block.row[k]] <= fit.high[EAGER]
        trace.whole[q], trace.physics_s[q] = whole, corrected_s(terms, q, factors, 0.0, whole)
        share = 1.0 if whole else min(scaled_work_s(terms, q, factors) / scaled_s(terms, q, factors), 1.0)
        for member in range(MEMBERS):
            single = trace.correction[member, q] * trace.fading[q]
            trace.member_s[member, q] = corrected_s(terms, q, factors, single, whole)
            trace.correction[member, q] *= share


@compiled
def _add_models(rows: Rows, packed: Packed, gpu_models: GpuModels, block: Block, single: Floats) -> None:
    """Add to `block.correction` the weighted log corrections of a cell's models.

    The model of a sibling is evaluated for that GPU, the donor. `single` [MEMBERS, m], unless it is empty, gets the
    correction of each model at full weight.
    """
    query, cell, gpu, total = block.query, block.cell, block.gpu, block.correction
    count, shown = len(query), -1
    features = np.empty((FEATURES, count), dtype=np.float32)  # in one piece, to be read as vectors
    for k in range(MEMBERS):
        model, donor = gpu_models.member[cell, gpu, k], gpu_models.donor[cell, gpu, k]
        if model < 0:
            continue
        on = gpu if donor < 0 else donor
        if on != shown and on == gpu:
            for n in range(count):
                fill_features(rows, block.row[n], gpu, query[n], features, n)
        elif on != shown:
            _fill_donor_features(rows, block, donor, gpu_models.tile[cell, gpu], features)
        shown, weight = on, gpu_models.weight[cell, gpu, k]
        if len(single):
            single[k] = -total[:count] / weight
        total[:count] += weight * packed.mean[model]
        thresholds = Thresholds(packed.threshold, packed.threshold_begin[model])
        trees, behind = packed.trees, 0
        if packed.first[model] >= len(trees.half):
            trees, behind = packed.added, len(trees.half)
        span = packed.first[model] - behind, packed.stop[model] - behind
        add_trees(features, trees, thresholds, span, weight, total[:count])
        points = slice(packed.begin[model], packed.begin[model + 1])
        smooth = Smooth(packed.column[model], packed.scale[model], packed.point[points], packed.weight[points])
        add_smooth(features, smooth, weight, total[:count])
        trend = packed.trend[packed.trend_begin[model] : packed.trend_begin[model + 1]]
        add_trend(features, trend, weight, total[:count])
        if len(single):
            single[k] += total[:count] / weight


@compiled
def _fill_donor_features(rows: Rows, block: Block, donor: int, only: int, features: Singles) -> None:
    """Fill `features` [FEATURES, m] as on GPU row `donor`, with the tile `only` or ANY_TILE.

    Rows of which the two L2s keep different parts get the features of the GPU itself: the donor's model has its step
    where the donor's own L2 ends.
    """
    i, query, gpu, bandwidth = block.row, block.query, block.gpu, rows.devices.bandwidth
    there = Rows(rows.shape, rows.op_features, rows.devices, np.empty((TERMS, len(i))))
    fill_terms(rows.op_features, rows.devices, (i, np.full(len(i), donor)), np.full(len(i), only), there.terms)
    for n in range(len(i)):
        bytes_here = rows.terms[DRAM_S, query[n]] * bandwidth[gpu]
        bytes_there = there.terms[DRAM_S, n] * bandwidth[donor]
        if abs(bytes_here - bytes_there) <= SAME_TRAFFIC * max(bytes_here, bytes_there):
            fill_features(there, i[n], donor, n, features, n)
        else:
            fill_features(rows, i[n], gpu, query[n], features, n)


@compiled_per_row
def _block_length(op_features: OperatorFeatures, queries: Queries, cells: Ints, first: int) -> int:
    """Number of queries from place `first` of the order with one operator, dtype, cell and GPU, at most BLOCK."""
    i, j, order = queries.row, queries.gpu, queries.order
    head, stop = order[first], min(first + BLOCK, len(order))
    kind, dtype = op_features.kind[i[head]], op_features.dtype[i[head]]
    for place in range(first + 1, stop):
        q = order[place]
        if (
            j[q] != j[head]
            or cells[q] != cells[head]
            or op_features.kind[i[q]] != kind
            or op_features.dtype[i[q]] != dtype
        ):
            return place - first
    return stop - first


@compiled
def _tiles_of(cells: Ints, j: Ints, gpu_models: GpuModels) -> Ints:
    """The only tile that kernels of a query's cell have on GPU row `j[q]`, or ANY_TILE, int [n]."""
    only = np.empty(len(cells), dtype=np.intp)
    for q in range(len(cells)):
        only[q] = gpu_models.tile[cells[q], j[q]]
    return only


@compiled_per_row
def _situation_at(situation: int, outside: bool, borrowed: bool) -> int:
    """The situation whose interval holds `outside` the training range, and for models of another dtype."""
    if situation in (S_SEEN, S_CALIBRATED):
        return S_SEEN_OUTSIDE if outside else S_SIBLING if borrowed else situation
    return S_UNSEEN_OUTSIDE if outside and situation == S_UNSEEN else situation


@compiled_per_row
def corrected_s(terms: Floats, q: int, factors: Floats, correction: float, whole: bool) -> float:
    """Seconds by the physics under `factors` times exp(correction), at least the hardware limit.

    `whole`: launched as in training, so that the correction applies to the whole time; else to its work alone.
    """
    if whole:
        return float(max(scaled_s(terms, q, factors) * np.exp(correction), terms[LIMIT, q]))
    work = scaled_work_s(terms, q, factors)
    work *= np.exp(correction * min(work / scaled_s(terms, q, factors), 1.0))
    return composed(terms, q, work)
