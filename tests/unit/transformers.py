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
}
