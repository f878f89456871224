"""Memory of a step, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.networks.build import Builder
from app.networks.importers.hf import lower
from app.networks.run import Parallelism, Run
from app.networks.training_pass import training
from app.stacks.release import release_of
from app.steps.stages import RESERVE_BYTES, SLACK, memory
from tests.unit.network_samples import gpt2
from tests.unit.transformers import config

TRAINING = Run(mode="training", optimizer="adam")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_training_states_take_16_bytes_per_parameter_with_adam(dtype: str) -> None:
    """ZeRO's paper: 2 + 2 + 12 bytes in mixed precision; 4 + 4 + 8 in FP32."""
    w = gpt2(layers=48, hidden=1600, heads=25, dtype=dtype)
    parameters = float((w.parameters * w.repeats[w.block]).sum())
    assert parameters == 1_557_611_200  # GPT-2 XL
    kept = memory(w, TRAINING)
    assert kept.weights + kept.gradients + kept.optimizer == 16 * parameters
    assert kept.required_bytes == pytest.approx(sum(kept))
    assert kept.reserve == RESERVE_BYTES
    assert memory(training(w, TRAINING), TRAINING) == kept


@pytest.mark.parametrize(("zero", "bytes_each"), [(0, 16.0), (1, 4 + 12 / 64), (2, 2 + 14 / 64), (3, 16 / 64)])
def test_zero_divides_states_as_in_its_paper(zero: int, bytes_each: float) -> None:
    """Figure 1 of the paper, 7.5 billion parameters on 64 devices: 120, 31.4, 16.6 and 1.9 GB."""
    w = gpt2(dtype="bf16")
    kept = memory(w, replace(TRAINING, parallelism=Parallelism(data=64, zero=zero)))
    parameters = float((w.parameters * w.repeats[w.block]).sum())
    assert kept.weights + kept.gradients + kept.optimizer == pytest.approx(bytes_each * parameters)


def test_communication_buffers_are_buckets_or_a_gathered_layer() -> None:
    w = gpt2(dtype="bf16")
    one, plain, sharded = (
        memory(w, replace(TRAINING, parallelism=Parallelism(data=data, zero=zero)))
        for data, zero in ((1, 0), (8, 0), (8, 3))
    )
    assert (one.buffers, one.gathered) == (0.0, 0.0)
    assert plain.buffers == memory(w, TRAINING).gradients
    assert sharded.gathered == float(w.per_block(w.weight_bytes).max())


def test_recomputation_saves_the_input_of_each_layer() -> None:
    w = gpt2(layers=10, hidden=128, heads=2, sequence=64)
    saved = w.per_block(w.saved_bytes)
    assert memory(w, TRAINING).activations == pytest.approx(float(saved @ w.repeats))
    again = memory(w, replace(TRAINING, recompute=("full",)))
    boundary = 64 * 128 * 4
    assert again.activations == pytest.approx(10 * boundary + float(saved[2]) + float(saved[:2].max()))


def test_recomputation_per_operator_keeps_attention_and_every_second_product() -> None:
    """Of Llama's layer queries, values, gate and down projection, the attention and the input (torchtitan's list)."""
    run = replace(TRAINING, batch=2, sequence=8192, dtype="bf16", attention="flash", recompute=("selective_op",))
    w = lower(config("llama-3-8b"), run)
    kept = 2 * 8192 * (4096 + 4096 + 1024 + 4096 + 14336 + 4096) * 2
    found = memory(w, run).activations
    every, one = (memory(w, replace(run, recompute=what)).activations for what in ((), ("full",)))
    ends = 2 * 8192 * (128256 + 2 * 4096) * 2  # logits, and the input and output of the last norm
    assert 32 * kept + ends < found < 32 * kept + ends + (every - one) / 31
    assert sum(memory(w, run).parts.values()) == pytest.approx(memory(w, run).required_bytes)


