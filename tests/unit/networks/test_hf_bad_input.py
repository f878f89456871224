"""Invalid configurations are rejected at once, naming the field."""

import json
import math
import time
from typing import Any

import pytest

from app.config import CHECKOUT
from app.errors import BadInput
from app.networks.importers.hf import KNOWN_MODEL_TYPES, lower
from app.networks.run import Parallelism, Run
from tests.unit.transformers import GEMMA3, PUBLISHED, config


def refused(config: Any, run: Run | None = None) -> tuple[tuple[str | int, ...], str]:
    """Where and why."""
    began = time.process_time()
    with pytest.raises(BadInput) as caught:
        lower(config, run or Run())
    assert time.process_time() - began < 1.0, "what is counted is bounded, whatever the values"
    (error,) = caught.value.errors
    assert len(error.msg) < 1000
    return error.loc, error.msg


SIMILAR = [
    (None, "llama"), ("rwkv9-omega", "llama"), (7, "llama"), (["gpt2"], "llama"), ({"of": "gpt2"}, "llama"),
    ("GPT2", "gpt2"), ("qwen3-moe", "qwen3_moe"), ("deepseek_v33", "deepseek_v3"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "similar"), SIMILAR, ids=str)
def test_unknown_model_types_are_repeated_with_known_ones_and_what_to_send_instead(given: Any, similar: str) -> None:
    loc, msg = refused({"model_type": given})
    assert loc == ("workload", "config", "model_type")
    assert similar in msg
    assert "is missing" in msg if given is None else repr(given) in msg
    assert "graph" in msg and "ONNX" in msg


def test_the_reference_lists_every_known_model_type() -> None:
    page = (CHECKOUT / "docs" / "reference" / "models.md").read_text("utf-8")
    section = page.partition("### Model types")[2].partition("\n###")[0]
    cells = [line.split("|")[2].strip(" `") for line in section.splitlines() if line.startswith("| ")]
    assert {name for cell in cells[1:] for name in cell.split()} == set(KNOWN_MODEL_TYPES)


def test_unknown_multimodal_models_are_asked_for_their_text_configuration() -> None:
    assert "text_config" in refused({"model_type": "omni", "text_config": GEMMA3})[1]


def test_fields_of_a_nested_configuration_are_named_with_their_place_and_value() -> None:
    text = GEMMA3 | {"num_hidden_layers": -3}
    loc, msg = refused({"model_type": "gemma3", "text_config": text})
    assert loc == ("workload", "config", "text_config", "num_hidden_layers")
    assert "-3" in msg
    assert "'omni'" in refused({"model_type": "gemma3", "text_config": GEMMA3 | {"model_type": "omni"}})[1]


@pytest.mark.parametrize("given", [[], "gpt2", 3, None])
def test_configurations_that_are_no_object_are_rejected(given: Any) -> None:
    assert refused(given)[0] == ("workload", "config")


WRONG = [True, "12", 1.5, math.nan, math.inf, -1, 0, 10**400, 1e300, 2**24 + 1, [12], {}]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: str(value)[:12])
@pytest.mark.parametrize("field", ["n_embd", "n_head", "n_layer", "vocab_size", "n_positions", "n_inner"])
def test_sizes_are_whole_numbers_within_limits(field: str, value: Any) -> None:
    assert refused(config("gpt2") | {field: value})[0] == ("workload", "config", field)


def test_a_billion_layers_are_refused_by_a_stated_limit() -> None:
    assert "10000" in refused(config("llama-2-7b") | {"num_hidden_layers": 10**9})[1]
    assert lower(config("llama-2-7b") | {"num_hidden_layers": 10_000}, Run()).repeats.tolist() == [1, 10_000, 1]


NEEDED = {
    "gpt2": ["n_embd", "n_head", "n_layer", "vocab_size", "n_positions"],
    "bert-base": ["hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size"],
    "opt-1.3b": ["hidden_size", "ffn_dim", "num_attention_heads"],
    "llama-2-7b": ["hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size"],
    "t5-base": ["d_model", "d_ff", "num_heads", "num_layers", "vocab_size"],
    "switch-base-8": ["num_experts"],
    "deepseek-v3": ["kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "moe_intermediate_size"],
    "qwen3-30b-a3b": ["num_experts", "moe_intermediate_size"],
}


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, fields in NEEDED.items() for field in fields])
def test_missing_fields_are_named(name: str, field: str) -> None:
    given = {key: value for key, value in config(name).items() if key != field}
    loc, msg = refused(given)
    assert loc == ("workload", "config", field)
    assert "missing" in msg


