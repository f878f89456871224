"""Mechanisms of `auto` for operators, and how each is switched off for benchmarks.ablation.

A mechanism is off while some names of its modules and of app.predictors.physics have other values. Compiled code keeps
its constants, so what it does is switched off by what it is given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np

from app.ops.figures import Rereads
from app.predictors.auto.operators import transfer
from app.predictors.auto.operators.learning import fitting
from app.predictors.auto.operators.models import gaussian_process, training_samples
from app.predictors.auto.operators.models.corrections import NO_TREND
from app.predictors.auto.operators.models.features import LIBRARY_OF_STACK
from app.predictors.physics import physics_fit
from app.predictors.physics.analytic_model import ANY_TILE
from app.predictors.physics.physics_fit import FACTORS, NEUTRAL
from app.predictors.trees.boosted import boosted as grow

ROOT = "app.predictors.auto.operators"
FP32 = ("linear fp32", "bmm fp32", "elementwise fp32", "softmax fp32", "norm fp32", "conv2d fp32")
PREFILL, DECODE = "attention_prefill bf16", "attention_decode bf16"
MODERN = ("linear bf16", "linear fp8", PREFILL, DECODE, "moe")
PRODUCTS = ("linear fp32", "bmm fp32", "linear bf16", "linear fp8", "linear fp8_block", "conv2d fp32")
MOST = (*FP32, *MODERN)
MANY = (*PRODUCTS, PREFILL, DECODE, "moe")
SEEN, UNSEEN, SIBLINGS, FEW = ("seen",), ("left out", "32 rows"), ("stand-in",), ("32 rows",)
# (`module:name` relative to ROOT, its value while a mechanism is off)
Names = Sequence[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Mechanism:
    """What may be switched off.

    lines     of code that only it needs, here and in app.ops
    families  that it can change
    names     what has another value while it is off
    splits    of benchmarks.ablation that it can change; None: all
    """

    name: str
    lines: int
    families: tuple[str, ...]
    names: Callable[[], Names]
    splits: tuple[str, ...] | None = None

    @contextmanager
    def off(self) -> Iterator[None]:
        """`auto` without it."""
        with ExitStack() as stack:
            for path, value in self.names():
                module, _, name = path.partition(":")
                *owners, last = name.split(".")
                owner: Any = import_module(f".{module}", ROOT)
                for part in owners:
                    owner = getattr(owner, part)
                stack.enter_context(patch.object(owner, last, value))
            yield


def _are(*names: tuple[str, Any]) -> Callable[[], Names]:
    return lambda: names


def _without_features(*rows: int) -> Callable[[], Names]:
    """Trees that never ask these features."""
    grown = grow

    def boosted(features: Any, *rest: Any) -> Any:
        features = features.copy()
        features[list(rows)] = 0.0
        return grown(features, *rest)

    return _are(("learning.fitting:boosted", boosted), ("learning.distillation:boosted", boosted))


def _fitted(**fixed: Any) -> Callable[[], Names]:
    """Constants fitted with these options."""
    fit = physics_fit.fitted_factors

    def fitted(terms: Any, latency_s: Any, weight: Any = None, **options: Any) -> Any:
        return fit(terms, latency_s, weight, **options | fixed)

    return _are(("learning.fitting:fitted_factors", fitted))


def _neutral(*_: Any, **__: Any) -> Any:
    return NEUTRAL.copy()


def _graphs_trees(**other: Any) -> Callable[[], Names]:
    """Trees of rows of CUDA graphs grown otherwise."""
    return lambda: [("learning.fitting:_OWN_OF_GRAPHS", replace(fitting._OWN_OF_GRAPHS, **other))]


def _no_fallbacks(ops: Any, shape: Any, queries: Any, packed: Any, gpu_models: Any) -> Any:
    return ops, queries


def _at_random(_part: Any, rows: Any) -> Any:
    """Rows of a GPU in another order than those of the next."""
    return np.random.default_rng(0).permutation(rows)


def _no_donors(gpus: Any, member: Any, situation: Any, homes: Any) -> Any:
    return np.full(member.shape, -1), np.ones(situation.shape)


def _no_bandwidth_ratio(*told: Any) -> Any:
    donor, bandwidth_ratio = transfer.donors_of(*told)
    return donor, np.ones_like(bandwidth_ratio)


def _nothing(kind: Any) -> Any:
    return np.zeros(len(kind.table))


_FEATURES, _CLOCK, _FIT = "..physics.operator_features", "..physics.clock_model", "learning.fitting"
PHYSICS = (
    Mechanism(
        "physics constants fitted",
        123,
        MOST,
        _are(("learning.fitting:fitted_factors", _neutral), ("learning.learn:fitted_factors", _neutral)),
    ),
    Mechanism(
        "clock under board power",
        60,
        ("linear fp32", "bmm fp32", "conv2d fp32", "linear bf16"),
        _are((f"{_CLOCK}:_clock_share", lambda gpus, *_: np.ones(len(gpus)))),
    ),
    Mechanism(
        "half of a partitioned L2",
        12,
        ("linear fp32", "norm fp32", "softmax fp32", "linear bf16", "moe"),
        _are((f"{_CLOCK}:_PARTITIONS", {})),
    ),
    Mechanism(
        "weights in turn through the L2", 18, ("linear bf16", "linear fp8"), _are((f"{_FEATURES}:_between", _nothing))
    ),
    Mechanism(
        "bytes to quantise activations",
        8,
        ("linear fp8", "linear fp8_block"),
        _are((f"{_FEATURES}:_activations", _nothing)),
    ),
    Mechanism(
        "rows read twice",
        60,
        ("softmax fp32", "norm fp32"),
        _are((f"{_FEATURES}:_rereads", lambda nothing, kinds: Rereads(*(nothing for _ in Rereads._fields)))),
    ),
    Mechanism(
        "Winograd's products",
        170,
        ("conv2d fp32",),
        _are((f"{_FEATURES}:_in_other_spaces", lambda grid, kinds: (grid, np.zeros((0, len(grid.splits)))))),
    ),
    Mechanism(
        "tiles of queries",
        60,
        (PREFILL,),
        _are((f"{_FEATURES}:_with_tiles", lambda flops, rereads, kinds: (flops, rereads))),
    ),
    Mechanism(
        "FlashAttention-2's dealing as features",
        55,
        (DECODE,),
        _are((f"{_FEATURES}:_loops", lambda n, kinds: np.zeros((3, 0)))),
    ),
    Mechanism(
        "batches never cut along k", 12, ("bmm fp32",), _are((f"{_FEATURES}:as_batches", lambda products, tiles: None))
    ),
    Mechanism(
        "the only tile of a GPU's batches",
        110,
        ("bmm fp32",),
        _are(("learning.learn:tiled", lambda rows, gpus, before: training_samples.samples(rows, gpus))),
    ),
    Mechanism(
        "the only tile of an architecture",
        10,
        ("bmm fp32",),
        _are(("models.per_operator:Cell._tile_of_chip", lambda self, gpu, make: ANY_TILE)),
        UNSEEN,
    ),
)
LEARNED = (
    Mechanism(
        "trend over the parts of modules",
        395,
        ("attention_module bf16", "attention_mla bf16"),
        _are(("learning.fitting:fitted_trend", lambda features, latency_s, axes: NO_TREND)),
        (*SEEN, "left out", *SIBLINGS),
    ),
    Mechanism("no bottleneck beyond what was measured", 18, (DECODE,), _fitted(capped=False)),
    Mechanism(
        "DRAM's constant drawn to its prior",
        8,
        (DECODE, "moe", "softmax fp32"),
        _are(("..physics.physics_fit:_DRAM_PRIOR", 0.0)),
    ),
    Mechanism("streaming operators told apart", 14, ("elementwise fp32",), _fitted(streams=False)),
    Mechanism("absolute error from 0.1", 12, MODERN, _graphs_trees(clear=np.inf), SEEN),
    Mechanism("trees end at medians", 14, MODERN, _graphs_trees(settles=1.0), SEEN),
    Mechanism("errors count by their ratio", 10, MODERN, _graphs_trees(relative=False), SEEN),
    Mechanism("eager rows by squared error", 6, FP32, lambda: [(f"{_FIT}:_OWN_EAGER", fitting._OWN_OF_GRAPHS)], SEEN),
    Mechanism(
        "distillation",
        150,
        ("linear bf16", PREFILL, DECODE),
        _are(("learning.learn:unmeasured", lambda rows: rows.take(np.empty(0, dtype=np.intp)))),
        SEEN,
    ),
    Mechanism(
        "random trees in distillation",
        20,
        ("linear bf16", PREFILL, DECODE),
        _are(("learning.distillation:ensemble", lambda features, target, grown, blank: grown.sum(blank))),
        SEEN,
    ),
    Mechanism(
        "layers of other gates apart",
        60,
        ("moe",),
        _are(("learning.learn:with_isolated_rows", lambda found, runs: found)),
        SEEN,
    ),
    Mechanism(
        "half of products on 75 W cards", 24, ("linear fp32",), _are(("model:unsteady", lambda gpus: frozenset()))
    ),
    Mechanism(
        "siblings of collectives",
        125,
        ("collective",),
        _are(("learning.learn:with_interpolated_sizes", lambda rows, gpus: rows)),
    ),
    Mechanism(
        "collectives beyond what was measured", 130, ("collective",), _are(("model:with_fallbacks", _no_fallbacks))
    ),
)
TRANSFER = (
    Mechanism(
        "constants carried by agreement (else all)",
        14,
        MOST,
        _are((f"{_FIT}:agreed", lambda found: np.ones(FACTORS))),
        UNSEEN,
    ),
    Mechanism(
        "constants carried by agreement (else none)",
        14,
        MOST,
        _are((f"{_FIT}:agreed", lambda found: np.zeros(FACTORS))),
        UNSEEN,
    ),
    Mechanism("libraries that stacks run", 190, (DECODE, "moe"), _without_features(LIBRARY_OF_STACK)),
    Mechanism("the same layers of all GPUs", 20, ("moe",), _are((f"{_FIT}:drawn", _at_random)), UNSEEN),
    Mechanism("shared trees by makes held out (else none)", 26, MOST, _are((f"{_FIT}:STRENGTHS", (0.0,))), UNSEEN),
    Mechanism("shared trees by makes held out (else half)", 26, MOST, _are((f"{_FIT}:STRENGTHS", (0.5,))), UNSEEN),
    Mechanism(
        "three makes before anything is carried",
        4,
        ("linear fp8_block", "moe", "collective"),
        _are((f"{_FIT}:LEAST_ARCHITECTURES", 1)),
        UNSEEN,
    ),
    Mechanism("siblings asked on themselves", 85, MOST, _are(("model:donors_of", _no_donors)), SIBLINGS),
    Mechanism("a sibling's DRAM time by SMs", 30, MOST, _are(("model:donors_of", _no_bandwidth_ratio)), SIBLINGS),
)
FEW_SHOT = (
    Mechanism("few rows: contradicted ones count less", 24, MANY, _are(("learning.calibration:_CLIPPINGS", 0)), FEW),
    Mechanism(
        "few rows: sooner where a library chooses",
        14,
        ("conv2d fp32",),
        _are(("learning.fitting:chooses", lambda kind: False)),
        FEW,
    ),
    Mechanism("few rows: length, amplitude, noise searched", 22, MANY, _are(("learning.calibration:_ROUNDS", 0)), FEW),
    Mechanism(
        "few rows: leaves in common",
        30,
        MANY,
        _are(("models.gaussian_process:LEAF", 0.0), ("learning.calibration:LEAF", 0.0)),
        FEW,
    ),
    Mechanism(
        "few rows: more or less of the trees",
        6,
        MANY,
        _are(("models.gaussian_process:STRENGTH", 0.0), ("learning.calibration:STRENGTH", 0.0)),
        FEW,
    ),
    Mechanism(
        "few rows: columns stretched",
        10,
        (PREFILL, DECODE, "collective"),
        _are(("models.gaussian_process:_stretches", lambda kind: defaultdict(lambda: 1.0))),
        FEW,
    ),
    Mechanism("few rows: batches alike", 8, ("bmm fp32",), _are(("models.gaussian_process:_BATCH_STRETCH", 1.0)), FEW),
    Mechanism(
        "few rows: smooth over bottlenecks",
        8,
        MANY,
        _are(("models.gaussian_process:BALANCES", np.empty(0, np.intp))),
        FEW,
    ),
    Mechanism(
        "few rows: collectives near by their link",
        22,
        ("collective",),
        lambda: [("models.gaussian_process:Places.of_few", gaussian_process.Places.of)],
        ("32 rows", "2 points"),
    ),
)
# Rows of the features (app.predictors.auto.operators.models.features).
FEATURES = (
    Mechanism("features: sums of logarithms", 4, PRODUCTS, _without_features(5, 6, 7, 8), SEEN),
    Mechanism("features: powers of two", 16, PRODUCTS, _without_features(9, 10, 11), SEEN),
    Mechanism(
        "features: tiles' waves and fill", 8, (*PRODUCTS, PREFILL, DECODE), _without_features(*range(37, 57)), SEEN
    ),
    Mechanism("features: balances", 4, MOST, _without_features(27, 28), SEEN),
    Mechanism("features: the physics' time", 1, MOST, _without_features(29), SEEN),
    Mechanism("features: the limit's share", 2, MOST, _without_features(30), SEEN),
    Mechanism("features: link or turns", 12, (DECODE, "collective"), _without_features(31), SEEN),
    Mechanism("features: bytes over the L2", 4, MOST, _without_features(32, 33), SEEN),
    Mechanism("features: waves of tasks", 4, MOST, _without_features(34, 35), SEEN),
    Mechanism("features: cuts of k", 2, (*PRODUCTS, PREFILL, DECODE), _without_features(36), SEEN),
    Mechanism("features: products of dimensions", 60, (PREFILL, DECODE), _without_features(0, *range(12, 17)), SEEN),
)
MECHANISMS: tuple[Mechanism, ...] = (*PHYSICS, *LEARNED, *TRANSFER, *FEW_SHOT, *FEATURES)
