"""One constant per family of operators and software stack, for want of measurements of the row in question.

Set by hand while looking at NeuSight's and aiconfigurator's published rows, all GPUs together; no GPU has its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.ops import OPS
from app.ops.tiles import BATCHED_CANDIDATES, CANDIDATES
from app.tables.ops import DTYPES


class Prior(NamedTuple):
    """What the families of one line of the breakdown are known for.

    compute   share of the sustained rate that their kernels reach on full tiles
    memory    share of the sustained bandwidth
    host_s    shortest time of an operator that PyTorch launches by itself, seconds
    device_s  time of an operator of no work in a CUDA graph, seconds
    width     half-width in log space of an interval that holds 80 %
    """

    compute: float
    memory: float
    host_s: float
    device_s: float
    width: float


# By line, or by operator where it differs. Host times: near the shortest calls of PyTorch, eager (NeuSight); device
# times: of vLLM in CUDA graphs. Attention interleaves exponentials with two products, of prefill on tiles whose padding
# is counted (app.ops.attention); decoding reads its cache in pieces; experts are many small products between two
# permutations. `pool`, `embedding`, `recurrent`, `memory` and host times of what NeuSight did not measure are guesses
# without rows behind them. Widths: docs/explanation/notebook.md.
PRIORS = {
    "linear": Prior(0.92, 0.70, 40e-6, 3.5e-6, 0.65),
    "bmm": Prior(0.90, 0.80, 36e-6, 3.5e-6, 0.55),
    "conv2d": Prior(1.0, 0.80, 60e-6, 6e-6, 0.75),
    "norm": Prior(1.0, 1.0, 44e-6, 3e-6, 0.50),
    "softmax": Prior(1.0, 1.0, 36e-6, 3e-6, 0.50),
    "pool": Prior(1.0, 0.75, 32e-6, 3e-6, 0.70),
    "elementwise": Prior(1.0, 1.0, 28e-6, 2.5e-6, 0.40),
    "embedding": Prior(1.0, 0.75, 30e-6, 3e-6, 0.70),
    "recurrent": Prior(0.6, 0.60, 80e-6, 5e-6, 1.0),
    "attention": Prior(0.45, 0.90, 60e-6, 12e-6, 0.90),
    "attention_prefill": Prior(0.60, 0.90, 60e-6, 12e-6, 0.90),
    "moe": Prior(0.40, 0.72, 150e-6, 25e-6, 0.75),
    "collective": Prior(1.0, 0.80, 32e-6, 6e-6, 0.75),
    "memory": Prior(1.0, 0.95, 20e-6, 2.5e-6, 0.50),
    "network": Prior(0.50, 0.20, 2e-3, 5e-4, 0.90),
}
# A `linear` whose activations a serving stack quantises first: seconds that this adds, and the shortest time. Products
# in FP8 by blocks take 60 to 340 us in the data however small; the host's time seems to show.
QUANTISING_S = {"fp8": (3.5e-6, 0.0), "nvfp4": (4e-6, 0.0), "fp8_block": (4e-6, 165e-6)}
# Bytes per element that it moves: BF16 in twice (the largest for the scale, then the values), eight bits out.
QUANTISED_BYTES = 5.0
# Formats in which PyTorch, eager, is the stack unless the row says another.
EAGER_DTYPES = ("fp64", "fp32", "tf32")
# Part of the host's time that adds to the device's; the rest overlaps with it.
HOST_SHARE = 0.5
# Share of the L2 ports' width that kernels get (micro-benchmarks of Volta to Hopper).
L2_SHARE = 0.35
# Working set over the L2 up to which it is still there when the operator runs again, and from which none of it is: what
# is streamed through a cache that is too small evicts what is needed next.
STAYS_TO, GONE_FROM = 0.5, 0.85
# A serving stack runs other layers before a `linear` with the same weights: as many pass through the L2 in turn, found
# on the L40S, where weights of over a sixth of the L2 come at DRAM's rate; and the share of the bandwidth they get so.
IN_TURN, IN_TURN_SHARE = 6.0, 0.90
# Part of the L2 up to which rows in flight stay there for their second read, and from which they are lost: of softmax
# and layer norm on V100, L4 and A100.
KEPT_TO, LOST_FROM = 0.35, 0.7
# A tile of r x c reads r + c elements for r c multiply-adds: its speed is 1 / (1 + edge (1 / r + 1 / c)).
TILE_EDGE = 16.0
# Part of a link's datasheet bandwidth that collectives get: of NVLink and the like; and of PCIe two devices. More lose
# the square root of their number: half-way between the L40S's host, which they share, and the Arc B60's, which lets all
# send at once.
FAST_LINK_BYTES_PER_S, FAST_SHARE, SLOW_SHARE = 1e11, 0.76, 0.65
# Over NVLink, bytes that stay on their device, as part of one that is sent.
KEPT_SHARE = 0.35
# A message that is cut into c chunks pays the wait of a chunk c times, yet overlaps them: at the best c seconds x of
# bytes and w of waiting take x + w + 2 sqrt(x w) (Sanders, Speck and Traeff 2009); NCCL over NVLink this part of the
# square root, over PCIe none.
CHUNKS = 1.0
# Seconds of a message that the next waits for.
HOP_S = 0.9e-6

# By code into OPS (kernels have none) and DTYPES.
BY_KIND = np.array([(PRIORS.get(op.name) or PRIORS.get(op.group, PRIORS["memory"]))[:4] for op in OPS])
QUANTISING = np.array([QUANTISING_S.get(dtype, (0.0, 0.0)) for dtype in DTYPES])
IS_EAGER = np.array([dtype in EAGER_DTYPES for dtype in DTYPES])
IS_LINEAR = np.array([op.group == "linear" for op in OPS])
IS_COLLECTIVE = np.array([op.group == "collective" for op in OPS])
# How many of the candidate tiles an operator's kernels have, from the largest.
TILES_OF_KIND = np.array([BATCHED_CANDIDATES if op.group == "bmm" else len(CANDIDATES) for op in OPS])
