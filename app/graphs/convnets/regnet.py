"""RegNetX and RegNetY (Radosavovic et al. 2020)."""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby
from typing import NamedTuple

from app.graphs.convnets.net import Constructor, Net, Tensor, divisible


class Rule(NamedTuple):
    """Parameters of the block widths (the paper's equations 2 to 4), and channels per group."""

    depth: int
    initial_width: int
    slope: float
    factor: float
    group: int


class Stage(NamedTuple):
    """Consecutive blocks of one width."""

    channels: int
    depth: int
    group: int


def stages_of(rule: Rule) -> list[Stage]:
    """Return the stages: block j has the power w_0 w_m^s nearest to w_0 + w_a j, rounded to eights and to groups."""
    linear = [rule.initial_width + rule.slope * j for j in range(rule.depth)]
    powers = [round(math.log(width / rule.initial_width) / math.log(rule.factor)) for width in linear]
    widths = [8 * round(rule.initial_width * rule.factor**power / 8) for power in powers]
    runs = [(width, len(list(run))) for width, run in groupby(widths)]
    return [Stage(divisible(width, min(rule.group, width)), n, min(rule.group, width)) for width, n in runs]


def regnet(net: Net, rule: Rule, *, excited: bool) -> None:
    """Add a stem and stages of residual bottlenecks; `excited` (RegNetY) adds squeeze and excitation."""
    net.begin("Stem")
    x = net.conv_norm(net.image, 32, 3, 2)
    for stage in stages_of(rule):
        net.begin("ResBottleneckBlock")
        x = _block(net, x, stage, 2, excited)
        if stage.depth > 1:
            net.begin("ResBottleneckBlock", stage.depth - 1)
            x = _block(net, x, stage, 1, excited)
    net.begin("Head")
    net.linear(net.mean(x), net.classes)


def _block(net: Net, x: Tensor, stage: Stage, stride: int, excited: bool) -> Tensor:
    width = stage.channels
    skip = net.conv_norm(x, width, 1, stride, act=None) if stride > 1 or x.channels != width else x
    y = net.conv_norm(net.conv_norm(x, width, 1), width, 3, stride, groups=width // stage.group)
    if excited:
        y = net.excite(y, round(0.25 * x.channels))
    return net.act(net.add(skip, net.conv_norm(y, width, 1, act=None)))


_X = {
    "400mf": Rule(22, 24, 24.48, 2.54, 16),
    "800mf": Rule(16, 56, 35.73, 2.28, 16),
    "1_6gf": Rule(18, 80, 34.01, 2.25, 24),
    "3_2gf": Rule(25, 88, 26.31, 2.25, 48),
    "8gf": Rule(23, 80, 49.56, 2.88, 120),
    "16gf": Rule(22, 216, 55.59, 2.1, 128),
    "32gf": Rule(23, 320, 69.86, 2.0, 168),
}
_Y = {
    "400mf": Rule(16, 48, 27.89, 2.09, 8),
    "800mf": Rule(14, 56, 38.84, 2.4, 16),
    "1_6gf": Rule(27, 48, 20.71, 2.65, 24),
    "3_2gf": Rule(21, 80, 42.63, 2.66, 24),
    "8gf": Rule(17, 192, 76.82, 2.19, 56),
    "16gf": Rule(18, 200, 106.23, 2.48, 112),
    "32gf": Rule(20, 232, 115.89, 2.53, 232),
    "128gf": Rule(27, 456, 160.83, 2.52, 264),
}

NETWORKS: dict[str, Constructor] = {
    f"regnet_{letter}_{size}": partial(regnet, rule=rule, excited=letter == "y")
    for letter, rules in (("x", _X), ("y", _Y))
    for size, rule in rules.items()
}
