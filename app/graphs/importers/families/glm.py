"""GLM-4.5 to 4.7 (Zhipu, 2025): grouped heads, dense layers first, then routed and shared experts."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import Fields
from app.graphs.importers.families.deepseek import dense_first
from app.graphs.importers.families.llama import heads_of
from app.graphs.transformers.architecture import Architecture


def glm4_moe(fields: Fields) -> Architecture:
    """GLM-4.5, 4.6 and 4.7: half of a head is rotated."""
    heads = heads_of(fields)
    turned = int(heads.head_dim * fields.share("partial_rotary_factor", default=0.5))
    bias, normed = fields.flag("attention_bias", default=False), fields.flag("use_qk_norm", default=False)
    return dense_first(fields, replace(heads, bias=bias, rotary=turned, head_norm=normed), router_bias=True)
