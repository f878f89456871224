"""`recurrent`: one layer of `steps` steps over a `batch`, `cell` rnn, gru or lstm with g = 1, 3 or 4 gates.

Per step: gates = W x + U h, W [g hidden, input], U [g hidden, hidden] (Hochreiter and Schmidhuber 1997; Cho et al.
2014). FLOPs = 2 steps batch g hidden (input + hidden); the product with W is taken over all steps at once, the one
with U step after step (cuDNN; Appleyard et al. 2016), so U and the state are read at every step. Backward is twice
both. In FP16 and FP32 small states stay on the SMs: a kernel of cuDNN runs all steps (Diamos et al. 2016).
"""

from __future__ import annotations

import numpy as np

from app.coefficients import Coefficients
from app.ops.base import COMMON, Dim, Op
from app.ops.figures import Prior, Work
from app.ops.suite import Log, Made, Maker, Pick, Row, Space
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, WEIGHT_BYTES, OpTable

_FITTED = Coefficients("operators")

CELLS = ("rnn", "gru", "lstm")
_GATES = np.array([1.0, 3.0, 4.0])


def work(table: OpTable) -> Work:
    """Work of recurrent layers."""
    batch, inputs, hidden, steps = (table.column(name) for name in ("batch", "input", "hidden", "steps"))
    gates = _GATES[table.column("cell").astype(np.intp)] * hidden
    passes = 1.0 + table.column("backward")
    size, weight = DTYPE_BYTES[table.dtype], WEIGHT_BYTES[table.dtype]
    outside = gates * inputs * weight + steps * batch * inputs * size
    state = batch * (gates + hidden) * size
    moved = outside + steps * (gates * hidden * weight + 2.0 * state)
    distinct = outside + gates * hidden * weight + steps * state
    return Work(2.0 * passes * steps * batch * gates * (inputs + hidden), passes * moved, passes * distinct)


# Launches of a step forward and backward, its part of a kernel of all steps, and launches before and after the steps.
# The largest state of such kernels there, in elements.
_OF_STEP, _OF_STEP_BACKWARD, _OF_PERSISTENT, _BESIDE, _BESIDE_BACKWARD = _FITTED.each(
    "recurrent_launches_of_step",
    "recurrent_launches_of_step_backward",
    "recurrent_launches_persistent",
    "recurrent_launches_beside",
    "recurrent_launches_beside_backward",
)
_MOST_PERSISTENT = _FITTED.number("recurrent_most_persistent")
_PERSISTENT_DTYPES = DTYPE_CODE["fp16"], DTYPE_CODE["fp32"]


def launches(table: OpTable) -> Floats:
    """Launches that wait for one another, of each step and beside them."""
    back = table.column("backward") > 0.0
    persistent = (table.column("hidden") <= _MOST_PERSISTENT) & np.isin(table.dtype, _PERSISTENT_DTYPES)
    of_step = np.where(persistent, _OF_PERSISTENT, np.where(back, _OF_STEP_BACKWARD, _OF_STEP))
    count: Floats = table.column("steps") * of_step + np.where(back, _BESIDE_BACKWARD, _BESIDE)
    return count


def _build(make: Maker, row: Row) -> Made:
    """One layer of `steps` steps, without biases; forward as in inference, which keeps nothing for backward."""
    nn = make.torch.nn
    kind, where = getattr(nn, row.get("cell", "lstm").upper()), {"device": make.device, "dtype": make.dtype}
    layer = kind(row["input"], row["hidden"], bias=False, **where)
    layer.requires_grad_(False).train(row.get("phase") == "backward")
    x = make.normal(row["steps"], row["batch"], row["input"])
    return Made(lambda: layer(x)[0], (x, *layer.parameters()))


RECURRENT_OPS = (
    Op(
        "recurrent",
        "recurrent",
        (
            Dim("batch", "sequences"),
            Dim("input", "features in"),
            Dim("hidden", "features of the state"),
            Dim("steps", "steps of the sequence", most=1e9),
            Dim("cell", "kind of cell", default=2.0, choices=CELLS),
            *COMMON,
        ),
        work,
        launches=launches,
        prior=Prior.of("recurrent"),
        saves=("input", "output"),
        suite=Space(
            {
                "batch": Log(1, 512),
                "input": Log(16, 4096),
                "hidden": Log(16, 4096),
                "steps": Log(1, 512),
                "cell": Pick(("lstm", "gru", "rnn")),
            },
            ("fp32", "bf16", "fp16"),
            _build,
        ),
        example={"batch": 8, "input": 1024, "hidden": 4096, "steps": 128},
    ),
)
