"""Devices that share a sequence: their part of attention and of all other rows, and what they exchange."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.networks.batched import work_of_rows
from app.networks.exchanges import with_key_exchange
from app.networks.importers.hf import lower
from app.networks.run import Parallelism, Run
from app.networks.training_pass import training
from app.ops import OP_CODE
from app.tables.workload import BACKWARD, FORWARD
from tests.unit.transformers import config

LLAMA = config("llama-3-8b")
RUN = Run(mode="training", batch=2, sequence=8192, dtype="bf16", attention="flash")
SHARED = replace(RUN, parallelism=Parallelism(context=4, tensor=2, sequence=True))


def test_each_device_has_an_equal_part_of_the_work() -> None:
    whole, part = (
        lower(LLAMA, replace(RUN, parallelism=Parallelism(tensor=2, sequence=True, context=size))) for size in (1, 4)
    )
    attention = whole.ops.kind == OP_CODE["attention_prefill"]
    flops, shared = (work_of_rows(w.ops).flops for w in (whole, part))
    assert whole.names == part.names
    assert shared[attention] == pytest.approx(flops[attention] / 4.0, rel=1e-3)
    linear = whole.ops.kind == OP_CODE["linear"]
    assert shared[linear] == pytest.approx(flops[linear] / 4.0)
    assert part.parameters == pytest.approx(whole.parameters)
    assert part.saved_bytes.sum() == pytest.approx(whole.saved_bytes.sum() / 4.0)


def test_keys_and_values_are_gathered_and_their_gradients_reduced_beside_attention() -> None:
    w = with_key_exchange(training(lower(LLAMA, SHARED), SHARED), SHARED)
    added = [k for k in range(len(w)) if w.overlapped[k]]
    kinds = {OP_CODE["all_gather"]: "all_gather", OP_CODE["reduce_scatter"]: "reduce_scatter"}
    assert [(kinds[int(w.ops.kind[k])], int(w.phase[k])) for k in added] == [
        ("all_gather", FORWARD),
        ("all_gather", BACKWARD),
        ("reduce_scatter", BACKWARD),
    ]
    # Two sequences of 8,192 tokens; half of eight heads of 128; keys and values of two bytes.
    assert w.ops.column("message_bytes")[added] == pytest.approx(2 * 8192 * 2 * 4 * 128 * 2)
    assert (w.ops.column("devices")[added] == 4).all()
    assert with_key_exchange(w, RUN) is w


def test_all_devices_with_the_same_weights_exchange_gradients() -> None:
    assert Parallelism(data=3, context=4, tensor=2).replicas == 12
    assert Parallelism(data=3, context=4, tensor=2, pipeline=5).devices == 120
