"""`moe`: a mixture-of-experts layer, as one rank of its parallel group runs it.

Each of `tokens` tokens goes to `top_k` of `experts`; an expert is M = 3 matrices (gate, up, down; Shazeer 2020), or two
in layers known to have no gate, each hidden x intermediate / tensor_parallel on a rank, which holds experts /
expert_parallel of them. The busiest rank gets P of the tokens x top_k pairs and works on A experts. FLOPs = 2 M P
hidden intermediate / tensor_parallel; bytes = weights of A experts + tokens in + gated product out and in + tokens
out. Backward is twice both.

`balanced`: P = pairs / expert_parallel, and as many experts have work as can. `power_law_a`: the number of tokens per
expert is drawn from a density x^-a between 1 and 0.8 tokens (so the data's generator, aiconfigurator, does; with few
pairs 0.01 to 2), scaled to all pairs and rounded; pairs that rounding leaves go to experts without any. P and A are
then those of its quantiles, the largest expert on the busiest rank and the others as average; and of these as many have
work as on the busiest of `expert_parallel` ranks, dealt at random.
"""

from __future__ import annotations

import re
from statistics import NormalDist
from typing import Any

import numpy as np

from app.ops.base import COMMON, Dim, Op
from app.ops.figures import Broken, Products, Ratio, Rereads, Work
from app.ops.gradient import BY_DATA_AND_WEIGHT
from app.ops.prior import Prior
from app.ops.suite import Log, Made, Maker, Pick, Row, Sizes, Space
from app.tables.arrays import Bools, Floats
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, DTYPES, OUTPUT_BYTES, WEIGHT_BYTES, OpTable

# Hidden, intermediate and experts of layers without a gate: Nemotron 3 (squared ReLU, NVIDIA 2025).
_UNGATED = np.array([(2688, 1856, 128), (1024, 2688, 512), (2048, 5120, 512)], dtype=np.float64)
# The same of layers with another gate than SiLU's: GELU in Gemma 4 26B-A4B; clamped and shifted in MiniMax-M3, SiTU in
# Kimi K3. TensorRT-LLM's fused kernels, which stacks prefer on Blackwell, know SiLU and, in NVFP4, GELU.
# And of those whose router chooses groups of experts first: DeepSeek-V3. It was measured with scores that tie, so that
# half of the experts got all tokens, and a rank up to 13 times what `balanced` says; in BF16 without its router.
_ODD = np.array([(2816, 704, 128), (6144, 3072, 128), (3584, 3072, 896), (7168, 2048, 256)], dtype=np.float64)
USUAL, GROUPED, OTHER_GATE = 0.0, 1.0, 2.0
# By layer of _ODD and dtype.
_ODDITY = np.repeat([[OTHER_GATE], [OTHER_GATE], [OTHER_GATE], [GROUPED]], len(DTYPES), axis=1)
_ODDITY[0, DTYPE_CODE["nvfp4"]] = _ODDITY[3, DTYPE_CODE["bf16"]] = USUAL
BALANCED = 0.0
_POWER_LAW = re.compile(r"power_law_(\d{1,3}(?:\.\d{1,12})?)")
_STEEPEST = 8.0
# Largest part of all tokens that the generator gives one expert, and its range where pairs are fewer than experts.
_LARGEST_SHARE, _FEW = 0.8, (0.01, 2.0)
_NEAR_ZERO = 1e-6


def distribution(text: str) -> float:
    """The exponent of a power law, 0 for `balanced`."""
    if text == "balanced":
        return BALANCED
    found = _POWER_LAW.fullmatch(text)
    exponent = float(found[1]) if found else 0.0
    if not 0.0 < exponent <= _STEEPEST:
        raise ValueError(f"is balanced, or power_law_ and an exponent up to {_STEEPEST:g}, as in power_law_1.01")
    return exponent


def distribution_name(exponent: float) -> str:
    """What `distribution` read it from."""
    return "balanced" if exponent == BALANCED else f"power_law_{exponent:.12g}"


def _power(exponent: Floats) -> Floats:
    """A power to integrate with, kept off zero, where the integral is a logarithm."""
    power: Floats = np.where(np.abs(exponent) < _NEAR_ZERO, _NEAR_ZERO, exponent)
    return power


def _skewed(table: OpTable, exponent: Floats) -> tuple[Floats, Floats]:
    """Largest expert's part of all pairs, and the part of experts that have work."""
    tokens, experts = table.column("tokens"), table.column("experts")
    pairs = tokens * table.column("top_k")
    many = pairs > experts
    low = np.where(many, 1.0, _FEW[0])
    high = np.where(many, np.maximum(_LARGEST_SHARE * tokens, 2.0), _FEW[1])
    power, above = _power(1.0 - exponent), _power(2.0 - exponent)
    top = high**power
    span = top - low**power
    mass = high**above - low**above
    total = experts * mass * power / (above * span)  # of the draws of all experts
    # The largest of n draws lies about half an expert from the end of the distribution.
    largest = (top - 0.5 / experts * span) ** (1.0 / power)

    def at_least(share: float) -> tuple[Floats, Floats]:
        """Part of the experts with this many pairs or more, and the part of the pairs that they have."""
        least = np.minimum(np.maximum(share * total / pairs, low), high)
        return (top - least**power) / span, (high**above - least**above) / mass

    # Shares are rounded, those of three and more evenly; what pairs that leaves go to experts without any.
    working, (ample, theirs) = at_least(0.5)[0], at_least(3.0)
    rounded = working + at_least(1.5)[0] + at_least(2.5)[0] - 3.0 * ample
    left = np.maximum(pairs * (1.0 - theirs) / experts - rounded, 0.0)
    return np.minimum(np.maximum(largest / total, 1.0 / experts), 1.0), np.minimum(working + left, 1.0)


