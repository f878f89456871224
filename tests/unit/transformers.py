"""Configurations as published, and the parameter counts that PyTorch reports for them."""

from typing import Any

from app.networks.builtin import find_config


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
_QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "num_hidden_layers": 48, "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "vocab_size": 151936,
}  # fmt: skip
_NEMOTRON_NANO: dict[str, Any] = {
    "model_type": "nemotron_h", "hidden_size": 2688, "num_attention_heads": 32, "num_key_value_heads": 2,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "head_dim": 128,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128,
    "num_experts_per_tok": 6, "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
    "vocab_size": 131072, "mlp_hidden_act": "relu2",
}  # fmt: skip
_CODESTRAL_MAMBA: dict[str, Any] = {
    "model_type": "mamba2", "hidden_size": 4096, "num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8,
    "num_hidden_layers": 64, "vocab_size": 32768,
}  # fmt: skip
_GRANITE_TINY: dict[str, Any] = {
    "model_type": "granitemoehybrid", "hidden_size": 1536, "intermediate_size": 512, "shared_intermediate_size": 1024,
    "num_local_experts": 64, "num_experts_per_tok": 6, "num_attention_heads": 12, "num_key_value_heads": 4,
    "num_hidden_layers": 40, "mamba_n_heads": 48, "mamba_d_state": 128, "vocab_size": 100352,
    "layer_types": ["attention" if k in (5, 15, 25, 35) else "mamba" for k in range(40)], "tie_word_embeddings": True,
}  # fmt: skip
_BAMBA: dict[str, Any] = {
    "model_type": "bamba", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 32, "attn_layer_indices": [9, 18, 27], "attn_rotary_emb": 64,
    "mamba_n_heads": 128, "mamba_d_state": 128, "vocab_size": 128256,
}  # fmt: skip
_FALCON_H1: dict[str, Any] = {
    "model_type": "falcon_h1", "hidden_size": 5120, "intermediate_size": 21504, "num_attention_heads": 20,
    "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 72, "mamba_d_ssm": 4096, "mamba_n_heads": 32,
    "mamba_d_head": 128, "mamba_d_state": 256, "mamba_n_groups": 2, "vocab_size": 261120,
}  # fmt: skip
_KIMI_LINEAR: dict[str, Any] = {
    "model_type": "kimi_linear", "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 32,
    "num_hidden_layers": 27, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "first_k_dense_replace": 1, "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1,
    "moe_intermediate_size": 1024, "vocab_size": 163840,
    "linear_attn_config": {"num_heads": 32, "head_dim": 128, "full_attn_layers": [4, 8, 12, 16, 20, 24, 27]},
}  # fmt: skip
_GLM_AIR: dict[str, Any] = {
    "model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10944, "num_attention_heads": 96,
    "num_key_value_heads": 8, "head_dim": 128, "attention_bias": True, "first_k_dense_replace": 1,
    "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 1408,
    "num_hidden_layers": 46, "vocab_size": 151552, "n_group": 1,
}  # fmt: skip
_SIGLIP: dict[str, Any] = {"hidden_size": 1152, "intermediate_size": 4304, "image_size": 896, "patch_size": 14}
_GEMMA3_4B: dict[str, Any] = {
    "model_type": "gemma3", "vision_config": _SIGLIP,
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": 34, "vocab_size": 262208,
    },
}  # fmt: skip
_MISTRAL_SMALL: dict[str, Any] = {
    "model_type": "mistral3", "spatial_merge_size": 2, "vision_config": {"patch_size": 14},
    "text_config": {
        "model_type": "mistral", "hidden_size": 5120, "intermediate_size": 32768, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 40, "vocab_size": 131072,
    },
}  # fmt: skip
_QWEN25_VL_7B: dict[str, Any] = {
    "model_type": "qwen2_5_vl", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_key_value_heads": 4, "num_hidden_layers": 28, "vocab_size": 152064,
    "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 3584},
}  # fmt: skip
_GLM5: dict[str, Any] = {
    "model_type": "glm_moe_dsa", "hidden_size": 6144, "intermediate_size": 12288, "moe_intermediate_size": 2048,
    "num_attention_heads": 64, "num_hidden_layers": 78, "first_k_dense_replace": 3, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1, "q_lora_rank": 2048, "kv_lora_rank": 512,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "index_n_heads": 32, "index_head_dim": 128,
    "index_topk": 2048, "vocab_size": 154880,
}  # fmt: skip
_DEEPSEEK_V4_FLASH: dict[str, Any] = {
    "model_type": "deepseek_v4", "hidden_size": 4096, "moe_intermediate_size": 2048, "num_attention_heads": 64,
    "num_hidden_layers": 43, "head_dim": 512, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 6,
    "q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "index_n_heads": 64, "index_head_dim": 128,
    "index_topk": 512, "sliding_window": 128, "hc_mult": 4, "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "vocab_size": 129280,
}  # fmt: skip
_MINIMAX_M3: dict[str, Any] = {
    "model_type": "minimax_m3", "hidden_size": 6144, "intermediate_size": 3072, "dense_intermediate_size": 12288,
    "shared_intermediate_size": 3072, "n_shared_experts": 1, "num_attention_heads": 64, "num_key_value_heads": 4,
    "head_dim": 128, "num_hidden_layers": 60, "num_local_experts": 128, "num_experts_per_tok": 4, "rotary_dim": 64,
    "hidden_act": "swigluoai", "moe_layer_freq": [0] * 3 + [1] * 57, "vocab_size": 200064,
    "sparse_attention_config": {
        "sparse_attention_freq": [0] * 3 + [1] * 57, "sparse_topk_blocks": 16, "sparse_block_size": 128,
        "sparse_num_index_heads": 4, "sparse_index_dim": 128,
    },
}  # fmt: skip
_OLMO2: dict[str, Any] = {
    "model_type": "olmo2", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "num_hidden_layers": 32, "vocab_size": 100352,
}  # fmt: skip
_SEED_OSS: dict[str, Any] = {
    "model_type": "seed_oss", "hidden_size": 5120, "intermediate_size": 27648, "num_attention_heads": 80,
    "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 64, "vocab_size": 155136,
}  # fmt: skip
_MINISTRAL: dict[str, Any] = {
    "model_type": "ministral", "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 36, "vocab_size": 131072, "sliding_window": 32768,
}  # fmt: skip
_ERNIE: dict[str, Any] = {
    "model_type": "ernie4_5", "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 128, "num_hidden_layers": 18, "vocab_size": 103424,
}  # fmt: skip
_ERNIE_21B: dict[str, Any] = {
    "model_type": "ernie4_5_moe", "hidden_size": 2560, "intermediate_size": 12288, "num_attention_heads": 20,
    "num_key_value_heads": 4, "num_hidden_layers": 28, "vocab_size": 103424, "moe_num_experts": 64, "moe_k": 6,
    "moe_intermediate_size": 1536, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
}  # fmt: skip

