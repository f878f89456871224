"""A ConvNet as one row of the operator `network`, for predictors that know networks by ConvMeter's figures only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.errors import BadInput, FieldError
from app.graphs.build import Builder
from app.graphs.convmeter_figures import Figures, figures
from app.graphs.run import Run
from app.ops import MIXED_FIELDS, OP_CODE
from app.ops.network import FORWARD, NETWORK, STEP
from app.predictors import capabilities
from app.services.models.networks import Prepared, rows_prepared
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable
from app.tables.workload import Workload

NOTE = "ConvMeter tells a training step as a whole: phases_ms counts all of it as forward"
_LOC = ("workload", "parallelism")
_ZERO = np.zeros(1, dtype=np.intp)


def knows_networks_only(predictor: str) -> bool:
    """Whether this predictor answers for whole networks and for nothing else."""
    return capabilities(predictor).only_networks


def as_one_row(ready: Prepared, run: Run) -> Prepared:
    """The network's step on one of `run.parallelism.data` devices as one row; what it keeps in memory stays.

    BadInput as `network_figures`.
    """
    found = network_figures(ready.workload, run)
    return rows_prepared(_workload(_table(found, run)), ready.memory, ready.fixed_bytes)


def network_figures(rows: Workload, run: Run) -> Figures:
    """ConvMeter's figures of a network's forward rows, of the whole batch of a device.

    BadInput for a network without convolutions, and for a run that is not plain data parallelism.
    """
    split = run.parallelism
    others = {name: getattr(split, name) for name in ("tensor", "pipeline", "expert", "microbatches")}
    others |= {"zero": split.zero + 1, "gradient_accumulation": run.accumulation}
    if wrong := [name for name, size in others.items() if size > 1]:
        loc = ("workload",) if wrong[0] == "gradient_accumulation" else _LOC
        raise _refused((*loc, wrong[0]), "ConvMeter knows data parallelism only, one batch a step: leave it out")
    found = figures(rows)
    if not found.outputs:
        raise _refused(("predictor",), "ConvMeter predicts ConvNets: this network has no convolutions")
    return found


def network_row(found: Figures, run: Run, what: int) -> dict[str, float]:
    """Columns of NETWORK for one of its passes (app.ops.network.PASSES), from figures of the whole batch."""
    batch, split = run.device_batch, run.parallelism
    return dict.fromkeys(NETWORK.fields, 0.0) | {
        "batch": batch,
        "flops": found.flops / batch,
        "inputs": found.inputs / batch,
        "outputs": found.outputs / batch,
        "weights": max(found.weights, 1.0),
        "layers": found.layers,
        "depthwise": found.depthwise / batch,
        "operators": found.operators,
        "devices": split.data,
        "nodes": split.nodes,
        "pass": what,
        "compiled": run.fused,
        "count": 1.0,
    }


def _table(found: Figures, run: Run) -> OpTable:
    """The one row."""
    row = network_row(found, run, STEP if run.mode == "training" else FORWARD)
    dims = np.full((len(MIXED_FIELDS), 1), np.nan)
    for name, value in row.items():
        dims[MIXED_FIELDS[name]] = value
    return OpTable(np.array([OP_CODE[NETWORK.name]]), np.array([DTYPE_CODE[run.dtype]]), _ZERO, MIXED_FIELDS, dims)


def _workload(ops: OpTable) -> Workload:
    """A network of this row alone; a builder would take its fields `inputs` and `outputs` for its own words."""
    builder = Builder(DTYPES[int(ops.dtype[0])])
    builder.add("memory", outputs=0.0, name=NETWORK.name, bytes=1.0)
    return replace(builder.build(), ops=ops)


def _refused(loc: tuple[str, ...], message: str) -> BadInput:
    return BadInput(f"{'.'.join(loc)}: {message}.", errors=[FieldError(loc, message)])
