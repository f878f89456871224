"""Transformers lowered from their configurations: published parameters, and consistent rows in any run."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.config import SEED_DATA
from app.networks.builtin import find_config, names
from app.networks.importers.hf import lower, read
from app.networks.roles import operands
from app.networks.run import Parallelism, Run, is_diffusion
from app.ops import OP_CODE, kinds_of
from app.ops.experts import BY_GROUPS, GELU, PLAIN, SILU
from app.stacks.release import release_of
from app.tables.workload import Workload
from tests.unit.transformers import BUILT_IN, PUBLISHED, config

GPT2, BERT, LLAMA2 = config("gpt2"), config("bert-base"), config("llama-2-7b")


def parameter_count(config: Any) -> float:
    workload = lower(config, Run())
    return float(workload.parameters @ workload.repeats[workload.block])


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_the_published_ones(name: str) -> None:
    config, count = PUBLISHED[name]
    assert parameter_count(config) == count


@pytest.mark.parametrize(("name", "billions"), [("gpt3-xl", 1.3), ("gpt3-2.7b", 2.7)])
def test_gpt3_has_the_parameters_of_its_paper(name: str, billions: float) -> None:
    assert parameter_count(config(name)) == pytest.approx(billions * 1e9, rel=0.03)


def test_built_in_models_have_case_insensitive_aliases() -> None:
    known = {name for name in names() if not is_diffusion(find_config(name) or {})}
    assert known > BUILT_IN.keys() | {"gpt3-xl", "gpt3-2.7b"}
    assert find_config("Meta-Llama/llama-2-7B-hf") == find_config("llama-2-7b") == LLAMA2
    assert find_config("llama-2") is None


RUNS = {
    "inference": Run(batch=4, sequence=64),
    "fused": Run(batch=4, sequence=64, attention="flash", dtype="bf16"),
    "training": Run(mode="training", batch=4, sequence=64),
    "prefill": Run(mode="prefill", batch=4, sequence=64, dtype="fp8", attention="flash"),
    "decode": Run(mode="decode", batch=4, sequence=64, attention="flash"),
    "eager decode": Run(mode="decode", batch=4, sequence=64),
    "split": Run(batch=4, sequence=64, parallelism=Parallelism(tensor=2, sequence=True)),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_model_lowers_in_every_run(name: str, run: Run) -> None:
    config = PUBLISHED[name][0]
    architecture = read(config)
    if not architecture.generates and run.mode in ("prefill", "decode"):
        return
    of_images = architecture.stacks[0].embedding.patches  # with a class token: an odd number of tokens
    workload = lower(config, replace(run, parallelism=Parallelism()) if of_images else run)
    for kind in kinds_of(workload.ops):
        for dim in (dim for dim in kind.op.dims if not dim.choices):
            for column in dim.columns:
                values = kind.table.column(column)
                given = values[~np.isnan(values)]
                assert ((given >= dim.least) & (given <= dim.most)).all(), (kind.op.name, column)
                assert not dim.whole or (given == np.floor(given)).all(), (kind.op.name, column)
        assert not [broken for broken in kind.op.broken(kind.table) if broken.rows.any()]
    assert (workload.edges[0] < workload.edges[1]).all()
    assert (workload.output_bytes >= 0).all()
    assert (workload.saved_bytes >= 0).all()
    assert (workload.kv_bytes.sum() > 0) == (run.mode in ("prefill", "decode"))
    if run.mode == "inference" and run.parallelism.tensor == 1:
        held = workload.parameters @ workload.repeats[workload.block]
        assert held == PUBLISHED[name][1]


def of(workload: Workload, name: str, column: str) -> float:
    return float(workload.ops.column(column)[workload.names.index(name)])


def test_layers_are_one_block() -> None:
    workload = lower(LLAMA2, Run(batch=2, sequence=128))
    assert workload.repeats.tolist() == [1.0, 32.0, 1.0]
    assert (np.diff(workload.block) >= 0).all()
    assert (workload.edges[0] < workload.edges[1]).all()
    assert all(array.flags.c_contiguous for array in (workload.ops.kind, workload.ops.dtype, workload.ops.dims))


@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize("config", [GPT2, BERT, LLAMA2])
def test_attention_is_products_or_one_kernel(config: dict[str, Any], attention: Any) -> None:
    workload = lower(config, Run(batch=2, sequence=256, attention=attention))
    eager = attention == "eager"
    assert ("attention.softmax" in workload.names) is eager
    assert ("attention" in workload.names) is not eager


def test_decode_reads_the_cache() -> None:
    run = Run(mode="decode", batch=8, sequence=4096, dtype="bf16", attention="flash")
    workload = lower(LLAMA2, run)
    assert of(workload, "attention.query", "m") == 8
    assert of(workload, "attention", "context_length") == 4096
    kept = float(workload.kv_bytes @ workload.repeats[workload.block])
    assert kept == 2 * 32 * 8 * 4096 * 4096 * 2  # keys and values, layers, sequences, tokens, features, bytes


def test_prefill_computes_logits_of_the_last_token_only() -> None:
    run = Run(mode="prefill", batch=4, sequence=1024, attention="flash", dtype="bf16")
    assert of(lower(LLAMA2, run), "words.logits", "m") == 4
    assert of(lower(LLAMA2, Run(batch=4, sequence=1024)), "words.logits", "m") == 4096


def test_serving_stacks_and_megatron_pad_the_vocabulary() -> None:
    odd = LLAMA2 | {"vocab_size": 49155}
    for run, columns in (
        (Run(dtype="bf16"), 49155),
        (Run(mode="decode", dtype="bf16", release=release_of("vllm", "decode")), 49160),
        (Run(mode="training", dtype="bf16", release=release_of("megatron", "training")), 49160),
    ):
        assert of(lower(odd, run), "words.logits", "n") == columns


@pytest.mark.parametrize(
    ("parallelism", "sent", "held"),
    [
        (Parallelism(data=8, expert=8), 16 * 8, 256 / 8),
        (Parallelism(data=8, tensor=8, expert=64, nodes=8), 16 * 8 / 8, 256 / 64),
        (Parallelism(data=8, tensor=2, expert=8, nodes=2), 16 * 8 / 2, 256 / 8),
    ],
)
def test_a_device_holds_experts_of_its_own(parallelism: Parallelism, sent: float, held: float) -> None:
    """The devices of a tensor-parallel group hold different experts, and each sends its share of the group's tokens."""
    run = Run("decode", 16 * 8, 512, dtype="bf16", attention="flash", parallelism=parallelism)
    workload = lower(config("deepseek-v3"), run)
    assert of(workload, "all_to_all", "message_bytes") == sent * 7168 * 2  # pairs, features, bytes
    assert of(workload, "all_to_all", "nodes") == parallelism.expert / 8
    assert of(workload, "all_to_all", "spread") == parallelism.expert
    assert of(workload, "experts", "tokens") == 16 * parallelism.expert / parallelism.tensor
    assert workload.parameters[workload.names.index("experts")] == held * 3 * 7168 * 2048