_MODERNBERT: dict[str, Any] = {
    "model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"], "hidden_size": 768,
    "intermediate_size": 1152, "num_attention_heads": 12, "num_hidden_layers": 22, "vocab_size": 50368,
    "global_attn_every_n_layers": 3, "local_attention": 128, "max_position_embeddings": 8192,
}  # fmt: skip

FURTHER: dict[str, tuple[dict[str, Any], int]] = {
    "bert-base, without a head": (config("bert-base", architectures=["BertModel"]), 109_482_240),
    "bert-large, without a head": (config("bert-large", architectures=["BertModel"]), 335_141_888),
    "bert-base, pre-training": (config("bert-base", architectures=["BertForPreTraining"]), 110_106_428),
    "opt-350m": (_OPT_350M, 331_196_416),
    "modernbert-base": (_MODERNBERT, 149_655_232),
    "modernbert-large": (
        _MODERNBERT
        | {"hidden_size": 1024, "intermediate_size": 2624, "num_attention_heads": 16, "num_hidden_layers": 28},
        395_881_664,
    ),
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
    "qwen3-next-80b": (_QWEN3_NEXT, 79_674_391_296),
    "nemotron-3-nano": (_NEMOTRON_NANO, 31_577_940_288),
    "codestral-mamba": (_CODESTRAL_MAMBA, 7_285_403_648),
    "granite-4.0-h-tiny": (_GRANITE_TINY, 6_939_037_248),
    "bamba-9b": (_BAMBA, 9_780_235_392),
    "falcon-h1-34b": (_FALCON_H1, 33_642_221_312),
    "kimi-linear-48b": (_KIMI_LINEAR, 49_122_681_728),
    "olmo-2-7b": (_OLMO2, 7_298_617_344),
    "olmo-3-7b": (_OLMO2 | {"model_type": "olmo3", "vocab_size": 100278}, 7_298_011_136),
    "seed-oss-36b": (_SEED_OSS, 36_151_104_512),
    "ministral-8b": (_MINISTRAL, 8_019_808_256),
    "ernie-4.5-0.3b": (_ERNIE, 360_748_032),
    "ernie-4.5-21b": (_ERNIE_21B, 21_825_437_888),
    "glm-5": (_GLM5, 743_911_218_432),
    "deepseek-v4-flash": (_DEEPSEEK_V4_FLASH, 284_332_222_935),
    "minimax-m3": (_MINIMAX_M3, 426_174_572_928),
    "glm-4.5-air": (_GLM_AIR, 106_852_251_264),
    "gemma-3-4b": (_GEMMA3_4B, 4_300_079_472),
    "mistral-small-3.1": (_MISTRAL_SMALL, 24_011_361_280),
    "qwen2.5-vl-7b": (_QWEN25_VL_7B, 8_292_166_656),
}
PUBLISHED = {name: (config(name), count) for name, count in BUILT_IN.items()} | FURTHER
