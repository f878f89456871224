"""Errors of the shipped `auto` on timm's ConvNets that gpucast also has, predicted as the sum of their operators.

No measured network is in the training rows. `auto` predicts each network's operators as for a request. No FP16
convolution has been measured yet: the analytic model predicts those with the physics fit of FP32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.bands.conformal import Intervals
from app.config import SHIPPED_MODELS
from app.engine.curated import load_seed_specs
from app.engine.engine import POOLED, Engine, Served
from app.engine.shipped import shipped_version
from app.errors import BadInput
from app.graphs.convnets import lower
from app.graphs.run import Run
from app.predictors.auto.predictor import Auto
from app.services.models.networks import Network, prepare
from app.services.models.steps import time_step
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from evaluation.convmeter import PROTOCOLS, HeldOutTimes, evaluate_convmeter, scored
from evaluation.measured_networks import read_networks
from evaluation.own_networks import read_own

Result = dict[str, Any]

OWN, TIMM = "own", "timm"
OPERATORS = "operators"
STUDIES = (*PROTOCOLS, OPERATORS)
PREDICTOR = "auto"
# timm's name -> our name, for networks with the same layers.
_REGNETS = {"004": "400mf", "008": "800mf", "016": "1_6gf", "032": "3_2gf", "080": "8gf", "160": "16gf", "320": "32gf"}
_SAME = (
    *(f"vgg{depth}{norm}" for depth in (11, 13, 16, 19) for norm in ("", "_bn")),
    *(f"resnet{depth}" for depth in (18, 34, 50, 101, 152)),
    *("resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d", "wide_resnet50_2", "wide_resnet101_2"),
    *(f"densenet{depth}" for depth in (121, 161, 169, 201)),
    *(f"efficientnet_b{size}" for size in range(5)),
    "inception_v3",
)
NAMES = {
    **{name: name for name in _SAME},
    **{f"regnet{kind}_{size}": f"regnet_{kind}_{ours}" for kind in "xy" for size, ours in _REGNETS.items()},
    "mobilenetv2_100": "mobilenet_v2",
    "mobilenetv3_large_100": "mobilenet_v3_large",
    "mobilenetv3_small_100": "mobilenet_v3_small",
    "mnasnet_100": "mnasnet1_0",
}


def convmeter_cells(
    folder: Path | None, studies: Sequence[str], progress: Callable[[str], None] = lambda line: None
) -> list[Result]:
    """Return the results of `studies` (empty: all of STUDIES); without `folder` those of our own networks only.

    Raises BadInput for an unknown study.
    """
    selected = studies or STUDIES
    if unknown := [name for name in selected if name not in STUDIES]:
        raise BadInput(f"Nothing is held out by {unknown[0]!r}: use one of {', '.join(STUDIES)}.")
    protocols = [name for name in PROTOCOLS if name in selected]
    cells = [{"data": OWN} | cell for cell in evaluate_convmeter(read_own(), protocols, progress)]
    if folder is None:
        return cells
    timm = evaluate_convmeter(read_networks(folder), protocols, progress)
    timm += through_operators(folder, shipped_engine(), progress) if OPERATORS in selected else []
    return cells + [{"data": TIMM} | cell for cell in timm]


def shipped_engine() -> Engine:
    """Return an engine of the shipped GPUs and the shipped `auto`."""
    specs = load_seed_specs()
    version = shipped_version(PREDICTOR, SHIPPED_MODELS)
    predictor = Auto() if version is None else Auto.from_state(version.payload()["state"])
    served = {(PREDICTOR, POOLED): Served(predictor, Intervals.prior(), "shipped")}
    return Engine(Catalog(specs), GpuTable.from_specs(specs), served)


def through_operators(folder: Path, engine: Engine, progress: Callable[[str], None]) -> list[Result]:
    """Return results like those of `evaluate_convmeter`, for runs on GPUs."""
    gpus = engine.gpus
    cells: list[Result] = []
    for data in read_networks(folder):
        on_gpu = np.array(["rtx" in run for run in data.batch_of.tolist()])
        lowered = on_gpu & np.isin(data.name, list(NAMES))
        for run in np.unique(data.batch_of[lowered]).tolist():
            rows = np.flatnonzero(lowered & (data.batch_of == run))
            progress(f"{run}: {len(rows)} networks by their operators")
            part = data.take(rows)
            about = {"held_out": "operators", "run": run, "dtype": data.runs.dtype, "predictor": PREDICTOR}
            predicted_s = [
                _step_s(engine, gpus, NAMES[name], _run(run, batch, size, data.runs.dtype), gpu)
                for name, batch, size, gpu in zip(
                    part.name.tolist(),
                    part.runs.rows.ops.column("batch").tolist(),
                    part.image_size.tolist(),
                    part.runs.rows.gpu.tolist(),
                    strict=True,
                )
            ]
            none = np.zeros(len(rows), dtype=np.bool_)
            times = HeldOutTimes(part.runs.rows.latency_s, np.array(predicted_s), none)
            cells += [about | cell for cell in scored(times, part.family)]
    return cells


def _run(run: str, batch: float, size: int, dtype: str) -> Run:
    """Return the run of a network as timm's benchmark `run` measures it."""
    mode, fused = ("training" if run.endswith(" train") else "inference"), " dynamo " in run
    return Run(
        mode=mode,  # type: ignore[arg-type]
        batch=int(batch),
        image_size=size,
        dtype=dtype,
        fused=fused,
        memory_format="channels_last" if " nhwc " in run else "channels_first",
        optimizer="sgd",  # timm's benchmark uses it
    )


def _step_s(engine: Engine, gpus: GpuTable, name: str, run: Run, gpu: int) -> float:
    """Return the predicted step time of network `name` on GPU row `gpu`, seconds."""
    rows = prepare(Network(("convnet", name), partial(lower, name)), run)
    step = time_step(engine, rows, run, gpus, [gpu], predictor=PREDICTOR, coverage=0.8, launched=True)
    return float(step.done.step_s[0])
