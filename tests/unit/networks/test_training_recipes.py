"""Training at scale: adapters, experts, the loss, quantisation, and collectives beside products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.engine.catalogue import load_seed_specs
from app.networks.build import ADAPTER
from app.networks.exchanges import with_gradient_exchange
from app.networks.fuse_pass import fused
from app.networks.importers.hf import lower
from app.networks.roles import EXPERTS, learning, of_experts
from app.networks.run import Parallelism, Run
from app.networks.training_pass import training, with_quantised_operands
from app.ops import OP_CODE, kinds_of, work_of
from app.stacks.release import plain_release, release_of
from app.steps.corrections import slowest_of
from app.steps.stages import memory
from app.steps.timing import corrected_launches
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPES
from app.tables.workload import BACKWARD, UPDATE, Workload
from tests.unit.transformers import config

MEGATRON = release_of("megatron", "training")
RUN = Run(mode="training", batch=4, sequence=1024, dtype="bf16", attention="flash")
_SCORES = ("attention.scores", "attention.scale", "attention.mask", "attention.softmax")
LLAMA, MIXTURE = config("llama-3-8b"), config("qwen3-30b-a3b")


def flops(w: Workload, phase: int) -> float:
    return float((work_of(w.ops, kinds_of(w.ops)).flops * w.runs)[w.phase == phase].sum())


def test_frozen_weights_have_neither_gradients_nor_states_nor_an_update() -> None:
    run = replace(RUN, adapter_rank=16)
    whole, frozen = training(lower(LLAMA, RUN), RUN), training(lower(LLAMA, run), run)
    adapters = lower(LLAMA, run)
    held = float(((adapters.parameters * learning(adapters, run)) * adapters.repeats[adapters.block]).sum())
    # 32 layers: queries and outputs of 4,096 features, keys and values of 1,024.
    assert held == 32 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024))
    assert flops(frozen, BACKWARD) == pytest.approx(0.5 * flops(whole, BACKWARD), rel=0.1)
    some, all_ = memory(frozen, run), memory(whole, RUN)
    assert some.gradients == pytest.approx(2 * held)
    assert some.optimizer == pytest.approx(12 * held)
    assert some.weights == pytest.approx(all_.weights, rel=0.01)
    moved = frozen.ops.column("bytes")[frozen.phase == UPDATE] * frozen.runs[frozen.phase == UPDATE]
    assert moved.sum() == pytest.approx(28 * held)


def test_pytorch_norms_in_fp32_by_parts_unless_compiled() -> None:
    """HF's and torch's RMS norm: widened, squared, averaged, rooted, scaled, narrowed and weighted."""
    parts = ["widened", "pow", "mean", "epsilon", "rsqrt", "scale", "narrowed", "weight"]
    w = lower(LLAMA, RUN)
    norms = [k for k, name in enumerate(w.names) if name.startswith("mlp.norm.")]
    assert [w.names[k].removeprefix("mlp.norm.") for k in norms] == parts
    assert [DTYPES[w.ops.dtype[k]] for k in norms] == [*["fp32"] * 6, "bf16", "bf16"]
    for run in (replace(RUN, fused=True), replace(RUN, release=MEGATRON), replace(RUN, mode="inference")):
        assert "mlp.norm.pow" not in lower(LLAMA, run).names


def test_torchtitan_rotates_complex_numbers_by_kernels_that_no_compiler_fuses() -> None:
    run = replace(RUN, release=release_of("torchtitan", "training"), fused=True)
    w = fused(lower(LLAMA, run))
    (row,) = (k for k, name in enumerate(w.names) if name == "attention.rotary")
    # Queries and keys of 40 heads of 128: 2 and 4 bytes, 4 and 4, 4 and 2.
    assert w.ops.column("bytes")[row] == 4 * 1024 * 40 * 128 * 20


def test_units_are_copied_and_gradients_reduced_in_fp32() -> None:
    split = Parallelism(data=8, zero=3)
    usual, titan = (
        replace(RUN, parallelism=split, release=release_of(name, "training")) for name in ("pytorch-2.0", "torchtitan")
    )
    plain, copied = (with_gradient_exchange(training(lower(LLAMA, run), run), run) for run in (usual, titan))

    def reduced(w: Workload) -> float:
        sent = w.ops.kind == OP_CODE["reduce_scatter"]
        return float((w.ops.column("message_bytes") * w.ops.column("count") * w.repeats[w.block])[sent].sum())

    assert reduced(copied) == pytest.approx(2 * reduced(plain))
    held = float((plain.weight_bytes * plain.repeats[plain.block]).sum())
    gathered = copied.ops.kind == OP_CODE["all_gather"]
    behind = np.flatnonzero(gathered) + 1
    assert (copied.ops.kind[behind] == OP_CODE["memory"]).all()
    moved = (copied.ops.column("bytes") * copied.repeats[copied.block])[behind].sum()
    assert moved == pytest.approx(2 * 2 * held)


def test_adapters_are_beside_the_modules_that_are_named() -> None:
    """Rank 8 beside queries, values and down projections of 32 layers."""
    run = replace(RUN, adapter_rank=8, adapted=("q_proj", "v_proj", "down_proj"))
    w = lower(LLAMA, run)
    held = float(((w.parameters * learning(w, run)) * w.repeats[w.block]).sum())
    assert held == 32 * 8 * ((4096 + 4096) + (4096 + 1024) + (14336 + 4096))


def test_recomputation_per_operator_repeats_half_of_the_products() -> None:
    """Keys, outputs and up projections of seven products of Llama's layers, but not attention."""
    run = replace(RUN, recompute=("selective_op",))
    plain, again = training(lower(LLAMA, RUN), RUN), training(lower(LLAMA, run), run)
    added = (flops(again, BACKWARD) - flops(plain, BACKWARD)) / (4 * 1024 * 32)
    assert added == pytest.approx(2 * 4096 * (1024 + 4096 + 14336), rel=0.01)


