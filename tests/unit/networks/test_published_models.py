"""Official configurations, read as they are: parameter counts within 0.5 % of the published ones, and every mode."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from app.config import CHECKOUT
from app.networks.importers.hf import lower, read
from app.networks.run import Run
from tests.unit.transformers import PUBLISHED as PUBLISHED_CONFIGURATIONS

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data")) / "model_configs"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the configurations are not on this machine")

EXACT = 0.005
# Billions of parameters, and the relative tolerance: 0.5 %, or what the rounding of the figure permits where that is
# more. Sources: totals of the safetensors files where they are given to a million; else the model card. Multi-token
# prediction layers (MTP) do not run and are left out of the figures.
PUBLISHED: dict[str, tuple[float, float]] = {
    "MiniMaxAI--MiniMax-M2.5": (228.704, EXACT),
    "MiniMaxAI--MiniMax-M2.7": (228.704, EXACT),
    "MiniMaxAI--MiniMax-M3": (427.0, EXACT),  # the text part
    "nvidia--MiniMax-M3-NVFP4": (428.0, EXACT),
    "Qwen--Qwen3-0.6B": (0.596, EXACT),
    "Qwen--Qwen3-1.7B": (1.721, EXACT),
    "Qwen--Qwen3-8B": (8.191, EXACT),
    "Qwen--Qwen3-32B": (32.762, EXACT),
    "Qwen--Qwen3-30B-A3B": (30.532, EXACT),
    "Qwen--Qwen3-235B-A22B": (235.094, EXACT),
    "Qwen--Qwen3-Coder-480B-A35B-Instruct": (480.155, EXACT),
    "Qwen--Qwen3-VL-2B-Instruct": (2.128, EXACT),
    "Qwen--Qwen3-VL-4B-Instruct": (4.438, EXACT),
    "Qwen--Qwen3-VL-8B-Instruct": (8.767, EXACT),
    "Qwen--Qwen3-VL-32B-Instruct": (33.357, EXACT),
    "Qwen--Qwen3-VL-30B-A3B-Instruct": (31.071, EXACT),
    "Qwen--Qwen3-VL-235B-A22B-Instruct": (235.671, EXACT),
    "Qwen--Qwen3.5-27B": (27.36, EXACT),  # 27.78 less its MTP layer, 0.42
    "Qwen--Qwen3.5-35B-A3B": (35.0, 0.5 / 35),
    "Qwen--Qwen3.5-122B-A10B": (122.0, EXACT),
    "Qwen--Qwen3.5-397B-A17B": (397.0, EXACT),
    "XiaomiMiMo--MiMo-7B-Base": (7.62, EXACT),  # 7.83 less its MTP layer, 0.21
    "XiaomiMiMo--MiMo-V2-Flash": (309.0, EXACT),
    "deepseek-ai--DeepSeek-V3": (671.026, EXACT),
    "deepseek-ai--DeepSeek-R1": (671.026, EXACT),
    "deepseek-ai--DeepSeek-V3.2": (671.9, EXACT),  # V3, and 61 indexers of 0.014
    "deepseek-ai--DeepSeek-V4-Flash": (284.0, EXACT),
    "deepseek-ai--DeepSeek-V4-Pro": (1600.0, 50 / 1600),
    "sgl-project--DeepSeek-V4-Flash-FP8": (284.0, EXACT),
    "sgl-project--DeepSeek-V4-Pro-FP8": (1600.0, 50 / 1600),
    "zai-org--GLM-5": (744.0, EXACT),
    "zai-org--GLM-5.1": (744.0, EXACT),
    "zai-org--GLM-5.2": (743.4, EXACT),  # GLM-5 with 21 of its 78 indexers
    "google--gemma-4-26B-A4B": (25.8, EXACT),  # 25.2, and 0.55 of the encoder
    "nvidia--Gemma-4-31B-IT-NVFP4": (31.3, EXACT),  # 30.7, and 0.55 of the encoder
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": (401.584, EXACT),
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": (108.642, EXACT),
    "meta-llama--Meta-Llama-3.1-8B": (8.030, EXACT),
    "meta-llama--Meta-Llama-3.1-70B": (70.554, EXACT),
    "meta-llama--Meta-Llama-3.1-405B": (405.853, EXACT),
    "mistralai--Mixtral-8x7B-v0.1": (46.703, EXACT),
    "mistralai--Mixtral-8x22B-v0.1": (140.621, EXACT),
    "moonshotai--Kimi-K2-Instruct": (1026.408, EXACT),
    "moonshotai--Kimi-K2.5": (1026.9, EXACT),  # Kimi-K2 and an encoder of 0.4
    "moonshotai--Kimi-K3": (2800.0, 50 / 2800),
    "nvidia--Qwen3.6-27B-NVFP4": (27.36, EXACT),
    "nvidia--Qwen3.6-35B-A3B-NVFP4": (35.0, 0.5 / 35),
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (31.578, EXACT),
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": (120.6, EXACT),
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": (550.0, EXACT),
    "nvidia--NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": (31.6, EXACT),  # Nano's layers
    "nvidia--Nemotron-H-56B-Base-8K": (56.0, 0.5 / 56),
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": (49.867, EXACT),
    "openai--gpt-oss-20b": (20.915, EXACT),
    "openai--gpt-oss-120b": (116.829, EXACT),
    "stepfun-ai--Step-3.7-Flash": (196.0, EXACT),  # the text part, 196 of 198
}


def configuration(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"{name}_config.json").read_text("utf-8"))
    return found


@needs_data
@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    workload = lower(configuration(name), Run())
    held = float(workload.parameters @ workload.repeats[workload.block])
    billions, tolerance = PUBLISHED[name]
    assert held / 1e9 == pytest.approx(billions, rel=tolerance)


def names() -> list[str]:
    files = (path.name for path in DATA.glob("*_config.json"))
    return sorted(name.removesuffix("_config.json") for name in files if "hf_quant" not in name)


@needs_data
@pytest.mark.parametrize("name", names())
def test_every_configuration_runs_in_every_mode(name: str) -> None:
    config = configuration(name)
    for mode in ("inference", "training", "prefill", "decode"):
        workload = lower(config, Run(mode=mode, batch=2, sequence=20_000, dtype="bf16", attention="flash"))
        assert (workload.parameters >= 0).all()
        assert (workload.kv_bytes.sum() > 0) == (mode in ("prefill", "decode"))


def test_a_hybrid_keeps_states_of_one_size_whatever_the_context() -> None:
    """Qwen3-Next: 36 of 48 layers keep a state of 32 x 128 x 128 FP32 and 3 tokens of 8,192 BF16; 12 keep keys."""
    config = PUBLISHED_CONFIGURATIONS["qwen3-next-80b"][0]
    for context in (1_000, 100_000):
        workload = lower(config, Run("decode", batch=2, sequence=context, dtype="bf16", attention="flash"))
        kept = float(workload.kv_bytes @ workload.repeats[workload.block])
        states = 36 * 2 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
        assert kept == states + 12 * 2 * context * 2 * 2 * 256 * 2


@needs_data
def test_image_encoders_are_counted_once() -> None:
    config = configuration("Qwen--Qwen3-VL-8B-Instruct")
    alone = {name: value for name, value in config.items() if name != "vision_config"}
    assert read(config).towers > 0
    assert read(alone).towers == 0


def test_hunyuan_has_the_parameters_of_its_name() -> None:
    config = {
        "model_type": "hunyuan_v1_dense", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128167, "tie_word_embeddings": True,
    }  # fmt: skip
    workload = lower(config, Run(sequence=8))
    assert workload.parameters @ workload.repeats[workload.block] == pytest.approx(7.5e9, rel=EXACT)


def test_chunks_are_sequences_of_their_own() -> None:
    """Llama 4 in prefill: 20,000 tokens are two chunks of 8,192 and one of 3,616; the next token sees 3,616 keys."""
    config = {
        "model_type": "llama4_text", "hidden_size": 512, "intermediate_size": 512, "intermediate_size_mlp": 1024,
        "num_attention_heads": 4, "num_hidden_layers": 4, "num_local_experts": 4, "vocab_size": 1000,
    }  # fmt: skip
    prefill = lower(config, Run("prefill", batch=3, sequence=20_000, dtype="bf16", attention="flash"))
    decode = lower(config, Run("decode", batch=3, sequence=20_000, dtype="bf16", attention="flash"))
    for workload, seen in ((prefill, [(6, 8192), (3, 3616), (3, 20_000)]), (decode, [(3, 3616), (3, 20_000)])):
        rows = [k for k, name in enumerate(workload.names) if name == "attention"]
        shapes = zip(workload.ops.column("batch")[rows], workload.ops.column("context_length")[rows], strict=True)
        assert [(int(batch), int(keys)) for batch, keys in shapes] == seen


def test_windows_of_an_encoder_have_keys_on_both_sides() -> None:
    """ModernBERT: of 1,000 tokens a query sees itself and 64 before and after; every third layer sees all keys."""
    config = PUBLISHED_CONFIGURATIONS["modernbert-base"][0]
    workload = lower(config, Run(batch=2, sequence=1000, dtype="bf16", attention="flash"))
    rows = [k for k, name in enumerate(workload.names) if name == "attention"]
    columns = (workload.ops.column(name)[rows].tolist() for name in ("context_length", "window"))
    assert list(zip(*columns, strict=True)) == [(1999, 1000), (1064, 129)]
    assert workload.repeats[workload.block[rows]].tolist() == [8, 14]
