"""Configurations as published, and the parameter counts that PyTorch reports for them."""

from typing import Any

from app.services.models.builtin import find_config


def config(name: str, **changed: Any) -> dict[str, Any]:
    """A built-in configuration, with some fields changed; None leaves one out."""
    found = find_config(name)
    assert found is not None, name
    return {key: value for key, value in (found | changed).items() if value is not None}


# Of the built-in ones; DeepSeek-V3 with its router's corrections, ViT and BERT with their heads.
BUILT_IN = {
    "gpt2": 124_439_808,
    "gpt2-large": 774_030_080,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "opt-1.3b": 1_315_758_080,
    "t5-base": 222_903_552,
    "flan-t5-xl": 2_849_757_184,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-4b": 4_022_468_096,
    "qwen3-30b-a3b": 30_532_122_624,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "gemma-2-2b": 2_614_341_888,
    "phi-3-mini": 3_821_079_552,
    "deepseek-v3": 671_026_419_200,
    "vit-b-16": 86_567_656,
    "switch-base-8": 619_339_008,
}

_QWEN15_MOE: dict[str, Any] = {
    "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
    "num_hidden_layers": 24, "num_experts": 60, "num_experts_per_tok": 4, "vocab_size": 151936,
}  # fmt: skip
_GEMMA: dict[str, Any] = {
    "model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
    "num_key_value_heads": 1, "head_dim": 256, "num_hidden_layers": 18, "vocab_size": 256000,
}  # fmt: skip
GEMMA3: dict[str, Any] = {
    "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 256, "num_hidden_layers": 26, "vocab_size": 262144, "sliding_window": 512,
    "sliding_window_pattern": 6,
}  # fmt: skip
_PHI2: dict[str, Any] = {
    "model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 32,
    "num_hidden_layers": 32, "partial_rotary_factor": 0.4, "vocab_size": 51200,
}  # fmt: skip
_DEEPSEEK2_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "num_attention_heads": 16, "num_hidden_layers": 27, "first_k_dense_replace": 1, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "q_lora_rank": None, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400,
}  # fmt: skip

_ROBERTA = config("bert-base", architectures=["RobertaForMaskedLM"]) | {
    "model_type": "roberta", "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1,
}  # fmt: skip

_OPT_350M = config(
    "opt-1.3b", hidden_size=1024, ffn_dim=4096, num_attention_heads=16, word_embed_proj_dim=512,
    do_layer_norm_before=False,
)  # fmt: skip

FURTHER: dict[str, tuple[dict[str, Any], int]] = {
    "bert-base, without a head": (config("bert-base", architectures=["BertModel"]), 109_482_240),
    "bert-large, without a head": (config("bert-large", architectures=["BertModel"]), 335_141_888),
    "bert-base, pre-training": (config("bert-base", architectures=["BertForPreTraining"]), 110_106_428),
    "opt-350m": (_OPT_350M, 331_196_416),
    "roberta-base": (_ROBERTA, 124_697_433),
    "qwen1.5-moe-a2.7b": (_QWEN15_MOE, 14_315_784_192),
    "gemma-2b": (_GEMMA, 2_506_172_416),
    "gemma-3-1b": (GEMMA3, 999_885_952),
    "phi-2": (_PHI2, 2_779_683_840),
    "deepseek-v2-lite": (_DEEPSEEK2_LITE, 15_706_484_224),
}
PUBLISHED = {name: (config(name), count) for name, count in BUILT_IN.items()} | FURTHER
