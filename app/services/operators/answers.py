"""What operators have in common however they are asked: who answers, what a GPU cannot run, warnings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from app.engine.engine import Engine
from app.engine.gpu_rows import GpuRows
from app.errors import BadInput, FieldError
from app.ops.figures import Work
from app.predictors import DEFAULT, OPERATOR_PREDICTORS
from app.predictors.base import calibrated
from app.predictors.links import beyond_link_domain
from app.predictors.roofline import peaks
from app.tables.arrays import Bools, Ints
from app.tables.gpus import MOST_IN_A_MACHINE, GpuSpec, GpuTable
from app.tables.ops import DTYPES, OpTable
from app.tables.predictions import Predictions
from app.wire.prediction_form import Skipped

ROOFLINE = "roofline"
_SERVING = tuple(predictor.name for predictor in OPERATOR_PREDICTORS)


def require_predictor(engine: Engine, rows: GpuRows, predictor: str, targets: list[int]) -> None:
    """BadInput or NotTrained unless the predictor answers for operators on every target."""
    versions = [engine.serving(predictor, rows.id(target)) for target in targets] if predictor in _SERVING else []
    if not versions:
        message = f"{predictor[:100]!r} does not predict operators: use one of {', '.join(_SERVING)}"
        raise BadInput(message, errors=[FieldError(("predictor",), message)])


def lacking(ops: OpTable, work: Work, gpus: GpuTable, target: int) -> Bools:
    """Rows that compute in a dtype which the GPU lacks, bool [n]."""
    missing: Bools = np.isnan(peaks(gpus)[:, target])[ops.dtype] & (work.flops > 0)
    return missing


def refused(engine: Engine, ops: OpTable, work: Work, gpus: GpuTable, target: int) -> Bools:
    """Rows that compute in a dtype which the GPU lacks and that none was measured running there in, bool [n]."""
    missing = lacking(ops, work, gpus, target)
    if missing.any():
        served = engine.serving(DEFAULT, gpus.ids[target]).predictor
        if calibrated(served):
            missing &= ~served.ran_on(gpus.ids[target])[ops.kind, ops.dtype]
    return missing


def lacks(gpu: str, ops: OpTable, row: int) -> str:
    """Why a row cannot run."""
    return f"{gpu} does not compute in {DTYPES[ops.dtype[row]]}"


def lacks_among(gpu: str, ops: OpTable, rows: Ints) -> str:
    """Why a network cannot run: every dtype of these rows, as one asked for in FP8 computes in others beside it."""
    names = dict.fromkeys(DTYPES[code] for code in sorted(ops.dtype[rows].tolist(), reverse=True))
    return f"{gpu} does not compute in {' nor '.join(names)}"


def runnable(
    engine: Engine,
    ops: OpTable,
    work: Work,
    gpus: GpuTable,
    targets: Sequence[int],
    refusal: Callable[[str, Ints], BadInput] | None,
) -> tuple[list[int], list[Skipped]]:
    """Targets that have every dtype, and those left out; where there is a `refusal` the first of these is refused.

    refusal  id of a GPU and the rows that it cannot run -> what says so
    """
    keep, skipped = [], []
    for target in targets:
        missing, gpu = np.flatnonzero(refused(engine, ops, work, gpus, target)), gpus.ids[target]
        if not len(missing):
            keep.append(target)
        elif refusal is not None:
            raise refusal(gpu, missing)
        else:
            skipped.append(Skipped(gpu, lacks_among(gpu, ops, missing)))
    return keep, skipped


def answered(  # noqa: PLR0913  what is asked, and of whom
    engine: Engine,
    ops: OpTable,
    gpus: GpuTable,
    i: Ints,
    j: Ints,
    *,
    predictor: str,
    coverage: float,
    said: OpTable | None = None,
) -> Predictions:
    """The engine's answer, given what was measured of the very operators asked for; `said` is how, if not as `ops`."""
    evidence = engine.operators.index.evidence(ops if said is None else said, i, j)
    return engine.predict(ops, gpus, i, j, predictor=predictor, coverage=coverage, evidence=evidence)


def over_slot(ops: OpTable, gpus: GpuTable, target: int) -> bool:
    """Whether rows are of more devices than the GPU's link joins."""
    if not gpus.column("link_domain_gpus")[target] <= MOST_IN_A_MACHINE:
        return False
    return beyond_link_domain(ops, gpus, np.arange(len(ops)), np.full(len(ops), target)) is not None


def warnings(spec: GpuSpec, predictor: str, *, unanswered: int, alone: int, slotted: bool, guest: bool) -> list[str]:
    """What to know before acting on the numbers of one GPU.

    `unanswered` rows got the hardware limit for want of support, `alone` ones have no measurement behind them;
    `slotted`: some are of more devices than its link joins.
    """
    words = []
    if predictor == ROOFLINE:
        words.append("this is the hardware limit, not an expectation: operators seldom reach it")
    elif unanswered:
        words.append(f"{predictor} cannot answer for {unanswered} distinct rows: those are at the hardware limit")
    elif alone:
        words.append(f"no measurement stands behind {alone} distinct rows: they follow from the GPU's figures alone")
    if slotted:
        link, slot = spec.link_type or "link", (spec.slot_bandwidth_bytes_per_s or 0.0) / 1e9
        more = f"what more of them exchange goes over its slot, {slot:g} GB/s"
        words.append(f"the {link} of {spec.id} joins {spec.link_domain_gpus} devices: {more}")
    if guest and (inferred := sum(source == "inferred" for source in spec.provenance.values())):
        words.append(f"of {spec.id}, {inferred} figures are inferred from its architecture, not stated")
    return words
