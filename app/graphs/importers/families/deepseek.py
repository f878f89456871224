"""DeepSeek-V2 and V3 (2024): latent attention, dense layers first, then routed and shared experts."""

from __future__ import annotations

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.llama import decoder, gated
from app.graphs.importers.families.mixtures import top_k
from app.graphs.transformers.architecture import Architecture, Attention, Experts, FeedForward, Latent, Layer


def deepseek_v2(fields: Fields) -> Architecture:
    """DeepSeek-V2: the router selects experts by probability."""
    return _deepseek(fields, router_bias=False)


def deepseek_v3(fields: Fields) -> Architecture:
    """DeepSeek-V3 and R1: the router has a bias per expert."""
    return _deepseek(fields, router_bias=True)


def _deepseek(fields: Fields, *, router_bias: bool) -> Architecture:
    return dense_first(fields, latent_heads(fields), router_bias=router_bias)


def latent_heads(fields: Fields) -> Attention:
    """Return the latent attention of a configuration."""
    heads = fields.size("num_attention_heads")
    bias = fields.flag("attention_bias", default=False)
    latent = Latent(
        query=fields.size("q_lora_rank", default=0),
        keys=fields.size("kv_lora_rank"),
        plain=fields.size("qk_nope_head_dim"),
        value=fields.size("v_head_dim"),
    )
    rotary = fields.size("qk_rope_head_dim")
    return Attention(heads, heads, latent.plain, bias=bias, out_bias=bias, rotary=rotary, latent=latent)


def dense_first(fields: Fields, attention: Attention, *, router_bias: bool) -> Architecture:
    """Return a decoder of `first_k_dense_replace` dense layers, then layers of routed and shared experts."""
    layers = fields.layers("num_hidden_layers")
    dense = fields.size("first_k_dense_replace", default=0, least=0, most=layers)
    count = fields.size("n_routed_experts", default=0, most=MOST_EXPERTS)
    mixed = layers - dense if count else 0
    if mixed and fields.size("moe_layer_freq", default=1) != 1:
        fields.refuse("moe_layer_freq", "must be 1: send any other network as a graph")
    parts = []
    if mixed < layers:
        parts.append((Layer(attention, gated(fields)), layers - mixed))
    if mixed:
        parts.append((Layer(attention, routed_experts(fields, router_bias=router_bias)), mixed))
    return decoder(fields, tuple(parts))


def routed_experts(fields: Fields, *, router_bias: bool) -> Experts:
    """Return the routed experts, and the shared ones as one."""
    count = fields.size("n_routed_experts", most=MOST_EXPERTS)
    each = gated(fields, "moe_intermediate_size")
    shared = fields.size("n_shared_experts", default=0, least=0, most=MOST_EXPERTS)
    always = FeedForward(shared * each.inner, each.activation, gated=True) if shared else None
    # V2 scores whole groups too, yet balances them in training; no layer of its was measured.
    grouped = router_bias and fields.size("n_group", default=8) > 1
    chosen = top_k(fields, count, default=8)
    return Experts(count, chosen, each, shared=always, router_bias=router_bias, grouped=grouped)


def latent_dense(fields: Fields) -> Architecture:
    """Return a decoder of latent attention and dense layers alone: MiniCPM3 (2024), Youtu-LLM (Tencent, 2025)."""
    tied = fields.having(tie_word_embeddings=True)
    return decoder(tied, ((Layer(latent_heads(fields), gated(fields)), fields.layers("num_hidden_layers")),))


def glm_lite(fields: Fields) -> Architecture:
    """GLM-4.7-Flash (Zhipu, 2026): DeepSeek-V3's layers, the first one dense where the configuration does not say."""
    return deepseek_v3(fields.having(first_k_dense_replace=1))


def longcat_flash(fields: Fields) -> Architecture:
    """LongCat-Flash (Meituan, 2025): two dense layers of latent attention for every part with experts.

    Some of the router's choices are experts that return their input (`zero_expert_num`), which take no time.
    """
    names = {
        "num_hidden_layers": "num_layers", "intermediate_size": "ffn_hidden_size",
        "moe_intermediate_size": "expert_ffn_hidden_size", "num_experts_per_tok": "moe_topk",
    }  # fmt: skip
    fields = fields.named(names)
    layers, count = fields.layers("num_hidden_layers"), fields.size("n_routed_experts", most=MOST_EXPERTS)
    idle = fields.size("zero_expert_num", default=0, least=0, most=MOST_EXPERTS)
    chosen = max(round(top_k(fields, count, default=12) * count / (count + idle)), 1)
    experts = Experts(count, chosen, gated(fields, "moe_intermediate_size"), router_bias=True)
    both = Layer(latent_heads(fields), gated(fields))
    return decoder(fields, ((both, 2 * layers), (Layer(None, experts), layers)))
