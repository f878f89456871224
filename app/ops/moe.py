"""`moe`: a mixture-of-experts layer, as one rank of its parallel group runs it.

Each of `tokens` tokens goes to `top_k` of `experts`; an expert is M = 3 matrices (gate, up, down; Shazeer 2020), or two
without a gate, each hidden x intermediate / tensor_parallel on a rank, which holds experts /
expert_parallel of them. The busiest rank gets P of the tokens x top_k pairs and works on A experts. FLOPs = 2 M P
hidden intermediate / tensor_parallel; bytes = weights of A experts + tokens in + gated product out and in + tokens
out. Backward is twice both.

`balanced`: P = pairs / expert_parallel, and as many experts have work as can. `power_law_a`: the number of tokens per
expert is drawn from a density x^-a between 1 and 0.8 tokens (so the data's generator, aiconfigurator, does; with few
pairs 0.01 to 2), scaled to all pairs and rounded; pairs that rounding leaves go to experts without any. P and A are
then those of its quantiles, the largest expert on the busiest rank and the others as average; and of these as many have
work as on the busiest of `expert_parallel` ranks, dealt at random.

`moe_wide`: the experts of one rank of a wide expert-parallel group, tokens having been exchanged before. As `moe`, on
whole experts and without the exchange and, in `mode` low_latency, in kernels that take a
block of each expert's tokens, padded (DeepEP's low-latency layout). `slots` hold the experts: more slots than experts
hold copies of the busiest. `balancer` eplb: experts are dealt and copied so that ranks are loaded evenly (DeepSeek's
EPLB), so that the busiest rank gets its even share of the pairs; none: P and A of `moe`, with slots for experts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from app.ops.base import COMMON, Dim, Op, choice, forward_only
from app.ops.collective import MODES, NORMAL
from app.ops.experts import (
    BALANCED,
    BY_GROUPS,
    DISTRIBUTION,
    GATES,
    GELU,
    LACKING,
    PLAIN,
    ROUTERS,
    SILU,
    UNGATED,
    Routing,
    distribution,
    load,
    load_of,
    loads,
)
from app.ops.figures import Broken, Costing, LibraryCosts, Prior, Products, Ratio, Work
from app.ops.gradient import BY_DATA_AND_WEIGHT
from app.ops.suite import Log, Made, Maker, Pick, Row, Sizes, Space
from app.stacks.libraries import LIBRARIES, Choice, libraries_of
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, DTYPES, OUTPUT_BYTES, WEIGHT_BYTES, OpTable

# Classes of layers whose kernels, or load, are others' than the dimensions tell.
USUAL, GROUPED, OTHER_GATE = 0.0, 1.0, 2.0
_LIBRARIES = libraries_of("experts", GATES)
_GATE_CODES = np.arange(float(len(GATES)))
# Whether a library's kernels pass the pairs of all ranks: they leave places for them, zero those, and sum over them.
HANDS_ON_ALL = np.array([name in ("marlin", "", "triton") for name in LIBRARIES])
# Marlin multiplies by `mma.sync`, of which the SMs of Hopper and of Blackwell do no more than an A100's.
MOST_FLOPS_PER_CLOCK = np.array([2048.0 if name == "marlin" else 0.0 for name in LIBRARIES])


def libraries_of_experts(table: OpTable) -> Choice:
    """Return what the library of experts depends on."""
    return Choice(_LIBRARIES, np.full(table.kind.size, np.nan), table.column("gate"), _GATE_CODES)


def _matrices(table: OpTable) -> Floats:
    """Matrices of an expert: three, but two without a gate."""
    count: Floats = np.where(table.column("gate") == UNGATED, 2.0, 3.0)
    return count


def router_class(table: OpTable) -> Floats:
    """USUAL, GROUPED or OTHER_GATE of each row, [n].

    A router that chooses groups of experts first loads ranks unlike any `distribution` (measured with scores that tie,
    half of DeepSeek-V3's experts got all tokens); BF16 layers were measured without theirs, so there it says nothing.
    TensorRT-LLM's fused kernels, which stacks prefer on Blackwell, know the gate SiLU and, in NVFP4, GELU.
    """
    gate, grouped = table.column("gate"), (table.column("router") == BY_GROUPS) & (table.dtype != DTYPE_CODE["bf16"])
    lacking = np.isin(gate, LACKING) & ((gate != GELU) | (table.dtype != DTYPE_CODE["nvfp4"]))
    return np.where(lacking, OTHER_GATE, np.where(grouped, GROUPED, USUAL))


def work(table: OpTable) -> Work:
    """Work of the busiest rank."""
    pairs, active = load(table)
    count, hidden = _matrices(table), table.column("hidden")
    inner = table.column("intermediate") / table.column("tensor_parallel")
    passes = 1.0 + table.column("backward")
    size, written = DTYPE_BYTES[table.dtype], OUTPUT_BYTES[table.dtype]
    weights = active * count * hidden * inner * WEIGHT_BYTES[table.dtype]
    tokens = np.minimum(pairs, table.column("tokens"))
    moved = weights + tokens * hidden * (size + written) + pairs * inner * (size + written)
    flops = 2.0 * count * pairs * hidden * inner
    return Work(passes * flops, passes * moved, passes * moved)


def products(table: OpTable) -> Products:
    """All but the last matrix of every expert that has work."""
    pairs, active = load(table)
    inner = table.column("intermediate") / table.column("tensor_parallel")
    return Products(active, pairs / active, (_matrices(table) - 1.0) * inner, table.column("hidden"))


class HandedOn(NamedTuple):
    """Bytes that the kernels of a layer hand on, float64 [n]: of the pairs of all ranks, and of this one.

    The first products out, and in for the activation; the last, to be summed. Of this rank's pairs also every token's
    row, in to be sorted and out of the sum.
    """

    all_ranks: Floats
    own: Floats


def _handed_on(table: OpTable) -> HandedOn:
    tokens, hidden = table.column("tokens"), table.column("hidden")
    widths = (_matrices(table) - 1.0) * table.column("intermediate") / table.column("tensor_parallel") + hidden
    size = 2.0 * (1.0 + table.column("backward")) * OUTPUT_BYTES[table.dtype]
    all_ranks = size * tokens * table.column("top_k") * widths
    return HandedOn(all_ranks, size * (load(table)[0] * widths + 2.0 * tokens * hidden))


def _fill_costs(rows: HandedOn, library: Floats, costs: LibraryCosts) -> None:
    """Fill what kernels hand on, and the bound of their rate."""
    for q in range(len(rows.own)):
        for generation in range(len(library)):
            code = int(library[generation, q])
            costs.handed_bytes[generation, q] = rows.all_ranks[q] if HANDS_ON_ALL[code] else rows.own[q]
            costs.flops_per_clock[generation, q] = MOST_FLOPS_PER_CLOCK[code]


EXPERT_COSTS = Costing(_handed_on, _fill_costs)


def check(table: OpTable) -> list[Broken]:
    """Rules of the expert and tensor parallelism, and of top_k."""
    experts = table.column("experts")
    return [
        Broken("top_k exceeds experts", table.column("top_k") > experts, "top_k"),
        Broken(
            "expert_parallel must divide experts", experts % table.column("expert_parallel") != 0, "expert_parallel"
        ),
        Broken(
            "tensor_parallel exceeds intermediate",
            table.column("tensor_parallel") > table.column("intermediate"),
            "tensor_parallel",
        ),
    ]


def _build(make: Maker, row: Row) -> Made:
    """Experts chosen beforehand: the router is an operator of its own."""
    experts, top_k, hidden, torch = row["experts"], row["top_k"], row["hidden"], make.torch
    inner = row["intermediate"] // row.get("tensor_parallel", 1)
    counts = loads(row["tokens"], experts, top_k, distribution(row.get("distribution", "balanced")))
    x, gate_up = make.normal(row["tokens"], hidden), make.normal(experts, 2 * inner, hidden)
    down = make.normal(experts, hidden, inner)
    ends = torch.from_numpy(np.cumsum(counts)).to(make.device, torch.int32)
    # Which tokens an expert gets does not matter to time; that they lie scattered does.
    token = torch.randperm(int(counts.sum()), device=make.device) % row["tokens"]
    return Made(lambda: layer(torch, x, gate_up, down, token, ends), (x, gate_up, down))


def layer(torch: Any, x: Any, gate_up: Any, down: Any, token: Any, ends: Any) -> Any:
    """[tokens, hidden]: of each pair (token, expert), sorted by expert and ending at `ends`, silu(x G) (x U) D.

    gate_up [experts, 2 inner, hidden], down [experts, hidden, inner], token int [pairs], ends int32 [experts].
    """
    functional = torch.nn.functional
    both = functional.grouped_mm(x[token], gate_up.transpose(1, 2), offs=ends)
    gate, up = both.chunk(2, dim=-1)
    result = functional.grouped_mm(functional.silu(gate) * up, down.transpose(1, 2), offs=ends)
    return torch.zeros_like(x).index_add_(0, token, result)


def _even(sizes: Sizes) -> Sizes | None:
    """An expert's part stays a multiple of 16 elements, as grouped products want it."""
    return sizes if sizes["intermediate"] % (16 * sizes["tensor_parallel"]) == 0 else None


MOE_OPS = (
    Op(
        "moe",
        "moe",
        (
            Dim("tokens", "tokens of the whole expert-parallel group"),
            Dim("hidden", "features in and out"),
            Dim("intermediate", "features inside an expert, of the whole layer"),
            Dim("experts", "experts of the whole layer"),
            Dim("top_k", "experts per token"),
            Dim("tensor_parallel", "devices that share each expert", default=1.0),
            Dim("expert_parallel", "groups of devices among which experts are dealt", default=1.0),
            DISTRIBUTION,
            choice(
                "gate",
                "activation of an expert's gate; other: clamped or shifted, such as SiTU; none: two matrices, no gate",
                GATES,
                SILU,
                "class",
            ),
            choice("router", "grouped: it chooses groups of experts first, as DeepSeek-V3's", ROUTERS, PLAIN, "class"),
            *COMMON,
        ),
        work,
        check=check,
        products=products,
        dtypes=DTYPES,
        prior=Prior.of("moe"),  # many small products between two permutations
        ratios=(
            Ratio(("intermediate",), ("tensor_parallel",)),
            Ratio(("experts",), ("expert_parallel",)),
            Ratio(("tokens", "top_k"), ("experts",)),
        ),
        kernel_class=router_class,
        libraries=libraries_of_experts,
        library_costs=EXPERT_COSTS,
        configuration=("hidden", "intermediate", "experts", "top_k"),
        few_configurations=True,
        backward=BY_DATA_AND_WEIGHT,
        saves=("input",),
        suite=Space(
            {
                "tokens": Log(1, 1 << 15),
                "hidden": Log(256, 8192, step=64),
                "intermediate": Log(256, 16384, step=64),
                "experts": Pick((8, 16, 32, 64, 128, 256)),
                "top_k": Pick((1, 2, 4, 8)),
                "tensor_parallel": Pick((1, 1, 2, 4)),
                "distribution": Pick(("balanced", "power_law_1.01", "power_law_1.2")),
            },
            ("bf16",),
            _build,
            _even,
        ),
        usual={
            "tokens": (1, 16384),
            "hidden": (1024, 8192),
            "intermediate": (512, 16384),
            "experts": (8, 128),
            "top_k": (1, 8),
        },
        example={"tokens": 2048, "hidden": 4096, "intermediate": 1536, "experts": 64, "top_k": 8},
    ),
)


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


def wide_work(table: OpTable) -> Work:
    """Work of the busiest rank."""
    pairs, active = _load(table)
    hidden, inner = table.column("hidden"), table.column("intermediate")
    size, written = DTYPE_BYTES[table.dtype], OUTPUT_BYTES[table.dtype]
    weights = active * _MATRICES * hidden * inner * WEIGHT_BYTES[table.dtype]
    moved = weights + pairs * (hidden + inner) * (size + written)
    return Work(2.0 * _MATRICES * pairs * hidden * inner, moved, moved)


def wide_products(table: OpTable) -> Products:
    """The first two matrices of every expert that has work."""
    pairs, active = _load(table)
    return Products(active, pairs / active, 2.0 * table.column("intermediate"), table.column("hidden"))


def check_wide(table: OpTable) -> list[Broken]:
    """Rules of slots and ranks."""
    experts, slots = table.column("experts"), _slots(table)
    return [
        Broken("top_k exceeds experts", table.column("top_k") > experts, "top_k"),
        Broken("slots must be at least experts", slots < experts, "slots"),
        Broken("expert_parallel must divide slots", slots % table.column("expert_parallel") != 0, "expert_parallel"),
        forward_only(table),
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
            choice(
                "balancer",
                "eplb: experts are dealt and copied so that devices are loaded evenly",
                BALANCERS,
                UNBALANCED,
            ),
            choice(
                "mode",
                "kernels behind an exchange of this mode: normal (prefill) or low_latency (decode)",
                MODES,
                NORMAL,
            ),
            *COMMON,
        ),
        wide_work,
        check=check_wide,
        dtypes=DTYPES,
        products=wide_products,
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
