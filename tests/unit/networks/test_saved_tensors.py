"""Saved tensors of training, against the count of Korthikanti et al. (2022), section 4.1."""

from dataclasses import replace

import numpy as np

from app.networks.importers.hf import lower
from app.networks.run import Attention, Parallelism, Run
from app.networks.training_pass import training
from app.stacks.release import release_of
from app.steps.stages import memory
from app.tables.workload import BACKWARD
from tests.unit.transformers import config

SEQUENCE, BATCH, WIDTH, HEADS = 512, 4, 1024, 16


def layer_bytes(attention: Attention, tensor: int = 1) -> float:
    """Of one layer of BERT-large, whose GELU is one kernel, in FP16."""
    parallelism = Parallelism(tensor=tensor)
    run = Run("training", BATCH, SEQUENCE, dtype="fp16", attention=attention, parallelism=parallelism)
    workload = lower(config("bert-large"), run)
    return float(workload.per_block(workload.saved_bytes)[1])


def test_a_layer_saves_34_bytes_per_feature_and_5_per_score() -> None:
    assert layer_bytes("eager") == SEQUENCE * BATCH * WIDTH * (34 + 5 * HEADS * SEQUENCE / WIDTH)


def test_fused_attention_saves_no_scores() -> None:
    assert layer_bytes("flash") == SEQUENCE * BATCH * WIDTH * 34


def test_tensor_parallel_ranks_save_whole_tensors_between_the_parallel_regions() -> None:
    kept = 10 + 24 / 4 + 5 * HEADS * SEQUENCE / WIDTH / 4
    assert layer_bytes("eager", tensor=4) == SEQUENCE * BATCH * WIDTH * kept


def _layer_of(name: str, split: int = 1, dtype: str = "bf16") -> list[tuple[str, float]]:
    """Names and saved bytes of the rows of a layer of Llama 3 8B, 1,024 tokens."""
    parallelism = Parallelism(tensor=split, sequence=split > 1)
    release = release_of(name, "training")
    run = Run("training", 1, 1024, dtype=dtype, attention="flash", parallelism=parallelism, release=release)
    w = lower(config("llama-3-8b"), run)
    return [(w.names[k], float(w.saved_bytes[k])) for k in np.flatnonzero(w.block == 1)]


def test_gathered_sequences_are_saved_as_a_share() -> None:
    """Korthikanti et al. (2022), section 4.2.2: all that a layer saves is split; PyTorch keeps what it gathered."""
    one, four = (sum(saved for _, saved in _layer_of("megatron", split)) for split in (1, 4))
    assert four == one / 4
    assert dict(_layer_of("fsdp", 4))["all_gather"] == 1024 * 4096 * 2


def test_an_operand_in_few_bits_is_saved_once_and_a_gate_keeps_what_it_multiplies() -> None:
    saved = dict(_layer_of("megatron", dtype="fp8"))
    assert saved["mlp.gate_up.quantised"] == 1024 * 4096
    assert saved["mlp.down.quantised"] == 1024 * 14336
    assert saved["mlp.gate_up"] == 1024 * 2 * 14336 * 2
    assert saved["mlp.norm"] == saved["mlp.product"] == 0.0


def test_a_fused_loss_keeps_logits_and_their_gradients() -> None:
    """2 + 2 bytes of a logit; in FP32 the softmax's output and two gradients."""
    for name, each in (("megatron-bridge-26.02", 4), ("megatron", 12), ("llm-foundry", 4), ("pytorch", 12)):
        run = Run("training", 1, 1024, dtype="bf16", attention="flash", loss=True, release=release_of(name, "training"))
        assert memory(lower(config("llama-3-8b"), run), run).logits == 1024 * 128256 * each


def test_modules_that_are_recomputed_are_not_saved_and_run_again() -> None:
    base = Run("training", 1, 1024, dtype="bf16", attention="flash", release=release_of("megatron", "training"))
    w = lower(config("qwen3-30b-a3b"), base)
    every = memory(w, base).activations
    for modules, names in (
        (("layernorm",), ("attention.norm", "mlp.norm")),
        (("moe_act",), ("grouped_experts.activation",)),
        (("layernorm", "moe_act"), ("attention.norm", "mlp.norm", "grouped_experts.activation")),
    ):
        run = replace(base, recompute=modules)
        rows = np.isin(w.names, names)
        dropped = w.per_block(w.saved_bytes * rows)
        assert memory(w, run).activations == every - float(dropped @ w.repeats) + dropped.max()
        trained = training(w, run)
        again = [trained.names[k] for k in np.flatnonzero((trained.phase == BACKWARD) & (trained.block < 3 * w.blocks))]
        assert set(names) <= set(again)
        assert len(trained) == len(training(w, base)) + rows.sum()
