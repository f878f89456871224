"""What measured launches say of another launch: the best linear prediction from correlated log costs.

The log cost of a launch on a GPU is a prior plus random effects, independent of one another: of the kernel, of its
size, of the shape of its blocks (threads, registers, shared memory), and of the kernel and of the shape on GPUs of this
vendor, of this architecture, on this GPU. Two rows share the effects that they have in common: rows on both GPUs tell
the kernel's ratio, and the same launch elsewhere tells what its shape costs (Henderson 1975).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.runtime.compiled import compiled, compiled_per_row
from app.tables.arrays import Floats, Ints

_FITTED = Coefficients("launches")

# Shared memory that makes no other shape by itself, bytes.
LITTLE_SHARED_BYTES = _FITTED.number("little_shared_bytes")
# Columns of Rows.code.
_LABEL, _GPU, _ARCHITECTURE, _VENDOR = range(4)
# Vendor code of Devices.
_NVIDIA = 0


class Variances(NamedTuple):
    """Variances of the random effects on a log cost, and how they fade.

    kernel        of a kernel: large, so that one row of it decides; kernels have as much in common with each other
    size          of its size, fading over `size_reach` in log lane operations
    shape         of its blocks' shape: another shape shares `shape_share` of it, which fades over `shape_reach` in log
                  threads, registers and shared memory
    vendor, architecture, gpu  of the kernel there
    vendor_shape  of the shape with another vendor's compiler than NVIDIA's, for whose GPUs kernels are written
    gpu_shape     of the shape on a GPU
    noise         of a measurement
    freedom       how many rows these variances count as, against the scatter of the evidence
    """

    kernel: float
    size: float
    size_reach: float
    shape: float
    shape_reach: float
    shape_share: float
    vendor: float
    architecture: float
    gpu: float
    vendor_shape: float
    gpu_shape: float
    noise: float
    freedom: float


VARIANCES = Variances(**_FITTED.by_name("transfer_variances"))


class Rows(NamedTuple):
    """Launches on GPUs, m of them: the query, then its evidence.

    code    int [m, 4], label of the kernel, GPU, architecture, vendor
    figure  float64 [m, 5], hash of the launch, log lane operations, and logarithms of the block's shape
    """

    code: Ints
    figure: Floats


@compiled_per_row
def alike(rows: Rows, a: int, b: int, v: Variances) -> tuple[float, float]:
    """Return the correlations of the effects of two launches' sizes and shapes, 0 to 1."""
    figure, apart = rows.figure, 0.0
    for k in range(2, 5):
        apart += abs(figure[a, k] - figure[b, k])
    # Compilers give one launch other registers on each GPU.
    if figure[a, 0] == figure[b, 0] and rows.code[a, _GPU] != rows.code[b, _GPU]:
        apart = 0.0
    shape = 1.0 if apart == 0.0 else v.shape_share * np.exp(-apart / v.shape_reach)
    return np.exp(-abs(figure[a, 1] - figure[b, 1]) / v.size_reach), shape


@compiled_per_row
def covariance(rows: Rows, a: int, b: int, v: Variances) -> float:
    """Return the covariance of the log costs of two rows, without noise."""
    code, total = rows.code, v.kernel
    if code[a, _LABEL] != code[b, _LABEL]:
        return total
    size, shape = alike(rows, a, b, v)
    total += v.kernel + v.size * size + v.shape * shape
    if code[a, _VENDOR] == code[b, _VENDOR]:
        total += v.vendor + (0.0 if code[a, _VENDOR] == _NVIDIA else v.vendor_shape) * shape
    if code[a, _ARCHITECTURE] == code[b, _ARCHITECTURE]:
        total += v.architecture
    if code[a, _GPU] == code[b, _GPU]:
        total += v.gpu + v.gpu_shape * shape * size
    return total


@compiled
def predict(rows: Rows, deviation: Floats, v: Variances, mean: Floats, misfit: Floats) -> float:
    """Return the variance of the query's log cost, and fill its mean and the evidence's misfit.

    deviation  float64 [h, m - 1], deviations of the evidence's log costs from the prior, under h hypotheses
    mean       float64 [h], the query's deviation
    misfit     float64 [h], squared deviations of the evidence in units of their variances: twice the negative log
               likelihood, but for what all hypotheses share
    """
    m = len(rows.code) - 1
    factor, share, whitened = np.empty((m, m)), np.empty(m), np.empty(deviation.shape)
    variance = covariance(rows, 0, 0, v) + v.noise
    mean[:], misfit[:] = 0.0, 0.0
    for a in range(m):
        for b in range(a + 1):
            rest = covariance(rows, a + 1, b + 1, v)
            if a == b:
                rest += _noise(rows, deviation, a, v)
            for k in range(b):
                rest -= factor[a, k] * factor[b, k]
            factor[a, b] = np.sqrt(rest) if a == b else rest / factor[b, b]
        rest = covariance(rows, 0, a + 1, v)
        for k in range(a):
            rest -= factor[a, k] * share[k]
        share[a] = rest / factor[a, a]
        variance -= share[a] ** 2
        for h in range(len(deviation)):
            rest = deviation[h, a]
            for k in range(a):
                rest -= factor[a, k] * whitened[h, k]
            whitened[h, a] = rest / factor[a, a]
            mean[h] += share[a] * whitened[h, a]
            misfit[h] += whitened[h, a] ** 2
    return variance


@compiled_per_row
def _noise(rows: Rows, deviation: Floats, a: int, v: Variances) -> float:
    """Return the variance of measurement `a`: at least that of its launch on one GPU, under which others may hide."""
    figure, code, total, number = rows.figure, rows.code, 0.0, 0
    for b in range(len(code) - 1):
        if figure[1 + a, 0] != figure[1 + b, 0] or code[1 + a, _LABEL] != code[1 + b, _LABEL]:
            continue
        for c in range(b):
            if figure[1 + b, 0] == figure[1 + c, 0] and code[1 + b, _GPU] == code[1 + c, _GPU]:
                total += 0.5 * (deviation[0, b] - deviation[0, c]) ** 2
                number += 1
    return float(max(v.noise, total / max(number, 1)))