CONTRADICTIONS = [
    ("gpt2", {"n_head": 7}, "n_head"),
    ("llama-2-7b", {"num_attention_heads": 33, "num_key_value_heads": 33}, "num_attention_heads"),
    ("llama-3-8b", {"num_key_value_heads": 5}, "num_key_value_heads"),
    ("llama-3-8b", {"num_key_value_heads": 64}, "num_key_value_heads"),
    ("mixtral-8x7b", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ("gpt2", {"activation_function": "softplus"}, "activation_function"),
    ("gpt2", {"activation_function": 3}, "activation_function"),
    ("gpt2", {"attn_pdrop": 1.5}, "attn_pdrop"),
    ("gpt2", {"attn_pdrop": math.nan}, "attn_pdrop"),
    ("gpt2", {"architectures": ["GPT2DoubleHeadsModelOfMine"]}, "architectures"),
    ("gpt2", {"architectures": "GPT2LMHeadModel"}, "architectures"),
    ("gpt2", {"architectures": []}, "architectures"),
    ("vit-b-16", {"architectures": ["ViTForCausalLM"]}, "architectures"),
    ("vit-b-16", {"patch_size": 225}, "patch_size"),
    ("vit-b-16", {"id2label": [1, 2]}, "id2label"),
    ("switch-base-8", {"num_sparse_encoder_layers": 13}, "num_sparse_encoder_layers"),
    ("t5-base", {"feed_forward_proj": "gated-swish"}, "feed_forward_proj"),
    ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
    ("deepseek-v3", {"first_k_dense_replace": 62}, "first_k_dense_replace"),
    ("qwen3-30b-a3b", {"mlp_only_layers": [48]}, "mlp_only_layers"),
    ("qwen3-30b-a3b", {"mlp_only_layers": "all"}, "mlp_only_layers"),
    ("gemma-2-2b", {"layer_types": ["full_attention"]}, "layer_types"),
    ("gemma-2-2b", {"attn_logit_softcapping": -1}, "attn_logit_softcapping"),
    ("llama-2-7b", {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
]


@pytest.mark.parametrize(("name", "changed", "field"), CONTRADICTIONS, ids=str)
def test_contradictions_are_named(name: str, changed: dict[str, Any], field: str) -> None:
    assert refused(config(name) | changed)[0] == ("workload", "config", field)


SPLITS = [
    ("gpt2", Parallelism(tensor=5), "tensor"),
    ("gpt2-large", Parallelism(tensor=8), "tensor"),
    ("llama-3-8b", Parallelism(tensor=3), "tensor"),
    ("llama-2-7b", Parallelism(data=2, expert=2), "expert"),
    ("mixtral-8x7b", Parallelism(data=3, expert=3), "expert"),
    ("mixtral-8x7b", Parallelism(data=2, expert=8), "expert"),
    ("llama-2-7b", Parallelism(tensor=2, sequence=True), "tensor"),
]


@pytest.mark.parametrize(("name", "parallelism", "field"), SPLITS, ids=str)
def test_splits_that_do_not_divide_are_named(name: str, parallelism: Parallelism, field: str) -> None:
    run = Run(batch=1, sequence=63, parallelism=parallelism)
    assert refused(config(name), run)[0] == ("workload", "parallelism", field)


def test_unsupported_features_of_a_model_are_named() -> None:
    assert refused(config("gpt2"), Run(sequence=1025))[0] == ("workload", "sequence")
    assert refused(config("bert-base"), Run(mode="decode"))[0] == ("workload", "mode")
    assert refused(config("vit-b-16"), Run(mode="prefill"))[0] == ("workload", "mode")
    assert refused(config("vit-b-16"), Run(image_size=384))[0] == ("workload", "image_size")


JUNK = [None, True, -3, 0, 2**70, math.nan, "x", [], [None], {}, {"a": 1}]


@pytest.mark.parametrize("name", [*PUBLISHED])
def test_arbitrary_field_values_raise_only_bad_input(name: str) -> None:
    given, _ = PUBLISHED[name]
    for field in {
        **given,
        "layer_types": 0,
        "vision_config": 0,
        "text_config": 0,
        "mlp_only_layers": 0,
        "num_labels": 0,
        "id2label": 0,
        "head_dim": 0,
    }:
        for junk in JUNK:
            try:
                workload = lower(given | {field: junk}, Run(sequence=8))
            except BadInput as error:
                assert error.errors[0].loc[:2] == ("workload", "config"), (field, junk)
                json.dumps(error.errors[0].msg)
            else:
                assert (workload.parameters >= 0).all()


def test_layer_types_say_which_layers_have_a_window() -> None:
    kinds = ["sliding_attention"] * 20 + ["full_attention"] * 6
    workload = lower(GEMMA3 | {"layer_types": kinds}, Run(sequence=8))
    assert workload.repeats.tolist() == [1, 20, 6, 1]
