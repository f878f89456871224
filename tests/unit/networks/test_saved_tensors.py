"""Saved tensors of training, against the count of Korthikanti et al. (2022), section 4.1."""

from app.networks.importers.hf import lower
from app.networks.run import Attention, Parallelism, Run
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
