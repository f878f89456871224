"""Transformers lowered as serving stacks run them."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from app.networks.importers.hf import lower, read
from app.networks.run import Parallelism, Run
from app.networks.transformers.architecture import Attention
from app.networks.transformers.lowering import write
from app.ops import OP_CODE, OPS
from app.ops.attention import HYBRIDS
from app.ops.collective import CUSTOM, LOW_LATENCY, NORMAL
from app.stacks.facts import NO_RULES
from app.stacks.registry import code_of, trained_stacks
from app.stacks.release import release_of
from app.tables.workload import Workload
from tests.unit.transformers import PUBLISHED, config

DECODE = Run(mode="decode", batch=8, sequence=1024, dtype="bf16", attention="flash")
VLLM, SGLANG = (release_of(stack, "decode") for stack in ("vllm", "sglang"))
LLAMA = config("llama-2-7b")
LATENT = next(config for config, _ in PUBLISHED.values() if config["model_type"] == "deepseek_v2")
GENERATING = [name for name, (config, _) in PUBLISHED.items() if read(config).generates]


def kernels(rows: Workload, block: int = 1) -> list[tuple[str, str]]:
    """Operator and name of each row of a block."""
    return [
        (OPS[kind].name, name)
        for kind, name, of in zip(rows.ops.kind, rows.names, rows.block, strict=True)
        if of == block
    ]


def weights(rows: Workload) -> float:
    return float(rows.parameters @ rows.repeats[rows.block])


@pytest.mark.parametrize(("stack", "distinguished"), [("sglang", True), ("vllm", False)])
def test_sglang_chooses_the_kernels_of_attention_by_the_kind_of_a_hybrid_model(stack: str, distinguished: bool) -> None:
    kinds = {"qwen3_next": HYBRIDS.index("gdn"), "nemotron_h": HYBRIDS.index("mamba2")}
    models = {config["model_type"]: config for config, _ in PUBLISHED.values()} | {"llama": LLAMA}
    for name in ("llama", *kinds):
        ops = lower(models[name], replace(DECODE, release=release_of(stack, "decode"))).ops
        hybrid = ops.column("hybrid")[ops.kind == OP_CODE["attention_decode"]]
        np.testing.assert_array_equal(hybrid, kinds.get(name, np.nan) if distinguished else np.nan)


def test_a_layer_of_vllm_merges_products_and_fuses_what_is_between() -> None:
    layer = [
        ("add_norm", "attention.norm"),
        ("linear", "attention.qkv"),
        ("rotary_cache", "attention.rotary_cache"),
        ("attention_decode", "attention"),
        ("linear", "attention.output"),
        ("add_norm", "mlp.norm"),
        ("linear", "mlp.gate_up"),
        ("gated_activation", "mlp.product"),
        ("linear", "mlp.down"),
    ]
    assert kernels(lower(LLAMA, replace(DECODE, release=VLLM))) == layer
    assert len(kernels(lower(LLAMA, DECODE))) > len(layer)


def test_latent_attention_merges_its_first_products() -> None:
    compressed = LATENT | {"q_lora_rank": 1536}
    names = [name for _, name in kernels(lower(compressed, replace(DECODE, release=SGLANG)))]
    assert "attention.query_key_down" in names
    assert not {"attention.query_down", "attention.key_down"} & set(names)


def test_sums_are_the_stacks_own_and_hold_the_norm_in_tensorrt_llm() -> None:
    split = replace(DECODE, parallelism=Parallelism(tensor=2))
    lowered = {stack: lower(LLAMA, replace(split, release=release_of(stack, "decode"))) for stack in trained_stacks()}
    sums = lowered["trtllm"].ops.kind == OP_CODE["all_reduce"]
    assert (lowered["trtllm"].ops.column("implementation")[sums] == CUSTOM).sum() >= 2
    per_stack = {stack: Counter(op for op, _ in kernels(rows))["add_norm"] for stack, rows in lowered.items()}
    assert per_stack == {"vllm": 2, "sglang": 2, "trtllm": 0}


@pytest.mark.parametrize("stack", trained_stacks())
@pytest.mark.parametrize("name", GENERATING)
def test_no_weight_is_lost(name: str, stack: str) -> None:
    config = PUBLISHED[name][0]
    for run in (DECODE, replace(DECODE, mode="prefill")):
        assert weights(lower(config, replace(run, release=release_of(stack, "decode")))) == weights(lower(config, run))


def test_merged_products_hold_no_values_that_are_keys() -> None:
    described = read(LLAMA)
    (stack,) = described.stacks
    (layer, repeats), *_ = stack.layers
    assert isinstance(layer.attention, Attention)
    shared = replace(layer, attention=replace(layer.attention, keys_as_values=True))
    described = replace(described, stacks=(replace(stack, layers=((shared, repeats),)),))
    assert weights(write(described, replace(DECODE, release=VLLM))) == weights(write(described, DECODE))


def test_rows_have_the_column_of_their_stack() -> None:
    rows = lower(LLAMA, replace(DECODE, release=SGLANG))
    assert (rows.ops.column("stack") == code_of("sglang")).all()
    assert np.isnan(lower(LLAMA, DECODE).ops.column("stack")).all()


@pytest.mark.parametrize(("dtype", "timed_as"), [("fp8", "vllm"), ("nvfp4", "vllm"), ("bf16", "trtllm")])
def test_narrow_products_of_tensorrt_llm_are_timed_as_vllms(dtype: str, timed_as: str) -> None:
    rows = lower(LLAMA, replace(DECODE, release=release_of("trtllm", "decode"), dtype=dtype))
    assert rows.ops.column("stack")[rows.names.index("mlp.down")] == code_of(timed_as)


def test_the_cache_has_its_own_format() -> None:
    plain, narrow = (lower(LLAMA, replace(DECODE, release=VLLM, kv_dtype=dtype)) for dtype in (None, "fp8"))
    assert narrow.kv_bytes.sum() == 0.5 * plain.kv_bytes.sum()


def test_other_modes_and_eager_attention_have_no_rules() -> None:
    serving = replace(DECODE, release=VLLM)
    assert serving.rules.merges_qkv
    for run in (
        replace(DECODE, mode="inference", release=release_of("vllm", "inference")),
        replace(serving, attention="eager"),
        DECODE,
    ):
        assert run.rules == NO_RULES


MIXTURE = next(config for config, _ in PUBLISHED.values() if config["model_type"] == "deepseek_v3")
WIDE = Parallelism(data=8, expert=8)


def rows_named(name: str, run: Run) -> list[dict[str, float]]:
    """Columns of the rows of one operator."""
    rows = lower(MIXTURE, run)
    here = np.flatnonzero(rows.ops.kind == OP_CODE[name])
    return [{field: float(rows.ops.column(field)[row]) for field in OPS[OP_CODE[name]].fields} for row in here]


def test_replicas_of_attention_exchange_tokens_by_expert() -> None:
    run = replace(DECODE, batch=64, release=SGLANG, parallelism=WIDE)
    (sent,) = rows_named("expert_dispatch", run)
    (back,) = rows_named("expert_combine", run)
    assert (sent["tokens"], sent["devices"], sent["experts"]) == (8, 8, MIXTURE["n_routed_experts"])
    assert sent["mode"] == back["mode"] == LOW_LATENCY
    assert not rows_named("all_to_all", run)
    assert rows_named("expert_dispatch", replace(run, mode="prefill"))[0]["mode"] == NORMAL


def test_over_machines_and_in_other_stacks_tokens_pass_by_all_to_all() -> None:
    over = replace(DECODE, batch=64, release=SGLANG, parallelism=replace(WIDE, nodes=2))
    plain = replace(DECODE, batch=64, mode="inference", attention="eager", parallelism=WIDE)
    for run in (
        over,
        plain,
        *(
            replace(DECODE, batch=64, release=release_of(stack, "decode"), parallelism=WIDE)
            for stack in ("vllm", "trtllm")
        ),
    ):
        assert not rows_named("expert_dispatch", run)
        exchanges = rows_named("all_to_all", run)
        assert [row["copies"] for row in exchanges] == [1, 1]  # DeepEP's low latency sends a token to every expert


def test_prompts_over_machines_send_a_token_to_each_once() -> None:
    run = replace(DECODE, batch=64, release=SGLANG, parallelism=replace(WIDE, nodes=2), mode="prefill")
    chosen = MIXTURE["num_experts_per_tok"]
    assert [row["copies"] for row in rows_named("all_to_all", run)] == [chosen, chosen]


def test_sglang_runs_the_shared_expert_as_one_of_the_others() -> None:
    count, chosen = MIXTURE["n_routed_experts"], MIXTURE["num_experts_per_tok"]
    runs = {
        stack: replace(DECODE, release=release_of(stack, "decode"), dtype="fp8_block") for stack in trained_stacks()
    }
    of_experts = {stack: rows_named("moe", run)[0] for stack, run in runs.items()}
    lowered = {stack: (row["experts"], row["top_k"]) for stack, row in of_experts.items()}
    assert lowered == {stack: (count + (stack == "sglang"), chosen + (stack == "sglang")) for stack in trained_stacks()}
    merged, apart = (lower(MIXTURE, runs[stack]) for stack in ("sglang", "vllm"))
    assert not [name for name in merged.names if name.startswith("shared")]
    assert [name for name in apart.names if name.startswith("shared")]
    assert weights(merged) == weights(apart)
    for other in (replace(runs["sglang"], parallelism=WIDE, batch=64), replace(runs["sglang"], dtype="nvfp4")):
        assert rows_named("moe", other)[0]["experts"] == count
