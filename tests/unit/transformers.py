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

_GPT_OSS_20B: dict[str, Any] = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 24, "num_local_experts": 32,
    "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128,
}  # fmt: skip
_MINIMAX_M2: dict[str, Any] = {
    "model_type": "minimax_m2", "hidden_size": 3072, "intermediate_size": 1536, "num_attention_heads": 48,
    "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 62, "num_local_experts": 256,
    "num_experts_per_tok": 8, "vocab_size": 200064, "rotary_dim": 64, "use_routing_bias": True,
}  # fmt: skip
_QWEN3_VL_2B: dict[str, Any] = {
    "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_vl_text", "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 28, "vocab_size": 151936,
    },
    "vision_config": {
        "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_position_embeddings": 2304,
        "out_hidden_size": 2048, "deepstack_visual_indexes": [5, 11, 17], "temporal_patch_size": 2, "patch_size": 16,
    },
}  # fmt: skip
_LLAMA4_SCOUT: dict[str, Any] = {
    "model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"],
    "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 48,
        "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "vocab_size": 202048,
    },
}  # fmt: skip
_NO_OP: dict[str, Any] = {"no_op": True}
_SUPER_49B: dict[str, Any] = {
    "model_type": "nemotron-nas", "hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 80,
    "vocab_size": 128256, "num_key_value_heads": None, "intermediate_size": None,
    "block_configs": [
        {"attention": {"n_heads_in_group": 8} if attends else _NO_OP, "ffn": {"ffn_mult": factor}}
        for attends, factor, count in [
            (True, 5.25, 48), (True, 2.625, 1), (False, 5.25, 1), (False, 3.28125, 1), (False, 2.625, 5),
            (False, 1.3125, 10), (False, 1.0, 8), (False, 0.5, 6),
        ]
        for _ in range(count)
    ],
}  # fmt: skip

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
    "gpt-oss-20b": (_GPT_OSS_20B, 20_914_757_184),
    "minimax-m2": (_MINIMAX_M2, 228_689_764_864),
    "qwen3-vl-2b": (_QWEN3_VL_2B, 2_127_532_032),
    "llama-4-scout": (_LLAMA4_SCOUT, 108_641_793_536),
    "llama-3.3-nemotron-super-49b": (_SUPER_49B, 49_867_145_216),
}
PUBLISHED = {name: (config(name), count) for name, count in BUILT_IN.items()} | FURTHER