@pytest.mark.parametrize(
    ("name", "change", "gate", "router"),
    [
        ("mixtral-8x7b", {}, SILU, PLAIN),
        ("mixtral-8x7b", {"hidden_act": "gelu"}, GELU, PLAIN),
        ("deepseek-v3", {}, SILU, BY_GROUPS),
        ("deepseek-v3", {"n_group": 1, "topk_group": 1}, SILU, PLAIN),
    ],
)
def test_experts_keep_the_gate_and_router_of_the_configuration(
    name: str, change: dict[str, Any], gate: float, router: float
) -> None:
    workload = lower(config(name) | change, Run("decode", 16, 512, dtype="fp8", attention="flash"))
    assert (of(workload, "experts", "gate"), of(workload, "experts", "router")) == (gate, router)


def test_experts_spread_over_tensor_ranks_only_need_no_all_to_all() -> None:
    run = Run("decode", 16, 512, dtype="bf16", attention="flash", parallelism=Parallelism(tensor=8, expert=8))
    assert "all_to_all" not in lower(config("mixtral-8x7b"), run).names


def test_t5_adds_a_relative_bias_with_strided_heads() -> None:
    ops = lower(config("t5-base"), Run(batch=4, sequence=64)).ops
    strided = ops.kind == OP_CODE["add_strided"]  # encoder and decoder
    for column, value in (("b", 4 * 12), ("h", 64 * 64), ("stride", 12)):
        np.testing.assert_array_equal(ops.column(column)[strided], [value] * 2)


def test_decode_keeps_the_encoder_in_memory() -> None:
    workload = lower(config("t5-base"), Run("decode", 1, 64))
    assert workload.parameters @ workload.repeats[workload.block] == BUILT_IN["t5-base"]
    assert not any(name.startswith("cross.key") for name in workload.names)