def test_adapters_alone_exchange_gradients() -> None:
    run = replace(RUN, adapter_rank=16, parallelism=Parallelism(data=4))
    w = with_gradient_exchange(training(lower(LLAMA, run), run), run)
    sent = w.ops.kind == OP_CODE["all_reduce"]
    moved = (w.ops.column("message_bytes") * w.runs)[sent].sum()
    adapters = np.array([name.startswith(ADAPTER) for name in w.names])
    assert moved == pytest.approx(2 * (w.parameters * w.repeats[w.block])[adapters & (w.phase == 0)].sum())


def test_experts_are_a_product_each_and_exchange_gradients_with_their_copies() -> None:
    run = replace(RUN, batch=32, parallelism=Parallelism(data=32, expert=8, zero=1))
    forward = lower(MIXTURE, run)
    experts = of_experts(forward)
    names = [name for name, own in zip(forward.names, experts, strict=True) if own]
    assert names == [f"{EXPERTS}.{part}" for part in ("permute", "up", "up", "activation", "down", "unpermute")]
    up = forward.names.index(f"{EXPERTS}.up")
    figures = {name: float(forward.ops.column(name)[up]) for name in ("m", "n", "k", "count")}
    assert figures == {"m": 1024 * 8 * 8 / 128, "n": 768, "k": 2048, "count": 16}  # 8 ranks' tokens, 128 / 8 experts
    w = with_gradient_exchange(training(forward, run), run)
    sent = w.ops.kind == OP_CODE["reduce_scatter"]
    by_group = {
        devices: (w.ops.column("message_bytes") * w.runs)[sent & (w.ops.column("devices") == devices)].sum()
        for devices in (4, 32)
    }
    held = 2 * (forward.parameters * forward.repeats[forward.block])
    assert by_group[4] == pytest.approx(held[experts].sum())
    assert by_group[32] == pytest.approx(held[~experts].sum())
    assert memory(w, run).optimizer == pytest.approx(6 * (held[experts].sum() / 4 + held[~experts].sum() / 32))


