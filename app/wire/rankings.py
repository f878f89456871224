"""Figures that a comparison ranks GPUs by."""

from typing import Literal, TypeAlias

RANKINGS = ("latency", "throughput", "cost", "energy")
# Of served models alone.
SERVED_RANKINGS = ("tokens_per_s_per_gpu", "cost_per_million_tokens")
RankBy: TypeAlias = Literal[
    "latency", "throughput", "cost", "energy", "tokens_per_s_per_gpu", "cost_per_million_tokens"
]
