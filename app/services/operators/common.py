"""Shared by all operator requests: supported dtypes and predictors, exact hits, warnings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from app.engine.engine import Engine
from app.engine.gpu_rows import GpuRows, inferred_warnings
from app.errors import BadInput, FieldError, TooLarge
from app.ops.figures import Work
from app.predictors import BY_NAME, DEFAULT, OPERATOR_PREDICTORS
from app.predictors.base import calibrated
from app.predictors.links import beyond_link_domain
from app.predictors.roofline import peaks
from app.tables.arrays import Bools, Ints
from app.tables.gpus import MOST_IN_A_MACHINE, GpuSpec, GpuTable
from app.tables.ops import DTYPES, OpTable
from app.warning_codes import CodedWarning, warning
from app.wire.names import did_you_mean
from app.wire.prediction_form import Skipped

ROOFLINE = "roofline"
# Most rows of a request with `detail`: some 2 s of work and an answer of 25 MB, 40 times what a row costs without.
MAX_DETAIL_ROWS = 20_000
_SERVING = tuple(predictor.name for predictor in OPERATOR_PREDICTORS)


def check_rows(operators: int, gpus: int, *, max_rows: int, detail: bool) -> None:
    """Raise TooLarge if a request has too many operators times GPUs."""
    most = min(max_rows, MAX_DETAIL_ROWS) if detail else max_rows
    if operators * gpus > most:
        what = "rows with detail" if detail else "rows"
        raise TooLarge(f"At most {most:,} {what} are accepted at once; got {operators:,} operators on {gpus:,} GPUs.")


def require_predictor(engine: Engine, rows: GpuRows, predictor: str, targets: list[int]) -> None:
    """Raise BadInput or NotTrained unless the predictor answers for operators on every target."""
    versions = [engine.serving(predictor, rows.id(target)) for target in targets] if predictor in _SERVING else []
    if not versions:
        near = "" if predictor in BY_NAME else did_you_mean(predictor, _SERVING)
        message = f"{predictor[:100]!r} does not predict operators{near}: use one of {', '.join(_SERVING)}"
        raise BadInput(message, errors=[FieldError(("predictor",), message)])


def rows_without_dtype(ops: OpTable, work: Work, gpus: GpuTable, target: int) -> Bools:
    """Return rows that compute in a dtype which the data sheet of the GPU lacks, bool [n]."""
    missing: Bools = np.isnan(peaks(gpus)[:, target])[ops.dtype] & (work.flops > 0)
    return missing


def unsupported_mask(engine: Engine, ops: OpTable, work: Work, gpus: GpuTable, target: int) -> Bools:
    """Return rows in a dtype that the GPU lacks, except dtypes measured to run there, bool [n]."""
    missing = rows_without_dtype(ops, work, gpus, target)
    if missing.any():
        served = engine.serving(DEFAULT, gpus.ids[target]).predictor
        if calibrated(served):
            missing &= ~served.ran_on(gpus.ids[target])[ops.kind, ops.dtype]
    return missing


def unsupported_message(gpu: str, ops: OpTable, row: int) -> str:
    """Return why a row cannot run."""
    return f"{gpu} does not compute in {DTYPES[ops.dtype[row]]}"


def unsupported_dtypes(gpu: str, ops: OpTable, rows: Ints) -> str:
    """Return why a network cannot run: all unsupported dtypes of these rows (an FP8 network also uses others)."""
    names = dict.fromkeys(DTYPES[code] for code in sorted(ops.dtype[rows].tolist(), reverse=True))
    return f"{gpu} does not compute in {' nor '.join(names)}"


def supported_targets(
    engine: Engine,
    ops: OpTable,
    work: Work,
    gpus: GpuTable,
    targets: Sequence[int],
    refusal: Callable[[str, Ints], BadInput] | None,
) -> tuple[list[int], list[Skipped]]:
    """Return targets that support every dtype, and the skipped ones. With `refusal`, the first skipped one is raised.

    refusal  (GPU id, rows that it cannot run) -> error
    """
    keep, skipped = [], []
    for target in targets:
        missing, gpu = np.flatnonzero(unsupported_mask(engine, ops, work, gpus, target)), gpus.ids[target]
        if not len(missing):
            keep.append(target)
        elif refusal is not None:
            raise refusal(gpu, missing)
        else:
            skipped.append(Skipped(gpu, unsupported_dtypes(gpu, ops, missing)))
    return keep, skipped


def uses_slot(ops: OpTable, gpus: GpuTable, target: int) -> bool:
    """Return whether rows involve more devices than the GPU's link joins."""
    if not gpus.column("link_domain_gpus")[target] <= MOST_IN_A_MACHINE:
        return False
    return beyond_link_domain(ops, gpus, np.arange(len(ops)), np.full(len(ops), target)) is not None


def gpu_warnings(
    spec: GpuSpec, predictor: str, *, unanswered: int, unmeasured: int, slotted: bool, uncatalogued: bool
) -> list[CodedWarning]:
    """Return what to know before using the numbers of one GPU.

    `unanswered` rows have the hardware limit for lack of support; `unmeasured` ones have no related measurement;
    `slotted`: some involve more devices than its link joins.
    """
    messages = []
    if predictor == ROOFLINE:
        text = "this is the hardware limit, not an expected time: operators seldom reach it"
        messages.append(warning("hardware_limit", text))
    elif unanswered:
        text = f"{predictor} cannot answer for {unanswered} distinct rows: those are at the hardware limit"
        messages.append(warning("unanswered", text))
    elif unmeasured:
        text = f"{unmeasured} distinct rows have no related measurement: they follow from the GPU's figures alone"
        messages.append(warning("evidence_unknown", text))
    if slotted:
        link, slot = spec.link_type or "link", (spec.slot_bandwidth_bytes_per_s or 0.0) / 1e9
        more = f"larger exchanges go over its slot, {slot:g} GB/s"
        text = f"the {link} of {spec.id} joins {spec.link_domain_gpus} devices: {more}"
        messages.append(warning("link_exceeded", text))
    return [*messages, *inferred_warnings(spec)] if uncatalogued else messages
