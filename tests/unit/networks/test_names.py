"""Models by the names that people type: those of Hugging Face, with or without organisation, format or variant."""

from __future__ import annotations

import pytest

from app.networks.builtin import canonical_name, find_config, names
from app.networks.importers import diffusers, hf
from app.networks.run import Run, is_diffusion

# Much downloaded models of text, vision, speech and embeddings, with billions of parameters by their cards.
DOWNLOADED = {
    "sentence-transformers/all-MiniLM-L6-v2": 0.0227,
    "sentence-transformers/all-mpnet-base-v2": 0.109,
    "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2": 0.118,
    "cross-encoder/ms-marco-MiniLM-L6-v2": 0.0227,
    "BAAI/bge-m3": 0.568,
    "BAAI/bge-reranker-v2-m3": 0.568,
    "BAAI/bge-small-en-v1.5": 0.0334,
    "BAAI/bge-base-en-v1.5": 0.109,
    "BAAI/bge-large-en-v1.5": 0.335,
    "mixedbread-ai/mxbai-embed-large-v1": 0.335,
    "intfloat/multilingual-e5-small": 0.118,
    "intfloat/multilingual-e5-large": 0.560,
    "nomic-ai/nomic-embed-text-v1.5": 0.137,
    "Qwen/Qwen3-Embedding-0.6B": 0.596,
    "google-bert/bert-base-uncased": 0.110,
    "google-bert/bert-base-multilingual-cased": 0.178,
    "distilbert/distilbert-base-uncased": 0.067,
    "FacebookAI/roberta-base": 0.125,
    "FacebookAI/roberta-large": 0.355,
    "FacebookAI/xlm-roberta-base": 0.278,
    "FacebookAI/xlm-roberta-large": 0.560,
    "google/electra-base-discriminator": 0.109,
    "microsoft/deberta-v3-base": 0.184,
    "answerdotai/ModernBERT-base": 0.150,
    "openai/clip-vit-base-patch32": 0.151,
    "openai/clip-vit-base-patch16": 0.150,
    "openai/clip-vit-large-patch14": 0.428,
    "google/siglip-so400m-patch14-384": 0.878,
    "facebook/dinov2-base": 0.0866,
    "google/vit-base-patch16-224": 0.0866,
    "openai/whisper-base": 0.0726,
    "openai/whisper-small": 0.242,
    "openai/whisper-large-v3": 1.54,
    "openai/whisper-large-v3-turbo": 0.809,
    "google-t5/t5-small": 0.0605,
    "google-t5/t5-base": 0.223,
    "google/flan-t5-base": 0.248,
    "facebook/bart-large-cnn": 0.406,
    "facebook/opt-125m": 0.125,
    "openai-community/gpt2": 0.124,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1.10,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 0.1345,
    "meta-llama/Llama-3.1-8B-Instruct": 8.03,
    "meta-llama/Llama-3.2-1B-Instruct": 1.24,
    "meta-llama/Llama-3.2-3B-Instruct": 3.21,
    "meta-llama/Llama-3.3-70B-Instruct": 70.6,
    "Qwen/Qwen2.5-0.5B-Instruct": 0.494,
    "Qwen/Qwen2.5-1.5B-Instruct": 1.54,
    "Qwen/Qwen2.5-7B-Instruct": 7.62,
    "Qwen/Qwen2.5-32B-Instruct": 32.8,
    "Qwen/Qwen3-0.6B": 0.596,
    "Qwen/Qwen3-4B-Instruct-2507": 4.02,
    "Qwen/Qwen3-8B": 8.19,
    "Qwen/Qwen3-32B": 32.8,
    "Qwen/Qwen3-VL-8B-Instruct": 8.77,
    "google/gemma-3-1b-it": 1.00,
    "google/gemma-3-27b-it": 27.4,
    "mistralai/Mistral-7B-Instruct-v0.2": 7.24,
    "microsoft/phi-4": 14.7,
    "stabilityai/stable-diffusion-xl-base-1.0": 2.567,
    "openai/gpt-oss-20b": 20.9,
    "openai/gpt-oss-120b": 117.0,
    "deepseek-ai/DeepSeek-R1": 671.0,
}
# As much downloaded, and not known: an encoder of waveforms.
UNKNOWN = ("facebook/wav2vec2-base-960h",)
ASKED = {
    "nvidia/Nemotron-4-15B": 15.6,
    "nvidia/Nemotron-4-340B-Base": 341.0,
    "xai-org/grok-1": 314.0,
    "meta-llama/Llama-3.1-405B-Instruct": 405.9,
    "Qwen/Qwen3-235B-A22B": 235.1,
    "Qwen/Qwen3.5-397B-A17B": 397.0,
    "google/gemma-4-31B-it": 31.3,
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": 23.6,
    "deepseek-ai/DeepSeek-V3.1": 671.0,
    "deepseek-ai/DeepSeek-V3.2": 671.9,
    "moonshotai/Kimi-K2-Instruct": 1026.4,
    "zai-org/GLM-4.6": 352.8,
    "zai-org/GLM-5": 743.9,
    "MiniMaxAI/MiniMax-M2": 228.7,
    "stable-diffusion-v1-5/stable-diffusion-v1-5": 0.860,
    "meta-llama/Llama-2-13b-hf": 13.02,
    "meta-llama/Llama-2-70b-hf": 68.98,
    "huggyllama/llama-7b": 6.74,
    "huggyllama/llama-13b": 13.02,
    "codellama/CodeLlama-34b-hf": 33.74,
    "01-ai/Yi-34B": 34.39,
    "EleutherAI/gpt-neox-20b": 20.55,
    "EleutherAI/gpt-j-6b": 6.05,
    "bigcode/starcoder": 15.52,
    "bigcode/starcoder2-15b": 15.96,
    "tiiuae/falcon-7b": 6.92,
    "tiiuae/falcon-40b": 41.3,
    "mosaicml/mpt-7b": 6.65,
    "mosaicml/mpt-30b": 29.96,
    "bigscience/bloom": 176.25,
    "facebook/opt-6.7b": 6.66,
    "facebook/opt-13b": 12.85,
    "facebook/opt-30b": 29.97,
    "facebook/opt-66b": 65.72,
    "google/gemma-7b": 8.54,
    "google/gemma-2-9b": 9.24,
    "google/gemma-2-27b": 27.23,
    "mistralai/Mistral-Large-Instruct-2407": 122.6,
    "CohereForAI/c4ai-command-r-plus": 103.8,
    "CohereForAI/c4ai-command-r-v01": 34.98,
    "microsoft/phi-2": 2.78,
    "microsoft/Phi-3-medium-4k-instruct": 13.96,
    "microsoft/Phi-4-mini-instruct": 3.84,
    "google/flan-t5-xxl": 11.14,
    "ibm-granite/granite-3.3-8b-instruct": 8.17,
    "allenai/OLMo-2-1124-13B": 13.72,
    "deepseek-ai/DeepSeek-V2": 235.7,
    "deepseek-ai/DeepSeek-V2-Lite": 15.7,
    "Qwen/Qwen2.5-VL-3B-Instruct": 3.75,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8.29,
    "Qwen/Qwen2.5-VL-72B-Instruct": 73.4,
}