def test_megatron_sends_a_token_to_a_machine_once_and_the_framework_per_expert() -> None:
    spread = replace(RUN, parallelism=Parallelism(data=16, expert=16, nodes=2))
    for release, copies in ((MEGATRON, 8.0), (plain_release(), 1.0)):
        w = training(lower(MIXTURE, replace(spread, release=release)), spread)
        exchanges = w.ops.kind == OP_CODE["all_to_all"]
        assert len(np.unique(w.phase[exchanges])) == 2
        assert w.ops.column("copies")[exchanges].tolist() == [copies] * exchanges.sum()


@pytest.mark.parametrize(("nodes", "machines"), [(2, 2 * (1 - 0.5**4)), (8, 4), (16, 8)])
def test_groups_of_experts_bound_the_machines_that_a_token_reaches(nodes: int, machines: float) -> None:
    """DeepSeek-V3 chooses 4 of 8 groups first; a group is on two machines of 16, and four groups on one of two."""
    run = replace(RUN, release=MEGATRON, batch=128, parallelism=Parallelism(data=128, expert=128, nodes=nodes))
    for name, most in (("deepseek-v3", machines), ("qwen3-30b-a3b", nodes)):
        w = lower(config(name), run)
        exchanges = w.ops.kind == OP_CODE["all_to_all"]
        assert w.ops.column("reach")[exchanges].tolist() == pytest.approx([most] * exchanges.sum())


def test_the_bias_of_experts_is_weighed_and_added_in_fp32() -> None:
    """Four experts of each of 4,096 tokens: 28 bytes an element forward and 40 backward."""
    run = replace(RUN, release=MEGATRON)
    w = training(lower(config("gpt-oss-120b"), run), run)
    biases = np.array([name == f"{EXPERTS}.bias" for name in w.names])
    moved = (w.ops.column("bytes") * w.runs)[biases].sum()
    assert moved == pytest.approx(36 * 4 * 4096 * 2880 * (28 + 40))
    assert not any(name == f"{EXPERTS}.bias" for name in lower(MIXTURE, run).names)


def test_the_clamps_of_a_gate_are_kernels_of_their_own() -> None:
    """Four experts of each of 4,096 tokens: 16 bytes a feature forward and 30 backward."""
    run = replace(RUN, release=MEGATRON)
    w = training(lower(config("gpt-oss-120b"), run), run)
    clamps = np.array([name == f"{EXPERTS}.clamp" for name in w.names])
    moved = (w.ops.column("bytes") * w.runs)[clamps].sum()
    assert moved == pytest.approx(36 * 4 * 4096 * 2880 * (16 + 30))
    assert not any(name == f"{EXPERTS}.clamp" for name in lower(MIXTURE, run).names)


def test_the_loss_reads_and_writes_the_logits_in_fp32() -> None:
    plain, with_loss = lower(LLAMA, RUN), lower(LLAMA, replace(RUN, loss=True))
    assert [*plain.names, "loss.copy", "loss.softmax"] == [*with_loss.names]
    copied = float(with_loss.ops.column("bytes")[-2])
    assert copied == 4 * 1024 * 128256 * (2 + 4)


@pytest.mark.parametrize(
    ("dtype", "microscaled", "each"), [("fp8", False, 6), ("fp8", True, 4.0625), ("nvfp4", False, 7.125)]
)
def test_training_quantises_both_operands_once(dtype: str, microscaled: bool, each: float) -> None:
    run = replace(RUN, dtype=dtype, microscaled=microscaled, release=MEGATRON)
    w = training(lower(LLAMA, run), run)
    rows = [k for k, name in enumerate(w.names) if name == "mlp.down.quantised" and w.phase[k] != UPDATE]
    moved = sum(float(w.ops.column("bytes")[k]) for k in rows if w.ops.kind[k] == OP_CODE["memory"])
    assert moved == pytest.approx(4 * 1024 * (14336 + 4096) * each)
    assert "attention.qkv" in w.names
    narrow = (w.ops.kind == OP_CODE["linear"]) & (w.ops.dtype == w.ops.dtype[w.names.index("attention.qkv")])
    assert (w.ops.column("m")[narrow] <= w.ops.column("n")[narrow]).all()
    assert not any(name.endswith("quantised") for name in lower(LLAMA, RUN).names)
    assert with_quantised_operands(lower(LLAMA, RUN).ops) is not None