def load(table: OpTable) -> tuple[Floats, Floats]:
    """Pairs of token and expert on the busiest rank, and how many of its experts have work, float64 [n] each."""
    experts, exponent, ranks = (table.column(name) for name in ("experts", "distribution", "expert_parallel"))
    pairs, local, even = table.column("tokens") * table.column("top_k"), experts / ranks, 1.0 / ranks
    skewed = exponent != BALANCED
    if not skewed.any():
        return pairs * even, np.maximum(np.minimum(local, pairs * even), 1.0)
    largest, working = _skewed(table, exponent)
    rest = (local - 1.0) * (1.0 - largest) / np.maximum(experts - 1.0, 1.0)
    busiest = pairs * np.where(skewed, np.minimum(np.maximum(largest + rest, even), 1.0), even)
    active = np.minimum(np.where(skewed, local * working + _more(local, working, ranks), local), local)
    busiest = np.where(skewed, np.maximum(busiest, np.minimum(active, pairs)), busiest)
    return busiest, np.maximum(np.minimum(active, busiest), 1.0)


def _more(local: Floats, working: Floats, ranks: Floats) -> Floats:
    """Experts at work on the busiest rank beyond the average: the largest of `ranks` normal draws (Blom 1958)."""
    spread = np.sqrt(local * working * (1.0 - working) * (1.0 - 1.0 / ranks))
    sizes, which = np.unique(ranks, return_inverse=True)
    beyond = np.array([NormalDist().inv_cdf((size - 0.375) / (size + 0.25)) for size in sizes.tolist()])
    more: Floats = spread * beyond[which.reshape(ranks.shape)]
    return more


def _matrices(table: OpTable) -> Floats:
    """Matrices of an expert: three, but two in layers known to have no gate."""
    count: Floats = np.where(_are(table, _UNGATED).any(axis=0), 2.0, 3.0)
    return count


def oddity(table: OpTable) -> Floats:
    """What sets layers apart that no dimension tells: USUAL, GROUPED, OTHER_GATE (one that fused kernels lack), [n]."""
    odd: Floats = (_are(table, _ODD) * _ODDITY[:, table.dtype]).sum(axis=0)
    return odd


def _are(table: OpTable, layers: Floats) -> Bools:
    """Whether hidden, intermediate and experts are those of each of `layers` [layers, 3], bool [layers, n]."""
    shape = np.stack([table.column(name) for name in ("hidden", "intermediate", "experts")])
    are: Bools = (shape[:, None, :] == layers.T[:, :, None]).all(axis=0)
    return are


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


def rereads(table: OpTable) -> Rereads:
    """What the kernels of a layer hand on, beside `work`: too much, and too late, to stay in the L2.

    Of every pair of the whole group, whichever rank has its expert: the first products out, and in for the activation;
    the last out, and in to be summed.
    """
    pairs = table.column("tokens") * table.column("top_k")
    inner = table.column("intermediate") / table.column("tensor_parallel")
    widths = (_matrices(table) - 1.0) * inner + table.column("hidden")
    passes = 1.0 + table.column("backward")
    handed_on = passes * pairs * 2.0 * OUTPUT_BYTES[table.dtype] * widths
    nothing = np.zeros(len(table))
    return Rereads(handed_on, nothing, np.full(len(table), np.inf), nothing)


def check(table: OpTable) -> list[Broken]:
    """The layer can be cut as asked."""
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


def loads(tokens: int, experts: int, top_k: int, exponent: float) -> Any:
    """Tokens of every expert, int [experts]: as equal as can be, or the quantiles of the density x^-a."""
    pairs = tokens * top_k
    if exponent == BALANCED:
        return pairs // experts + (np.arange(experts) < pairs % experts)
    low, high = (1.0, max(_LARGEST_SHARE * tokens, 2.0)) if pairs > experts else _FEW
    share = (np.arange(experts) + 0.5) / experts
    power = (1.0 - exponent) or _NEAR_ZERO
    drawn = (low**power + share * (high**power - low**power)) ** (1.0 / power)
    ends = np.rint(np.cumsum(drawn) / drawn.sum() * pairs).astype(np.int64)
    return np.diff(ends, prepend=0)


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
            Dim(
                "distribution",
                "how tokens spread over experts",
                least=0.0,
                default=BALANCED,
                whole=False,
                most=_STEEPEST,
                read=distribution,
                write=distribution_name,
                words="balanced, or power_law_ and an exponent (power_law_1.01)",
                feature="code",
            ),
            *COMMON,
        ),
        work,
        check=check,
        products=products,
        rereads=rereads,
        dtypes=DTYPES,
        prior=Prior(0.40, 0.72, 150e-6, 25e-6, 0.75),  # many small products between two permutations
        ratios=(
            Ratio(("intermediate",), ("tensor_parallel",)),
            Ratio(("experts",), ("expert_parallel",)),
            Ratio(("tokens", "top_k"), ("experts",)),
        ),
        kernel_class=oddity,
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
