"""`moe_wide`: the experts of one rank of a wide expert-parallel group, tokens having been exchanged before.

As `moe` (app.ops.moe), on whole experts and without the exchange and, in `mode` low_latency, in kernels that take a
block of each expert's tokens, padded (DeepEP's low-latency layout). `slots` hold the experts: more slots than experts
hold copies of the busiest. `balancer` eplb: experts are dealt and copied so that ranks are loaded evenly (DeepSeek's
EPLB), so that the busiest rank gets its even share of the pairs; none: P and A of `moe`, with slots for experts.
"""

from __future__ import annotations

import numpy as np

from app.ops.base import COMMON, Dim, Op
from app.ops.expert_all_to_all import MODES, NORMAL
from app.ops.expert_load import BALANCED, DISTRIBUTION, Routing, load_of
from app.ops.figures import Broken, Products, Ratio, Work
from app.ops.prior import Prior
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_BYTES, DTYPES, OUTPUT_BYTES, WEIGHT_BYTES, OpTable

BALANCERS = ("none", "eplb")
UNBALANCED, EPLB = (float(code) for code in range(len(BALANCERS)))
_MATRICES = 3.0


def _slots(table: OpTable) -> Floats:
    """Slots of all ranks, [n]: as many as experts where absent."""
    given = table.column("slots")
    slots: Floats = np.where(np.isnan(given), table.column("experts"), given)
    return slots


def _load(table: OpTable) -> tuple[Floats, Floats]:
    """(token, expert) pairs on the busiest rank, and its slots with work, [n] each."""
    tokens, top_k, ranks = (table.column(name) for name in ("tokens", "top_k", "expert_parallel"))
    exponent = np.where(table.column("balancer") == EPLB, BALANCED, table.column("distribution"))
    return load_of(Routing(tokens, top_k, _slots(table), ranks, exponent))


def work(table: OpTable) -> Work:
    """Work of the busiest rank."""
    pairs, active = _load(table)
    hidden, inner = table.column("hidden"), table.column("intermediate")
    size, written = DTYPE_BYTES[table.dtype], OUTPUT_BYTES[table.dtype]
    weights = active * _MATRICES * hidden * inner * WEIGHT_BYTES[table.dtype]
    moved = weights + pairs * (hidden + inner) * (size + written)
    return Work(2.0 * _MATRICES * pairs * hidden * inner, moved, moved)


def products(table: OpTable) -> Products:
    """The first two matrices of every expert that has work."""
    pairs, active = _load(table)
    return Products(active, pairs / active, 2.0 * table.column("intermediate"), table.column("hidden"))


def check(table: OpTable) -> list[Broken]:
    """Rules of slots and ranks."""
    experts, slots = table.column("experts"), _slots(table)
    return [
        Broken("top_k exceeds experts", table.column("top_k") > experts, "top_k"),
        Broken("slots must be at least experts", slots < experts, "slots"),
        Broken("expert_parallel must divide slots", slots % table.column("expert_parallel") != 0, "expert_parallel"),
        Broken("serving stacks' kernels have no backward phase", table.column("backward") > 0, "backward"),
    ]


MOE_WIDE_OPS = (
    Op(
        "moe_wide",
        "moe_wide",
        (
            Dim("tokens", "tokens of the whole expert-parallel group"),
            Dim("hidden", "features in and out"),
            Dim("intermediate", "features inside an expert"),
            Dim("experts", "experts of the whole layer"),
            Dim("top_k", "experts per token"),
            Dim("expert_parallel", "devices among which experts are dealt"),
            Dim("slots", "places for experts on all devices; absent: one per expert", default=np.nan, absent="experts"),
            DISTRIBUTION,
            Dim(
                "balancer",
                "eplb: experts are dealt and copied so that devices are loaded evenly",
                least=0.0,
                default=UNBALANCED,
                choices=BALANCERS,
                feature="code",
            ),
            Dim(
                "mode",
                "kernels behind an exchange of this mode: normal (prefill) or low_latency (decode)",
                least=0.0,
                default=NORMAL,
                choices=MODES,
                feature="code",
            ),
            *COMMON,
        ),
        work,
        check=check,
        dtypes=DTYPES,
        products=products,
        prior=Prior.of("moe_wide"),
        ratios=(
            Ratio(("tokens",), ("expert_parallel",)),
            Ratio(("experts",), ("expert_parallel",)),
            Ratio(("tokens", "top_k"), ("experts",)),
        ),
        configuration=("hidden", "intermediate", "experts", "top_k", "expert_parallel"),
        few_configurations=True,
        backward=(),
        example={
            "tokens": 2048,
            "hidden": 7168,
            "intermediate": 2048,
            "experts": 256,
            "top_k": 8,
            "expert_parallel": 32,
        },
    ),
)
