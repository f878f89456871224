"""What the name of a software stack says of times measured under it."""

from __future__ import annotations

# Stacks whose host launches each operator; others replay CUDA graphs, so that only device time counts.
_EAGER = ("pytorch", "vllm-eager")


def is_eager(software: str) -> float:
    """1 where the host launches each operator of this stack, 0 where a graph does."""
    return float(software.lower().startswith(_EAGER))
