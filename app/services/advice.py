"""Warnings beside a prediction: what a caller should know before acting on the number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.predictors.intervals import NO_EVIDENCE, RELATED
from app.predictors.roofline import hardware_limit
from app.services.gpu_rows import GpuRows
from app.services.prediction_form import PredictRequest
from app.services.workloads import KernelWorkload
from app.tables.gpus import GpuSpec, GpuTable
from app.tables.measurements import Evidence
from app.tables.predictions import EXTRAPOLATED, Predictions

Ints = NDArray[np.intp]

# Room for clocks above the data sheet's and rounded counts.
LIMIT_TOLERANCE = 0.05


def advise(
    rows: GpuRows, gpus: GpuTable, targets: Ints, request: PredictRequest, answer: Predictions, evidence: Evidence
) -> list[list[str]]:
    """Warnings of every query, in the order of `targets`."""
    shared = _about_measured(request.workload, gpus, evidence) if request.workload.measured else []
    groups, supports, answered = answer.group.tolist(), answer.support.tolist(), answer.answered.tolist()
    advice = []
    for q, row in enumerate(targets.tolist()):
        words = list(shared)
        if not answered[q]:
            words.append(f"{request.predictor} cannot answer for this launch: this is the hardware limit")
        elif request.predictor == "roofline":
            words.append("this is the hardware limit, not an expectation: kernels seldom reach it")
        elif groups[q] == NO_EVIDENCE:
            words.append("no measurement of this kernel is known: expect the time anywhere in the wide interval")
        elif groups[q] == RELATED:
            words.append("only measurements of other kernels bear on this one")
        elif supports[q] == EXTRAPOLATED:
            words.append("the launch lies outside what was measured: extrapolated")
        spec = rows.spec(row)
        if request.workload.working_set_bytes > spec.memory_bytes:
            words.append(f"the working set does not fit in the memory of {spec.id}")
        if rows.is_guest(row) and (inferred := _inferred(spec)):
            words.append(f"of {spec.id}, {inferred} figures are inferred from its architecture, not stated")
        advice.append(words)
    return advice


def _inferred(spec: GpuSpec) -> int:
    return sum(source == "inferred" for source in spec.provenance.values())


def _about_measured(workload: KernelWorkload, gpus: GpuTable, evidence: Evidence) -> list[str]:
    """Measured times that cannot be, and sizes whose counts were left as they are."""
    m = len(workload.measured)
    rows = evidence.rows if len(evidence) == m else evidence.rows.take(np.arange(m))
    limit = hardware_limit(rows.ops, gpus, np.arange(m), rows.gpu).latency_s
    words = []
    for k, (row, time, least) in enumerate(
        zip(workload.measured, rows.latency_s.tolist(), limit.tolist(), strict=True)
    ):
        if time < (1 - LIMIT_TOLERANCE) * least:
            words.append(
                f"measured[{k}]: {time * 1e3:.6g} ms is more than {LIMIT_TOLERANCE:.0%} under the hardware limit of "
                f"{gpus.ids[rows.gpu[k]]}, {least * 1e3:.6g} ms: check the time, FLOPs, bytes and working set"
            )
        if row.size is not None and row.size != workload.size and row.flops is None and row.bytes is None:
            words.append(f"measured[{k}]: another size with the same flops and bytes; send those of that size too")
    return words
