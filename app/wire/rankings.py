"""Figures that a comparison ranks GPUs by."""

from typing import Literal, TypeAlias

RANKINGS = ("latency", "throughput", "cost", "energy")
RankBy: TypeAlias = Literal["latency", "throughput", "cost", "energy"]
