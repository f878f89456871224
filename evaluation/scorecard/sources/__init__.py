"""The scorecard's sources: one module each, and the tuple that registers them."""

from __future__ import annotations

from evaluation.scorecard.case import Source
from evaluation.scorecard.sources import (
    llm_inference_bench,
    megatron_bridge,
    ml_energy,
    mlperf_training,
    mosaic_mpt,
    torchvision_convnets,
)

SOURCES: tuple[Source, ...] = (
    megatron_bridge.SOURCE,
    mlperf_training.SOURCE,
    mosaic_mpt.SOURCE,
    llm_inference_bench.SOURCE,
    torchvision_convnets.SOURCE,
    ml_energy.SOURCE,
)
