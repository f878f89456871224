"""Formats of published models, by kind of part."""

import json
from typing import Any

import pytest

from app.errors import BadInput
from app.networks.importers.hf import formats_of, lower
from app.networks.run import Formats, Run
from tests.unit.networks.test_published_models import DATA, configuration, needs_data
from tests.unit.transformers import PUBLISHED, config

FP8_BLOCK = dict.fromkeys(("linear", "shared", "attention", "recurrence", "experts"), "fp8_block")
ALL_NVFP4 = dict.fromkeys(("linear", "shared", "attention", "recurrence", "experts"), "nvfp4")
# As the publishers' model cards describe the files.
OFFICIAL: dict[str, dict[str, str]] = {
    "Qwen--Qwen3-32B-FP8": FP8_BLOCK,
    "deepseek-ai--DeepSeek-R1": FP8_BLOCK,
    "deepseek-ai--DeepSeek-V4-Flash": FP8_BLOCK | {"experts": "w4a8_mxfp4"},
    "nvidia--DeepSeek-V4-Flash-NVFP4": FP8_BLOCK | {"experts": "nvfp4"},
    "zai-org--GLM-5-FP8": FP8_BLOCK,
    "openai--gpt-oss-120b": {"experts": "w4a16_mxfp4"},
    "moonshotai--Kimi-K2.5": {"experts": "int4_wo"},
    "moonshotai--Kimi-K3": {"experts": "w4a16_mxfp4"},
    "nvidia--Kimi-K2.5-NVFP4": {"linear": "nvfp4", "shared": "nvfp4", "experts": "nvfp4", "kv_cache": "fp8"},
    "nvidia--Qwen3-235B-A22B-NVFP4": {},
    "nvidia--Gemma-4-26B-A4B-NVFP4": {"experts": "nvfp4", "kv_cache": "fp8"},
    "nvidia--Qwen3.5-397B-A17B-NVFP4": {"experts": "nvfp4", "kv_cache": "fp8"},
    "nvidia--Qwen3.6-27B-NVFP4": {
        "linear": "int4_wo", "attention": "fp8", "recurrence": "fp8", "head": "int4_wo", "kv_cache": "fp8"
    },
    "nvidia--MiniMax-M3-NVFP4": FP8_BLOCK | {"experts": "nvfp4"},
    "zai-org--GLM-5": {},
}  # fmt: skip


@needs_data
@pytest.mark.parametrize("name", OFFICIAL)
def test_official_files(name: str) -> None:
    config, extra = configuration(name), DATA / f"{name}_hf_quant_config.json"
    if "quantization_config" not in config and extra.is_file():  # a caller puts its content beside the configuration
        config |= json.loads(extra.read_text("utf-8"))
        assert formats_of(config) == Formats(**ALL_NVFP4, kv_cache="fp8")
        return
    assert formats_of(config) == (Formats(**OFFICIAL[name]) if OFFICIAL[name] else None)


LLAMA = config("llama-3-8b")
METHODS: dict[str, tuple[dict[str, Any], str]] = {
    "awq": ({"quant_method": "awq", "bits": 4}, "int4_wo"),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4_wo"),
    "bitsandbytes 8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
    "bitsandbytes nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4_wo"),
    "fp8": ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
    "modelopt": ({"quant_algo": "FP8"}, "fp8"),
    "mxfp8": ({"quant_algo": "MXFP8"}, "fp8_block"),
    "w8a8": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}}
            },
        },
        "int8",
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_methods(method: str) -> None:
    given, expected = METHODS[method]
    found = formats_of(LLAMA | {"quantization_config": given})
    assert found is not None
    assert (found.linear, found.attention, found.head) == (expected, expected, "")


