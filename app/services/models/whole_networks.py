"""ConvNets as one row of the operator `network`, for predictors that only use ConvMeter's figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.errors import BadInput
from app.networks.build import Builder
from app.networks.convmeter_figures import Figures, figures
from app.networks.run import Run
from app.ops import MIXED_FIELDS, OP_CODE
from app.ops.network import FORWARD, NETWORK, STEP
from app.predictors import BY_NAME
from app.steps.networks import Prepared, step_rows, with_memory
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable
from app.tables.workload import Workload
from app.warning_codes import warning

# Predictors of whole networks and of nothing else.
NETWORKS_ONLY = frozenset(name for name, predictor in BY_NAME.items() if predictor.can.only_networks)
NOTE = warning("phases_unknown", "ConvMeter predicts a training step as a whole: phases_ms has all of it as forward")
_LOC = ("workload", "parallelism")
_ZERO = np.zeros(1, dtype=np.intp)


def as_one_row(ready: Prepared, run: Run) -> Prepared:
    """Return the network's step on one of `run.parallelism.data` devices as one row; its memory is unchanged.

    Raises BadInput like `network_figures`.
    """
    totals = network_figures(ready.workload, run)
    return with_memory(step_rows(_workload(_table(totals, run))), ready.memory, ready.fixed_bytes)


def network_figures(rows: Workload, run: Run) -> Figures:
    """Return ConvMeter's figures of a network's forward rows, for the whole batch of a device.

    Raises BadInput for a network without convolutions, and for runs other than plain data parallelism.
    """
    split = run.parallelism
    others = {name: getattr(split, name) for name in ("tensor", "pipeline", "expert", "microbatches")}
    others |= {"zero": split.zero + 1, "gradient_accumulation": run.accumulation}
    if wrong := [name for name, size in others.items() if size > 1]:
        loc = ("workload",) if wrong[0] == "gradient_accumulation" else _LOC
        raise BadInput.at(
            (*loc, wrong[0]), "ConvMeter only supports data parallelism and one batch per step: leave it out", end="."
        )
    totals = figures(rows)
    if not totals.outputs:
        raise BadInput.at(("predictor",), "ConvMeter predicts ConvNets: this network has no convolutions", end=".")
    return totals


def network_row(totals: Figures, run: Run, what: int) -> dict[str, float]:
    """Return the columns of NETWORK for one pass (app.ops.network.PASSES), from figures of the whole batch."""
    batch, split = run.device_batch, run.parallelism
    return dict.fromkeys(NETWORK.fields, 0.0) | {
        "batch": batch,
        "flops": totals.flops / batch,
        "inputs": totals.inputs / batch,
        "outputs": totals.outputs / batch,
        "weights": max(totals.weights, 1.0),
        "layers": totals.layers,
        "depthwise": totals.depthwise / batch,
        "operators": totals.operators,
        "devices": split.data,
        "nodes": split.nodes,
        "pass": what,
        "channels_last": run.memory_format == "channels_last",
        "compiled": run.fused,
        "count": 1.0,
    }


def _table(totals: Figures, run: Run) -> OpTable:
    """Return the row as a table."""
    row = network_row(totals, run, STEP if run.mode == "training" else FORWARD)
    dims = np.full((len(MIXED_FIELDS), 1), np.nan)
    for name, value in row.items():
        dims[MIXED_FIELDS[name]] = value
    return OpTable(np.array([OP_CODE[NETWORK.name]]), np.array([DTYPE_CODE[run.dtype]]), _ZERO, MIXED_FIELDS, dims)


def _workload(ops: OpTable) -> Workload:
    """Return a network of this row alone. A builder would interpret the fields `inputs` and `outputs` itself."""
    builder = Builder(DTYPES[int(ops.dtype[0])])
    builder.add("memory", outputs=0.0, name=NETWORK.name, bytes=1.0)
    return replace(builder.build(), ops=ops)