def billions(name: str) -> float:
    config = find_config(name)
    assert config is not None, name
    family = diffusers if is_diffusion(config) else hf
    workload = family.lower(
        config, Run(sequence=8, image_size=512, image_width=512) if family is diffusers else Run(sequence=8)
    )
    return float(workload.parameters @ workload.repeats[workload.block]) / 1e9


@pytest.mark.parametrize("name", ["nemotron4-15b", "nemotron4-340b", "grok1-314b", "llama4-maverick-400b"])
def test_models_have_the_names_of_training_recipes(name: str) -> None:
    assert find_config(name) is not None


@pytest.mark.parametrize(("name", "known"), (DOWNLOADED | ASKED).items())
def test_a_model_is_known_by_name_with_the_parameters_of_its_card(name: str, known: float) -> None:
    assert billions(name) == pytest.approx(known, rel=0.015)
    assert find_config(name.rpartition("/")[2]) is find_config(name)
    assert find_config(name.upper()) is find_config(name)


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("SD 1.5", "stable-diffusion-1.5"),
        ("sd1.5", "stable-diffusion-1.5"),
        ("SDXL", "stable-diffusion-xl"),
        ("Flux", "flux.1-dev"),
    ],
)
def test_short_names_are_known(name: str, network: str) -> None:
    assert find_config(name) is find_config(network)


