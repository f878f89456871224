"""Configurations as published, and the parameter counts that PyTorch reports for them."""

from typing import Any

GPT2: dict[str, Any] = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 1024, "vocab_size": 50257,
}  # fmt: skip
BERT: dict[str, Any] = {
    "model_type": "bert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
    "intermediate_size": 3072, "max_position_embeddings": 512, "vocab_size": 30522,
}  # fmt: skip
OPT: dict[str, Any] = {
    "model_type": "opt", "hidden_size": 2048, "ffn_dim": 8192, "num_attention_heads": 32, "num_hidden_layers": 24,
    "max_position_embeddings": 2048, "vocab_size": 50272, "word_embed_proj_dim": 2048,
}  # fmt: skip
LLAMA2: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "num_hidden_layers": 32, "vocab_size": 32000,
}  # fmt: skip
LLAMA3 = LLAMA2 | {"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}
MISTRAL = LLAMA2 | {
    "model_type": "mistral", "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096,
}  # fmt: skip
QWEN25: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_key_value_heads": 4, "num_hidden_layers": 28, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 36, "vocab_size": 151936,
    "tie_word_embeddings": True,
}  # fmt: skip

MIXTRAL = MISTRAL | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}
QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 48, "num_experts": 128,
    "num_experts_per_tok": 8, "vocab_size": 151936, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
QWEN15_MOE: dict[str, Any] = {
    "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
    "num_hidden_layers": 24, "num_experts": 60, "num_experts_per_tok": 4, "vocab_size": 151936,
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
    "num_key_value_heads": 1, "head_dim": 256, "num_hidden_layers": 18, "vocab_size": 256000,
}  # fmt: skip
GEMMA2: dict[str, Any] = {
    "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": 26, "vocab_size": 256000, "sliding_window": 4096,
    "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
}  # fmt: skip
GEMMA3: dict[str, Any] = {
    "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 256, "num_hidden_layers": 26, "vocab_size": 262144, "sliding_window": 512,
    "sliding_window_pattern": 6,
}  # fmt: skip
PHI2: dict[str, Any] = {
    "model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 32,
    "num_hidden_layers": 32, "partial_rotary_factor": 0.4, "vocab_size": 51200,
}  # fmt: skip
PHI3: dict[str, Any] = {
    "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32,
    "num_hidden_layers": 32, "sliding_window": 2047, "vocab_size": 32064,
}  # fmt: skip
DEEPSEEK3: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_attention_heads": 128, "num_hidden_layers": 61, "first_k_dense_replace": 3, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
DEEPSEEK2_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "num_attention_heads": 16, "num_hidden_layers": 27, "first_k_dense_replace": 1, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "q_lora_rank": None, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400,
}  # fmt: skip
VIT: dict[str, Any] = {
    "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 768, "intermediate_size": 3072,
    "num_attention_heads": 12, "num_hidden_layers": 12, "num_labels": 1000,
}  # fmt: skip
T5: dict[str, Any] = {
    "model_type": "t5", "d_model": 768, "d_ff": 3072, "d_kv": 64, "num_heads": 12, "num_layers": 12,
    "vocab_size": 32128,
}  # fmt: skip
FLAN_T5_XL: dict[str, Any] = {
    "model_type": "t5", "d_model": 2048, "d_ff": 5120, "d_kv": 64, "num_heads": 32, "num_layers": 24,
    "num_decoder_layers": 24, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "vocab_size": 32128,
}  # fmt: skip
SWITCH: dict[str, Any] = {
    "model_type": "switch_transformers", "d_model": 768, "d_ff": 3072, "d_kv": 64, "num_heads": 12, "num_layers": 12,
    "num_sparse_encoder_layers": 6, "num_sparse_decoder_layers": 6, "num_experts": 8, "expert_capacity": 64,
    "vocab_size": 32128,
}  # fmt: skip

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "gpt2": (GPT2, 124_439_808),
    "gpt2-large": (GPT2 | {"n_embd": 1280, "n_head": 20, "n_layer": 36}, 774_030_080),
    "bert-base": (BERT, 109_482_240),
    "bert-large": (
        BERT | {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24, "intermediate_size": 4096},
        335_141_888,
    ),
    "bert-base, masked words": (BERT | {"architectures": ["BertForMaskedLM"]}, 109_514_298),
    "bert-base, pre-training": (BERT | {"architectures": ["BertForPreTraining"]}, 110_106_428),
    "opt-1.3b": (OPT, 1_315_758_080),
    "llama-2-7b": (LLAMA2, 6_738_415_616),
    "llama-3-8b": (LLAMA3, 8_030_261_248),
    "mistral-7b": (MISTRAL, 7_241_732_096),
    "qwen2.5-7b": (QWEN25, 7_615_616_512),
    "qwen3-4b": (QWEN3, 4_022_468_096),
    "mixtral-8x7b": (MIXTRAL, 46_702_792_704),
    "qwen3-30b-a3b": (QWEN3_MOE, 30_532_122_624),
    "qwen1.5-moe-a2.7b": (QWEN15_MOE, 14_315_784_192),
    "gemma-2b": (GEMMA, 2_506_172_416),
    "gemma-2-2b": (GEMMA2, 2_614_341_888),
    "gemma-3-1b": (GEMMA3, 999_885_952),
    "phi-2": (PHI2, 2_779_683_840),
    "phi-3-mini": (PHI3, 3_821_079_552),
    "deepseek-v2-lite": (DEEPSEEK2_LITE, 15_706_484_224),
    "deepseek-v3": (DEEPSEEK3, 671_026_419_200),
    "vit-b-16": (VIT, 86_567_656),
    "t5-base": (T5, 222_903_552),
    "flan-t5-xl": (FLAN_T5_XL, 2_849_757_184),
    "switch-base-8": (SWITCH, 619_339_008),
}
