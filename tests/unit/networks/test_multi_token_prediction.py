"""Layers of multi-token prediction: trained where the stack does, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.errors import BadInput
from app.networks.importers.hf import lower, read
from app.networks.run import Run
from app.ops import kinds_of, work_of
from app.stacks.release import release_of
from app.tables.workload import Workload
from tests.unit.transformers import config

RUN = Run(mode="training", batch=1, sequence=4096, dtype="bf16", attention="flash")
MEGATRON = replace(RUN, release=release_of("megatron-bridge-26.04", "training"))
DEEPSEEK = config("deepseek-v3")


def flops(w: Workload) -> float:
    return float((work_of(w.ops, kinds_of(w.ops)).flops * w.repeats[w.block]).sum())


def with_layers(given: dict[str, Any], layers: object) -> dict[str, Any]:
    return {**given, "num_nextn_predict_layers": layers}


def test_megatron_trains_a_layer_and_the_logits_of_each_further_token() -> None:
    none, one, two = (lower(with_layers(DEEPSEEK, layers), MEGATRON) for layers in (0, 1, 2))
    width, tokens = 7168.0, 4096.0
    logits = 2.0 * tokens * width * 129280.0
    layer = (flops(none) - logits) / 61.0  # on average: three of 61 layers are dense, and cost as much
    expected = layer + logits + 4.0 * tokens * width * width
    assert flops(one) - flops(none) == pytest.approx(expected, rel=0.05)
    assert flops(two) - flops(one) == pytest.approx(flops(one) - flops(none), rel=1e-9)
    # Experts, attention and the projection; the logits' weights are the model's.
    held = [float((w.parameters * w.repeats[w.block]).sum()) for w in (none, one)]
    assert held[1] - held[0] == pytest.approx(256 * 3 * width * 2048, rel=0.05)


@pytest.mark.parametrize("software", ["", "torchtitan", "transformers", "fsdp2"])
def test_others_leave_them_out(software: str) -> None:
    run = replace(RUN, release=release_of(software, "training")) if software else RUN
    names = lower(with_layers(DEEPSEEK, 1), run).names
    assert names == lower(with_layers(DEEPSEEK, 0), run).names


def test_inference_leaves_them_out() -> None:
    run = replace(MEGATRON, mode="inference")
    assert lower(with_layers(DEEPSEEK, 1), run).names == lower(with_layers(DEEPSEEK, 0), run).names


def test_a_model_of_parts_in_layers_of_their_own_has_one_of_each() -> None:
    (experts, twice), (attention, as_often) = read(config("nemotron-3-super-120b-a12b")).mtp
    assert (experts.attention, attention.feed_forward) == (None, None)
    assert (twice, as_often) == (2, 2)
    w = lower(config("nemotron-3-super-120b-a12b"), MEGATRON)
    assert np.isfinite(flops(w))


@pytest.mark.parametrize("layers", [-1, 1.5, "one", True])
def test_other_numbers_are_refused(layers: object) -> None:
    with pytest.raises(BadInput) as caught:
        read(with_layers(DEEPSEEK, layers))
    assert caught.value.errors[0].loc == ("workload", "config", "num_nextn_predict_layers")
