"""Text encoders and autoencoders of the pipelines of Diffusers, by the class of their denoiser.

They have configurations of their own (`text_encoder/config.json`, `vae/config.json`), which a request does not hold:
the sizes here are those of the published pipelines, and prompts have the tokens that each pads to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from app.graphs.diffusion.architecture import ImageDecoder, TextEncoder


class Pipeline(NamedTuple):
    """What a pipeline runs once per image: its encoders of the prompt, and the decoder of images, if it has one."""

    encoders: tuple[TextEncoder, ...]
    decoder: ImageDecoder | None = None


def _t5(tokens: int, vocabulary: int = 32128) -> TextEncoder:
    """Return the encoder of T5-XXL 1.1 (Raffel et al. 2020)."""
    return TextEncoder(tokens, 4096, 64, 64, 64, 10240, 24, vocabulary, gated=True, eager=True)


_CLIP = TextEncoder(77, 768, 12, 12, 64, 3072, 12, 49408, biased=True)  # CLIP ViT-L
_OPEN_CLIP = TextEncoder(77, 1280, 20, 20, 64, 5120, 32, 49408, biased=True)  # OpenCLIP bigG
_BILINGUAL_CLIP = TextEncoder(77, 1024, 16, 16, 64, 4096, 24, 47020, biased=True)
_MT5_XL = TextEncoder(256, 2048, 32, 32, 64, 5120, 24, 250112, gated=True, eager=True)
# With the instruction that SANA puts before a prompt.
_GEMMA_2_2B = TextEncoder(512, 2304, 8, 4, 256, 9216, 26, 256000, gated=True)
# With the template of 95 tokens before the prompt.
_LLAMA_3_8B = TextEncoder(256 + 95, 4096, 32, 8, 128, 14336, 32, 128320, gated=True)

# The decoder of Stable Diffusion's autoencoder (Rombach et al. 2022), and of DC-AE with 32 x 32 (Chen et al. 2024).
_STABLE = ImageDecoder((128, 256, 512, 512), 3, 4, 4, grouped=True)
_STABLE_16 = replace(_STABLE, latent=16)
_DEEP = ImageDecoder((128, 256, 512, 512, 1024, 1024), 3, 3, 32, grouped=False)

PIPELINES: Mapping[str, Pipeline] = {
    "CogVideoXTransformer3DModel": Pipeline((_t5(226),)),
    "FluxTransformer2DModel": Pipeline((_CLIP, _t5(512)), _STABLE_16),
    "HunyuanDiT2DModel": Pipeline((_BILINGUAL_CLIP, _MT5_XL), _STABLE),
    "HunyuanVideoTransformer3DModel": Pipeline((_LLAMA_3_8B, _CLIP)),
    "PixArtTransformer2DModel": Pipeline((_t5(300),), _STABLE),
    "SD3Transformer2DModel": Pipeline((_CLIP, _OPEN_CLIP, _t5(256)), _STABLE_16),
    "SanaTransformer2DModel": Pipeline((_GEMMA_2_2B,), _DEEP),
    "WanTransformer3DModel": Pipeline((_t5(512, 256384),)),
}