def test_nearly_all_much_downloaded_models_are_known() -> None:
    assert len(DOWNLOADED) + len(UNKNOWN) == 64
    assert all(find_config(name) is None for name in UNKNOWN)


@pytest.mark.parametrize(
    ("name", "network", "experts", "linear"),
    [
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b-fp8", "fp8_block", "fp8_block"),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "llama-3.1-70b-fp8-tensor", "fp8", "fp8"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "llama-3-8b-fp8-dynamic", "fp8", "fp8"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "qwen2.5-7b-awq", "int4_wo", "int4_wo"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b-gptq-int4", "int4_wo", "int4_wo"),
        ("nvidia/DeepSeek-R1-NVFP4", "deepseek-v3-nvfp4", "nvfp4", "nvfp4"),
        ("RedHatAI/Qwen3-8B-quantized.w8a8", "qwen3-8b-quantized.w8a8", "int8", "int8"),
        ("RedHatAI/Qwen3-8B-quantized.w8a16", "qwen3-8b-quantized.w8a16", "int8_wo", "int8_wo"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "qwen2.5-7b-gptq-int8", "int8_wo", "int8_wo"),
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M", "llama-3-8b-q4_k_m", "q4_k_m", "q4_k_m"),
        ("ggml-org/Qwen3-8B-Q8_0-GGUF", "qwen3-8b-q8_0", "q8_0", "q8_0"),
        ("qwen3-30b-a3b-IQ4_XS.gguf", "qwen3-30b-a3b-iq4_xs", "iq4_xs", "iq4_xs"),
        ("nvidia/Llama-3.1-8B-FP8-Instruct", "llama-3-8b-fp8-tensor", "fp8", "fp8"),
        ("qwen3-8b-awq-base", "qwen3-8b-awq", "int4_wo", "int4_wo"),
        ("openai/gpt-oss-120b", "gpt-oss-120b", "w4a16_mxfp4", ""),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3", "fp8_block", "fp8_block"),
    ],
)
def test_the_end_of_a_name_decides_the_format(name: str, network: str, experts: str, linear: str) -> None:
    config = find_config(name)
    assert config is not None
    formats = hf.formats_of(config)
    assert formats is not None
    assert (formats.experts, formats.linear) == (experts, linear)
    assert canonical_name(name) == network


@pytest.mark.parametrize(
    "name",
    [
        "llama-2",
        "foo/bar",
        "qwen3-8b-q9_k",
        "foo-gguf:q4_k_m",
        "-fp8",
        "-fp8" * 60,
        "fp8-fp8",
        "qwen3-8b-fp8-awq",
        "/",
        "",
    ],
)
def test_other_names_are_unknown(name: str) -> None:
    assert find_config(name) is None
    assert canonical_name(name) is None


@pytest.mark.parametrize("name", names())
def test_every_model_lowers(name: str) -> None:
    config = find_config(name)
    assert config is not None
    if not is_diffusion(config):
        assert len(hf.lower(config, Run(sequence=8))) > 0
