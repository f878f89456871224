"""`network`: a whole ConvNet, or a block of one, as a single operator, by the figures of ConvMeter (section 3).

`flops`, `inputs` and `outputs` are of one image and forward: the operations of all layers, and the elements that all
its convolutions read and write. They grow with the batch, `weights` and `layers` do not (equation 3). The paper has
neither `depthwise`, which also grows, nor `operators`. What nobody counted of a network is 0.

`pass` is what was timed: `forward`, `backward`, the gradient `update`, the last two together where they overlap
(`backward_update`), or all three, a training `step`. A convolution's gradients are two convolutions of its size, so
backward takes twice the FLOPs. Frameworks fuse layers, so that of all bytes only those count which no fusion saves:
every convolution's output written once, the weights read (forward), their gradients written besides (backward), and
weights and gradients read and weights written (update). The exchange of gradients between devices is not counted.
"""

from __future__ import annotations

import numpy as np

from app.ops.base import COMMON, MOST_BYTES, Dim, Op
from app.ops.conv import WINOGRAD
from app.ops.figures import Broken, Prior, Work
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_BYTES, WEIGHT_BYTES, OpTable

PASSES = ("forward", "backward", "update", "backward_update", "step")
FORWARD, BACKWARD, UPDATE, BACKWARD_UPDATE, STEP = range(5)
# Per pass: forward FLOPs, convolutions' outputs and weights, each how many times.
_FLOPS = np.array([1.0, 2.0, 0.0, 2.0, 3.0])
_OUTPUTS = np.array([1.0, 1.0, 0.0, 1.0, 2.0])
_WEIGHTS = np.array([1.0, 2.0, 3.0, 5.0, 6.0])


def work(table: OpTable) -> Work:
    """Work of one device."""
    code = table.column("pass").astype(np.intp)
    batch = table.column("batch")
    written = _OUTPUTS[code] * batch * table.column("outputs") * DTYPE_BYTES[table.dtype]
    moved = written + _WEIGHTS[code] * table.column("weights") * WEIGHT_BYTES[table.dtype]
    return Work(_FLOPS[code] * batch * table.column("flops"), moved, moved)


def saving(table: OpTable) -> Floats:
    """Factor by which Winograd's algorithm can reduce the FLOPs, float64 [n], as if all windows had stride 1."""
    return np.full(table.kind.size, WINOGRAD)


def check(table: OpTable) -> list[Broken]:
    """A network's phase is set by `pass` alone, and nodes divide devices."""
    return [
        Broken("a network's phase stays forward: say which pass was timed", table.column("backward") != 0, "backward"),
        Broken("nodes must divide devices", table.column("devices") % table.column("nodes") != 0, "nodes"),
    ]


NETWORK = Op(
    "network",
    "network",
    (
        Dim("batch", "images of a step on each device"),
        Dim("flops", "floating-point operations of one image, forward", most=MOST_BYTES, whole=False),
        Dim("outputs", "elements that all convolutions write for one image", whole=False),
        Dim("weights", "parameters", whole=False),
        Dim(
            "inputs",
            "elements that all convolutions read for one image; 0: not counted",
            least=0.0,
            default=0.0,
            whole=False,
        ),
        Dim("layers", "layers with weights; 0: not counted", least=0.0, default=0.0, most=1e6),
        Dim(
            "depthwise",
            "of `flops`, those of convolutions of one channel each; 0: not counted",
            least=0.0,
            default=0.0,
            most=MOST_BYTES,
            whole=False,
        ),
        Dim("operators", "operators that run forward; 0: not counted", least=0.0, default=0.0, most=1e6),
        Dim("devices", "devices that share the batch, each with `batch` images", default=1.0, most=1e6, stretch=12.0),
        Dim("nodes", "machines that hold them", default=1.0, most=1e6),
        Dim("pass", "what of a training step", least=0.0, default=0.0, choices=PASSES),
        Dim("channels_last", "1 where tensors keep the channels of a pixel together", least=0.0, default=0.0, most=1.0),
        Dim("compiled", "1 where a compiler fused the layers", least=0.0, default=0.0, most=1.0),
        *COMMON,
    ),
    work,
    check=check,
    saving=saving,
    prior=Prior.of("network"),
    configuration=("weights",),
    example={"batch": 8, "flops": 4_000_000_000, "outputs": 10_000_000, "weights": 25_000_000},
)
NETWORK_OPS = (NETWORK,)
