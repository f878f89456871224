"""A mixture-of-experts layer as one rank runs it (app.ops.moe): rows sorted by expert, two grouped products."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from app.measure.operators.made import Made, Maker, Row
from app.ops.moe import BALANCED, distribution

_LARGEST_SHARE, _FEW = 0.8, (0.01, 2.0)
_NEAR_ZERO = 1e-6


def moe(make: Maker, row: Row) -> Made:
    """Experts chosen beforehand: the router is an operator of its own."""
    experts, top_k, hidden = row["experts"], row["top_k"], row["hidden"]
    inner = row["intermediate"] // row.get("tensor_parallel", 1)
    counts = loads(row["tokens"], experts, top_k, distribution(row.get("distribution", "balanced")))
    x, gate_up = make.normal(row["tokens"], hidden), make.normal(experts, 2 * inner, hidden)
    down = make.normal(experts, hidden, inner)
    ends = torch.from_numpy(np.cumsum(counts)).to(make.device.handle, torch.int32)
    # Which tokens an expert gets does not matter to time; that they lie scattered does.
    token = torch.randperm(int(counts.sum()), device=make.device.handle) % row["tokens"]
    return Made(lambda: layer(x, gate_up, down, token, ends), (x, gate_up, down))


def layer(x: Any, gate_up: Any, down: Any, token: Any, ends: Any) -> Any:
    """[tokens, hidden]: of each pair (token, expert), sorted by expert and ending at `ends`, silu(x G) (x U) D.

    gate_up [experts, 2 inner, hidden], down [experts, hidden, inner], token int [pairs], ends int32 [experts].
    """
    both = functional.grouped_mm(x[token], gate_up.transpose(1, 2), offs=ends)
    gate, up = both.chunk(2, dim=-1)
    result = functional.grouped_mm(functional.silu(gate) * up, down.transpose(1, 2), offs=ends)
    return torch.zeros_like(x).index_add_(0, token, result)


def loads(tokens: int, experts: int, top_k: int, exponent: float) -> Any:
    """Tokens of every expert, int [experts]: as equal as can be, or the quantiles of app.ops.moe's density x^-a."""
    pairs = tokens * top_k
    if exponent == BALANCED:
        return pairs // experts + (np.arange(experts) < pairs % experts)
    low, high = (1.0, max(_LARGEST_SHARE * tokens, 2.0)) if pairs > experts else _FEW
    share = (np.arange(experts) + 0.5) / experts
    power = (1.0 - exponent) or _NEAR_ZERO
    drawn = (low**power + share * (high**power - low**power)) ** (1.0 / power)
    ends = np.rint(np.cumsum(drawn) / drawn.sum() * pairs).astype(np.int64)
    return np.diff(ends, prepend=0)