@pytest.mark.parametrize(
    ("left", "attention", "linear"),
    [
        (["model.layers.*.self_attn", "lm_head"], "", "fp8"),
        (["re:.*mlp\\.(gate|up|down)_proj.*"], "fp8", ""),
        ([f"model.layers.{k}.self_attn*" for k in range(32)], "", "fp8"),
        (["model.layers.0.self_attn*", "model.layers.31.self_attn*"], "fp8", "fp8"),
        (["gate", "lm_head"], "fp8", "fp8"),
    ],
)
def test_most_layers_of_a_part_decide_what_is_left(left: list[str], attention: str, linear: str) -> None:
    found = formats_of(LLAMA | {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": left}})
    assert found is not None
    assert (found.attention, found.linear) == (attention, linear)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"quant_method": "exl9"}, ("quantization_config", "quant_method")),
        ({"quant_method": "gptq", "bits": 3}, ("quantization_config", "bits")),
        ({"quant_algo": "FP3"}, ("quantization_config", "quant_algo")),
        ({"quant_method": "fp8", "modules_to_not_convert": 7}, ("quantization_config", "modules_to_not_convert")),
        ({"quant_method": "compressed-tensors"}, ("quantization_config", "config_groups")),
        ("fp8", ("quantization_config",)),
    ],
)
def test_unknown_formats_are_named(given: Any, field: tuple[str, ...]) -> None:
    with pytest.raises(BadInput) as caught:
        formats_of(LLAMA | {"quantization_config": given})
    assert caught.value.errors[0].loc == ("workload", "config", *field)


JUNK = [None, True, -3, "x", [], [None], {}, {"a": 1}, {"a": {"b": 2}}]


def hostile(pattern: str, times: int) -> dict[str, Any]:
    """A configuration with patterns that differ, each of many alternatives and wildcards."""
    patterns = [pattern.replace("#", str(k)) for k in range(times)]
    return LLAMA | {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": patterns}}


def test_patterns_are_bounded_and_never_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    few = hostile("re:(#" + "|a" * 20 + ")1" + "*q" * 20, 50)
    with monkeypatch.context() as patched:
        patched.setattr("re._compiler.compile", lambda *_: pytest.fail("a caller's pattern was compiled"))
        formats = formats_of(few)
    assert formats == Formats(**FP8_BLOCK | dict.fromkeys(FP8_BLOCK, "fp8"))
    with pytest.raises(BadInput, match="more than 2000"):
        formats_of(hostile("re:(#" + "|a" * 20 + ")1" + "*q" * 20, 200))
    with pytest.raises(BadInput, match="more than 100000"):
        formats_of(hostile("lm_head", 100_001))


@pytest.mark.parametrize(
    ("pattern", "attention", "linear"),
    [
        ("model.layers.0.self_attn.q_proj", "", "fp8"),
        ("re:.*self_attn.(q|k|v)_proj.*", "", "fp8"),
        ("re:.*self_attn\\.q_proj$", "", "fp8"),
        ("*self_attn*", "", "fp8"),
        ("self_att", "fp8", "fp8"),
        ("re:.*mlp.*", "fp8", ""),
        ("mlp", "fp8", ""),
    ],
)
def test_patterns_name_whole_parts_of_paths(pattern: str, attention: str, linear: str) -> None:
    layers = LLAMA["num_hidden_layers"]
    listed = [pattern.replace("layers.0", f"layers.{k}") for k in range(layers)]
    given = {"quant_method": "fp8", "modules_to_not_convert": listed}
    formats = formats_of(LLAMA | {"quantization_config": given})
    assert formats is not None
    assert (formats.attention, formats.linear) == (attention, linear)


def test_junk_raises_only_bad_input() -> None:
    methods = ("fp8", "awq", "modelopt", "compressed-tensors", "bitsandbytes", "mxfp4")
    names = ("bits", "quant_algo", "config_groups", "ignore", "kv_cache_scheme", "quantized_layers", "load_in_4bit")
    for method in methods:
        for name in names:
            for junk in JUNK:
                try:
                    formats_of(LLAMA | {"quantization_config": {"quant_method": method, name: junk}})
                except BadInput as error:
                    assert error.errors[0].loc[:3] == ("workload", "config", "quantization_config")


def test_rows_have_the_formats_of_their_part() -> None:
    formats = Formats(linear="fp8", attention="nvfp4", experts="w4a16_mxfp4", head="fp8", kv_cache="fp8")
    run = Run("decode", 4, 512, dtype="bf16", attention="flash", kv_dtype="fp8", formats=formats)
    workload = lower(PUBLISHED["gpt-oss-20b"][0], run)
    held = dict(zip(workload.names, workload.weight_bytes / workload.parameters.clip(1.0), strict=True))
    assert held["attention.query"] == held["attention.output"] == 0.5 + 1 / 16
    assert held["experts"] == 0.5 + 1 / 32
    assert held["words.logits"] == 1.0
    assert held["experts.router"] == held["words"] == 2.0
