"""Launch mode of a software stack, by its name."""

from __future__ import annotations

from collections.abc import Iterable

# Stacks whose host launches each operator; others replay CUDA graphs, so that only device time counts.
_EAGER = ("pytorch", "vllm-eager")
_GRAPHS = ("vllm", "sglang", "cudagraph", "trtllm", "tensorrt", "cuda", "nccl", "oneccl")


def is_eager(software: str) -> float:
    """1 where the host launches each operator of this stack, 0 where a graph does."""
    return float(software.lower().startswith(_EAGER))


def software_warnings(names: Iterable[str | None]) -> list[str]:
    """A warning for each name, None left out, that is no known stack: a typo, perhaps."""
    unknown = dict.fromkeys(name for name in names if name and not name.lower().startswith((*_EAGER, *_GRAPHS)))
    return [f"software {name!r} is not known here: read as one that replays CUDA graphs" for name in unknown]
