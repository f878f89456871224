"""Habitat's wave scaling (Yu et al., USENIX ATC 2021, equation 2): a kernel's time from one GPU to another.

T_d = T_o (D_o / D_d)^g (W_o C_o / (W_d C_d))^(1 - g), with D the memory bandwidth, W the blocks of a wave and C the
clock of the origin o and the destination d; equation 1, which rounds waves up, becomes this for many waves. g says
how far memory bounds the kernel (their section 4.2): with x its FLOPs per byte and R the destination's peak over its
bandwidth, g = 1 - x / 2R below the ridge R and R / 2x above it.
"""

from __future__ import annotations

import numpy as np

from app.predictors.papers.known_gpus import FIGURES
from app.tables.arrays import Floats

_SMS, _CLOCK, _BANDWIDTH, _THREADS = (
    FIGURES.index(name) for name in ("sm_count", "boost_clock_hz", "memory_bandwidth_bytes_per_s", "max_threads_per_sm")
)


def memory_share(intensity: Floats, ridge: Floats) -> Floats:
    """G of rows of `intensity` FLOPs per byte on GPUs whose peak / bandwidth is `ridge`, [n] each."""
    below = intensity < ridge
    high = np.where(below, ridge, intensity)
    share: Floats = np.where(below, 1.0 - 0.5 * intensity / ridge, 0.5 * ridge / np.where(high > 0, high, 1.0))
    return share


def scaled(origin: Floats, destination: Floats, share: Floats) -> Floats:
    """T_d / T_o, [n], of GPUs by their figures (rows of FIGURES, [figures, n]).

    Blocks of a wave are taken as SMs x resident threads, since a kernel's occupancy is not known.
    """
    waves = origin[_SMS] * origin[_THREADS] * origin[_CLOCK]
    waves = waves / (destination[_SMS] * destination[_THREADS] * destination[_CLOCK])
    ratio: Floats = (origin[_BANDWIDTH] / destination[_BANDWIDTH]) ** share * waves ** (1.0 - share)
    return ratio


def distance(origins: Floats, destination: Floats) -> Floats:
    """How far GPUs are apart in log bandwidth and log SMs x clock, float64 [k, n], of figures [.., k] and [.., n]."""
    apart = np.log(origins[:, :, None] / destination[:, None, :])
    far: Floats = np.abs(apart[_BANDWIDTH]) + np.abs(apart[_SMS] + apart[_CLOCK])
    return far
