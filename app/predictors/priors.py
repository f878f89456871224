"""Prior constants of hardware and software stacks, for rows without measurements.

Set by hand while looking at NeuSight's and aiconfigurator's published rows, all GPUs together, so errors of the
untrained predictor on those rows are in-sample; no GPU has its own. Those of an operator are its own (app.ops.figures).
"""

from __future__ import annotations

import numpy as np

from app.coefficients import Coefficients
from app.ops import OPS
from app.ops.figures import Prior
from app.ops.gemm import BATCHED_CANDIDATES, CANDIDATES
from app.tables.arrays import Floats
from app.tables.ops import DTYPES

_FITTED = Coefficients("physics")

# A `linear` whose activations a serving stack quantises first: seconds that this adds, and the shortest time.
QUANTISING_S = _FITTED.tuples_by_name("quantising_s")
# Bytes per element that it moves: BF16 in twice (the largest for the scale, then the values), eight bits out.
QUANTISED_BYTES = _FITTED.number("quantised_bytes")
# Formats in which PyTorch, eager, is the stack unless the row says another.
EAGER_DTYPES = ("fp64", "fp32", "tf32")
# Part of the host's time that adds to the device's; the rest overlaps with it.
HOST_SHARE = _FITTED.number("host_share")
# Boost clock of the GPUs on which the times of operators without work in a CUDA graph were set (H100, B200).
LAUNCH_CLOCK_HZ = _FITTED.number("launch_clock_hz")
# Share of the L2 ports' width that kernels get (micro-benchmarks of Volta to Hopper).
L2_SHARE = _FITTED.number("l2_share")
# Working set over the L2 up to which it is still there when the operator runs again, and from which none of it is: what
# is streamed through a cache that is too small evicts what is needed next.
STAYS_TO, GONE_FROM = _FITTED.each("stays_to", "gone_from")
# A serving stack runs other layers before a `linear` with the same weights: as many pass through the L2 in turn,
# and their share of the bandwidth.
IN_TURN, IN_TURN_SHARE = _FITTED.each("in_turn", "in_turn_share")
# Part of the L2 up to which rows in flight stay there for their second read, and from which they are lost: of softmax
# and layer norm on V100, L4 and A100.
KEPT_TO, LOST_FROM = _FITTED.each("kept_to", "lost_from")
# A tile of r x c reads r + c elements for r c multiply-adds: its speed is 1 / (1 + edge (1 / r + 1 / c)).
TILE_EDGE = _FITTED.number("tile_edge")
# Part of a link's datasheet bandwidth that collectives get: of NVLink and the like; and of PCIe two devices. More lose
# the square root of their number: half-way between the L40S's host, which they share, and the Arc B60's, which lets all
# send at once.
FAST_LINK_BYTES_PER_S = 1e11
FAST_SHARE, SLOW_SHARE = _FITTED.each("fast_link_share", "slow_link_share")
# Over NVLink, bytes that stay on their device, as part of one that is sent.
KEPT_SHARE = _FITTED.number("kept_share")
# A message that is cut into c chunks pays the wait of a chunk c times, yet overlaps them: at the best c seconds x of
# bytes and w of waiting take x + w + 2 sqrt(x w) (Sanders, Speck and Traeff 2009); NCCL over NVLink this part of the
# square root, over PCIe none.
CHUNKS = _FITTED.number("chunks")
# Seconds of a message that the next waits for.
HOP_S = _FITTED.number("hop_s")

# By code into OPS and DTYPES.
BY_KIND = np.array([op.prior[:4] for op in OPS])

# Eras of kernels on GPUs with tensor units: before Ampere; since Ampere; the same, on operands that lie as kernels take
# them; since Hopper.
BEFORE_AMPERE, SINCE_AMPERE, SINCE_AMPERE_IN_PLACE, SINCE_HOPPER = ERAS = range(4)


def _reached(prior: Prior, era: int) -> list[float]:
    """Return the shares of `compute` that an era's kernels reach, by dtype."""
    tensor = prior.tensor[era]
    lanes = prior.lanes_since_hopper if era == SINCE_HOPPER else 1.0
    return [{"fp16": tensor, "bf16": tensor, "tf32": tensor, "fp32": lanes}.get(dtype, 1.0) for dtype in DTYPES]


# By era, kind and dtype, [eras, kinds, dtypes].
REACHED = np.array([[_reached(op.prior, era) for op in OPS] for era in ERAS])
QUANTISING = np.array([QUANTISING_S.get(dtype, (0.0, 0.0)) for dtype in DTYPES])
IS_EAGER = np.array([dtype in EAGER_DTYPES for dtype in DTYPES])
IS_LINEAR = np.array([op.quantised is not None for op in OPS])
# Collectives of a message of given bytes, which libraries (NCCL) run; and all operators that send over a link.
IS_COLLECTIVE = np.array([op.pattern is not None for op in OPS])
SENDS = np.array([op.link_bytes is not None for op in OPS])
# What the first launch of an eager step takes beside a launch among others, seconds; `Prior.host_s` includes it.
EAGER_START_S = Coefficients("steps").number("eager_start_s")


def _host_shares() -> Floats:
    """Return the host's time for a launch of each kind over that of the mean operator of a convolutional network.

    cuDNN's convolutions look up a plan, norms fill in their statistics: an element-wise launch takes the least.
    """
    host_s = {op.name: op.prior.host_s for op in OPS}
    launch_s = np.maximum([op.prior.host_s for op in OPS], host_s["relu"]) - EAGER_START_S
    mean_s = np.mean([host_s[name] for name in ("conv2d", "batch_norm", "relu")]) - EAGER_START_S
    shares: Floats = launch_s / mean_s
    return shares


HOST_SHARES = _host_shares()
# How many of the candidate tiles an operator's kernels have, from the largest.
TILES_OF_KIND = np.array([BATCHED_CANDIDATES if op.batched else len(CANDIDATES) for op in OPS])