@pytest.mark.parametrize("sequence", [False, True])
def test_tensor_ranks_together_hold_all_weights(sequence: bool) -> None:
    alone = lower(LLAMA2, Run(batch=4, sequence=512))
    split = lower(LLAMA2, Run(batch=4, sequence=512, parallelism=Parallelism(tensor=4, sequence=sequence)))
    linears = [
        float((w.parameters * (w.ops.kind == alone.ops.kind[alone.names.index("mlp.up")])) @ w.repeats[w.block])
        for w in (alone, split)
    ]
    assert linears[0] == 4 * linears[1]
    sums = "reduce_scatter" if sequence else "all_reduce"
    assert split.names.count(sums) == 3  # words, attention, mlp
    assert split.names.count("all_gather") == (4 if sequence else 1)  # before both parts and the head; the logits


def test_tied_embeddings_are_on_the_first_and_the_last_stage() -> None:
    one, two = (lower(GPT2, Run(sequence=8, parallelism=Parallelism(pipeline=stages))) for stages in (1, 2))
    assert two.parameters.sum() - one.parameters.sum() == 50257 * 768


def test_narrow_dtypes_apply_to_linear_layers() -> None:
    workload = lower(LLAMA2, Run(batch=1, sequence=64, dtype="fp8", attention="flash"))
    widths = dict(zip(workload.names, workload.weight_bytes / np.maximum(workload.parameters, 1.0), strict=True))
    assert widths["mlp.up"] == 1.0
    assert widths["words.logits"] == widths["words"] == widths["mlp.norm"] == 2.0


def test_training_applies_dropout_and_saves_its_mask() -> None:
    forward, trained = (lower(GPT2, Run(mode=mode, batch=2, sequence=256)) for mode in ("inference", "training"))
    assert "dropout" not in forward.names
    scores = trained.names.index("dropout", trained.names.index("attention.softmax"))
    elements = 2 * GPT2["n_head"] * 256.0**2
    assert trained.output_bytes[scores] == 4 * elements and trained.saved_bytes[scores] >= elements


@pytest.mark.parametrize(("batch", "copies"), [(1, 0), (2, 3)])
def test_batched_products_of_sequences_copy_their_operands(batch: int, copies: int) -> None:
    for name in ("gpt2", "t5-base", "vit-b-16", "llama-2-7b"):
        names = lower(config(name), Run(batch=batch, sequence=64)).names
        assert len({name for name in names if name.endswith("_copy")}) == copies


def test_repeated_keys_need_no_further_copy() -> None:
    names = lower(config("llama-3-8b"), Run(batch=2, sequence=64)).names
    assert [name for name in names if name.endswith(("_copy", "_repeat"))] == [
        *("attention.key_repeat", "attention.value_repeat", "attention.query_copy")
    ]


@pytest.mark.parametrize("name", ["gpt2", "opt-1.3b", "llama-2-7b"])
def test_eager_decode_copies_only_the_cache(name: str) -> None:
    names = lower(config(name), Run("decode", batch=2, sequence=64)).names
    assert [name for name in names if name.endswith(("_copy", "_cache"))] == [
        *("attention.key_cache", "attention.value_cache")
    ]


@pytest.mark.parametrize(
    ("name", "mode", "op"),
    [
        ("opt-1.3b", "inference", "add"),
        ("llama-2-7b", "training", "add"),
        ("llama-2-7b", "decode", "add_scalar"),
        ("bert-base", "inference", "add_scalar"),
        ("gpt2", "inference", "copy"),
    ],
)
def test_attention_masks_are_read_for_every_head(name: str, mode: Any, op: str) -> None:
    workload = lower(config(name), Run(mode, batch=2, sequence=64))
    assert workload.ops.kind[workload.names.index("attention.mask")] == OP_CODE[op]


def test_a_mask_has_no_gradient() -> None:
    """OPT's maximum stands between its mask and its softmax: only residuals and what is read thrice add up."""
    opt = lower(config("opt-1.3b"), Run("training", batch=2, sequence=64))
    read = operands(opt).from_outside
    assert [name for name, outside in zip(opt.names, read, strict=True) if outside and "attention" in name] == [
        "attention.norm"
    ]


def test_a_name_means_one_network() -> None:
    files = sorted((SEED_DATA / "models").glob("*.json"))
    known = [name.lower() for file in files for name in (file.stem, *json.loads(file.read_text("utf-8"))["aliases"])]
    assert sorted(set(known)) == sorted(known)
    for one, other in (
        ("llama-3.1-8b", "llama-3-8b"),
        ("Llama-3.3-70b", "llama-3.1-70b"),
        ("deepseek-r1", "deepseek-v3"),
    ):
        assert find_config(one) is find_config(other) is not None