def test_synchronous_training_waits_for_the_slowest_device() -> None:
    assert slowest_of(1) == 1.0
    # The expected maximum of 8 standard normal numbers is 1.4236.
    assert slowest_of(8) == pytest.approx(1.0 + 0.02 * 1.4236, rel=1e-3)
    assert slowest_of(8) < slowest_of(512) < slowest_of(10752) < 1.08
    run = replace(RUN, parallelism=Parallelism(data=8))
    w = with_gradient_exchange(training(lower(LLAMA, run), run), run)
    times, collective = np.ones((len(w), 2)), w.ops.kind == OP_CODE["all_reduce"]
    gpus = GpuTable.from_specs([spec for spec in load_seed_specs() if spec.id.startswith("h100-sxm5")][:1] * 2)
    waited, _ = corrected_launches(times, w, run, gpus)
    assert (waited[collective] == 1.0).all()
    assert waited[~collective] == pytest.approx(slowest_of(8))
    assert corrected_launches(times, w, RUN, gpus)[0] is times


def test_megatron_sends_larger_buckets_and_gathers_behind_the_next_forward() -> None:
    run = replace(RUN, batch=8, release=MEGATRON, parallelism=Parallelism(data=4, zero=1))
    plain, megatron = (
        with_gradient_exchange(training(lower(LLAMA, each), each), each)
        for each in (replace(run, release=plain_release()), run)
    )
    for w, bucket, gathers in ((plain, 25 * 2**20, 34.0), (megatron, 2 * 40e6, 3.0)):
        sent, gathered = (w.ops.kind == OP_CODE[op] for op in ("reduce_scatter", "all_gather"))
        assert (w.ops.column("message_bytes")[sent] == bucket).all()
        assert w.runs[gathered].sum() == pytest.approx(gathers)  # of 32 layers, the embedding and the head
    total = [
        (w.ops.column("message_bytes") * w.runs)[w.ops.kind == OP_CODE["reduce_scatter"]].sum()
        for w in (plain, megatron)
    ]
    assert total[0] == pytest.approx(total[1])


def test_selective_recomputation_drops_and_repeats_the_scores() -> None:
    eager = replace(RUN, attention="eager")
    again = replace(eager, recompute=("core_attn",))
    plain, repeated = (training(lower(LLAMA, run), run) for run in (eager, again))
    added = [
        name
        for name, phase, source, k in zip(
            repeated.names, repeated.phase, repeated.source, range(len(repeated)), strict=True
        )
        if phase == BACKWARD and repeated.ops.kind[k] == repeated.ops.kind[source] and name in _SCORES
    ]
    assert set(_SCORES) <= set(added)
    assert len(repeated) == len(plain) + len(_SCORES)
    kept, dropped = memory(plain, eager).activations, memory(repeated, again).activations
    scores = 4 * 32 * 1024 * 1024 * 2  # bytes of a matrix of scores
    assert kept - dropped == pytest.approx(31 * scores, rel=0.01)  # the softmax's output, but for one layer
    fused = replace(RUN, recompute=("core_attn",))
    assert len(training(lower(LLAMA, fused), fused)) == len(training(lower(LLAMA, RUN), RUN))


def test_the_first_flash_attention_takes_longer() -> None:
    second, first = (lower(LLAMA, replace(RUN, release=release_of(name))) for name in ("pytorch-2.2", "pytorch-2.1"))
    row = second.names.index("attention")
    assert first.ops.column("count")[row] == 1.8 * second.ops.column("count")[row]


def test_collectives_beside_products_take_the_time_of_a_shard() -> None:
    split = Parallelism(tensor=4, sequence=True)
    plain, beside = (
        lower(LLAMA, replace(RUN, parallelism=replace(split, tensor_overlap=overlap))) for overlap in (False, True)
    )
    sent = np.isin(plain.ops.kind, [OP_CODE["all_gather"], OP_CODE["reduce_scatter"]])
    assert beside.ops.column("count")[sent] == pytest.approx(plain.ops.column("count")[sent] / 4)
    assert beside.ops.column("count")[~sent] == pytest.approx(plain.ops.column("count")[~sent])
