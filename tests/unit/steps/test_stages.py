"""Pipeline stages against exhaustive search."""

from __future__ import annotations

from itertools import combinations, pairwise
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.networks.build import Builder
from app.networks.run import Parallelism, Run
from app.steps.schedule import schedule
from app.steps.stages import stage_repeats
from tests.unit.network_samples import gpt2, roofline


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=4), st.integers(1, 5))
def test_the_largest_stage_is_minimal(blocks: list[tuple[int, int]], stages: int) -> None:
    b = Builder("fp32")
    for size, repeats in blocks:
        b.begin(repeats)
        b.add("linear", outputs=1, m=512 * size, n=4096, k=4096)
    w = b.build()
    dealt = stage_repeats(w, stages)
    assert dealt.sum(axis=0).tolist() == [repeats for _, repeats in blocks]
    assert (dealt == np.round(dealt)).all() and (dealt >= 0).all()
    # Layers stay in order: no stage has a layer before one of an earlier stage.
    held = [np.flatnonzero(stage) for stage in dealt if stage.any()]
    assert all(earlier[-1] <= later[0] for earlier, later in pairwise(held))
    layers = [size for size, repeats in blocks for _ in range(repeats)]
    cuts = combinations(range(1, len(layers)), min(stages, len(layers)) - 1)
    best = min(max(sum(layers[a:z]) for a, z in pairwise((0, *cut, len(layers)))) for cut in cuts)
    assert float((dealt @ [size for size, _ in blocks]).max()) == pytest.approx(best)


def test_layers_of_a_transformer_are_balanced_over_stages() -> None:
    dealt = stage_repeats(gpt2(layers=36), 4)
    assert dealt[0, 0] == dealt[3, 2] == 1.0  # embedding first, head last
    assert dealt[:, 1].sum() == 36
    assert dealt[:3, 1].min() >= 8 and dealt[3, 1] < dealt[0, 1]  # the head weighs as much as some layers


def test_with_more_stages_than_layers_some_are_empty() -> None:
    dealt = stage_repeats(gpt2(layers=2), 16)
    assert dealt.sum(axis=0).tolist() == [1.0, 2.0, 1.0]


def test_thousands_of_stages_are_cut_quickly() -> None:
    w = gpt2(layers=50_000, hidden=64, heads=1, sequence=8)
    begun = process_time()
    assert stage_repeats(w, 40_000).sum() == 50_002
    run = Run(parallelism=Parallelism(pipeline=2_000, microbatches=4))
    assert schedule(w, roofline(w, (1e13, 1e12)), 0.0, run).bubble_s[0] > 0
    assert process_time() - begun < 3.0