def test_pytorch_leaves_a_stage_whole_between_microbatches() -> None:
    """Its weights in 2 bytes and the gradients that add up in 4; Megatron gathers a layer."""
    split = Parallelism(data=16, pipeline=4, microbatches=8, zero=3)
    run = replace(TRAINING, batch=128, sequence=512, dtype="bf16", attention="flash", parallelism=split)
    titan, other = (replace(run, release=release_of(name, "training")) for name in ("torchtitan", "megatron"))
    kept = memory(lower(config("llama-3-8b"), titan), titan)
    assert kept.gathered == pytest.approx(6 * 16 * kept.weights / 2, rel=0.01)
    assert memory(lower(config("llama-3-8b"), other), other).gathered < kept.gathered / 10


def test_the_allocator_holds_more_than_tensors_that_come_and_go() -> None:
    run = replace(TRAINING, batch=2, sequence=1024, dtype="bf16", attention="flash", loss=True)
    kept = memory(lower(config("llama-3-8b"), run), run)
    assert kept.allocator == pytest.approx(SLACK * (kept.activations + kept.logits))
    megatron = replace(run, release=release_of("megatron", "training"))
    assert memory(lower(config("llama-3-8b"), megatron), megatron).allocator == 0.0


def test_frozen_products_save_no_input() -> None:
    """The norm before the gate is read by frozen products alone; attention keeps what it reads itself."""
    run = replace(TRAINING, batch=1, sequence=1024, dtype="bf16", attention="flash")
    adapters = replace(run, adapter_rank=1, adapted=("down_proj",))
    whole, frozen = (lower(config("llama-3-8b"), each) for each in (run, adapters))
    saved, every = (dict(zip(w.names, w.saved_bytes, strict=True)) for w in (frozen, whole))
    assert saved["mlp.norm.weight"] == 0.0 < every["mlp.norm.weight"]
    assert saved["mlp.product"] > 0.0  # the adapter's product reads it


def test_logits_are_a_part_of_their_own() -> None:
    """What the softmax of the loss saves in FP32, and two gradients of that size."""
    run = replace(TRAINING, batch=2, sequence=1024, dtype="bf16", attention="flash", loss=True)
    kept = memory(lower(config("llama-3-8b"), run), run)
    assert kept.logits == 3 * 2 * 1024 * 128256 * 4
    assert kept.breakdown[3] == kept.activations + kept.logits


def test_inference_keeps_live_tensors_only() -> None:
    b = Builder("fp32")
    first = b.add("relu", outputs=100, b=1, h=100)
    second = b.add("relu", [first], outputs=300, b=1, h=100)
    third = b.add("relu", [second], outputs=10, b=1, h=100)
    b.add("add", [first, third], outputs=50, b=1, h=100)
    assert memory(b.build(), Run()).activations == 4 * (100 + 300 + 10)  # the first waits for the last


def test_layers_do_not_add_up_in_inference() -> None:
    few, many = (memory(gpt2(layers=layers), Run()) for layers in (2, 40))
    assert few.activations == many.activations
    assert few.weights < many.weights


def test_pipeline_stages_share_layers_and_hold_microbatches() -> None:
    w = gpt2(layers=64, hidden=256, heads=4)
    run = replace(TRAINING, parallelism=Parallelism(pipeline=4, microbatches=16, schedule="1f1b"))
    whole, staged = memory(w, TRAINING), memory(w, run)
    assert 0.2 * whole.weights < staged.weights < 0.6 * whole.weights
    piped = replace(run, parallelism=replace(run.parallelism, schedule="gpipe"))
    assert memory(w, piped).activations > 3 * staged.activations  # 16 microbatches begun, not 4


def test_interleaved_stages_hold_part_of_the_stages_more() -> None:
    w = gpt2(layers=64, hidden=256, heads=4)
    split = Parallelism(pipeline=4, microbatches=16)
    plain, chunks = (
        memory(w, replace(TRAINING, parallelism=replace(split, virtual_pipeline=each))).activations for each in (1, 4)
    )
    assert chunks / plain == pytest.approx(1 + 3 / (4 * 4), rel=0.02)  # Narayanan et al. 2021, section 2.2


def test_the_kv_cache_is_kept() -> None:
    b = Builder("bf16")
    b.begin(10)
    b.add("linear", outputs=64, kv_bytes=1000.0, m=1, n=64, k=64)
    assert memory(b.build(), Run(mode="decode")).kv_cache == 10_000.0
