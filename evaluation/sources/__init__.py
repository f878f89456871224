"""The scorecard's studies: whole workloads that others measured, one function of cases a source."""

from __future__ import annotations

from evaluation.sources import inference, ml_energy, training

STUDIES = (*training.STUDIES, *inference.STUDIES, ml_energy.STUDY)
