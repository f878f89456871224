"""Description of a diffusion transformer: importers read configurations into it, one lowering writes rows from it.

A denoiser takes a latent image or video as tokens (patches), a text's tokens and a time step. Sizes are in elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

# Norms of queries and keys: none, per head, or over all heads together.
HeadNorm = Literal["none", "layer_norm", "rms_norm", "whole_rms_norm"]
# Input and output features of a linear layer.
Sizes: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Grid:
    """How images and videos become tokens.

    side      pixels per side of a token: compression of the autoencoder times the patch
    channels  latent channels per token: those of the autoencoder times the patch's area and frames
    frames    frames per latent frame after the first, as causal video autoencoders compress; 0: images only
    depth     latent frames of a token
    """

    side: int
    channels: int
    frames: int = 0
    depth: int = 1


@dataclass(frozen=True, slots=True)
class JointBlock:
    """Attention over image and text tokens together, then a feed-forward part of each (MMDiT, Esser et al. 2024).

    modulations   linear layers from the time step's features to shifts, scales and gates
    shared        text and image share all weights (CogVideoX); otherwise each has its own
    text_ends     the text's stream ends with this block: it has queries, keys and values only
    image_again   a second attention, over the image's tokens only (Stable Diffusion 3.5 medium)
    """

    inner: int
    modulations: tuple[Sizes, ...]
    head_norm: HeadNorm
    rotary: bool = False
    bias: bool = True
    shared: bool = False
    affine: bool = False
    text_ends: bool = False
    image_again: bool = False


@dataclass(frozen=True, slots=True)
class SingleBlock:
    """Attention and a feed-forward part on the same input, over image and text tokens in one stream (FLUX.1)."""

    inner: int
    modulations: tuple[Sizes, ...]
    head_norm: HeadNorm
    rotary: bool = True


@dataclass(frozen=True, slots=True)
class CrossBlock:
    """Attention over image tokens, attention to the text, a feed-forward part (PixArt, Chen et al. 2023).

    text          features of a text token
    text_heads, text_head_dim  heads of the attention to the text
    rotary, text_rotary  rotated are queries and keys of the first attention, and queries of that to the text
    linear        the first attention is linear in the tokens (SANA)
    convolves     the feed-forward part has a depthwise convolution between two gated ones (SANA)
    table         learned vectors of `width` that are added to the shared modulation
    modulations   linear layers of this block's own modulation
    modulates     first attention and feed-forward part have shifts, scales and gates; otherwise the first has a shift
    text_norm     a norm before the attention to the text
    affine        number of norms with weights
    precise       norms run in FP32
    skip          a linear layer joins the output of an earlier block (HunyuanDiT)
    """

    inner: int
    text: int
    text_heads: int
    text_head_dim: int
    head_norm: HeadNorm = "none"
    rotary: bool = False
    text_rotary: bool = False
    bias: bool = True
    linear: bool = False
    convolves: bool = False
    table: int = 0
    modulations: tuple[Sizes, ...] = ()
    modulates: bool = True
    text_norm: bool = False
    affine: int = 0
    precise: bool = False
    skip: bool = False


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Attention and a feed-forward part over the text's tokens only (HunyuanVideo's refiner)."""

    inner: int
    modulations: tuple[Sizes, ...]


Block: TypeAlias = JointBlock | SingleBlock | CrossBlock | TextBlock


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """A transformer that encodes a prompt once per image.

    tokens     of a prompt, as the pipeline pads them
    kv_heads   heads of keys and values
    gated      the feed-forward part has a gate
    biased     linear layers have biases
    eager      scores are a product, a bias and a softmax: T5's, which PyTorch's fused attention does not take
    """

    tokens: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    layers: int
    vocabulary: int
    gated: bool = False
    biased: bool = False
    eager: bool = False


@dataclass(frozen=True, slots=True)
class ImageDecoder:
    """The decoder of an autoencoder of images, from the latent to pixels.

    channels    of each level, from pixels to the latent: a level has half the side of the one before it
    blocks      residual blocks, or blocks of linear attention, of a level
    residual    levels of residual blocks, counted from the pixels; the others are of linear attention (DC-AE)
    latent      channels of the latent
    grouped     group norms before each convolution, and attention over the latent's pixels (Stable Diffusion);
                otherwise an RMS norm after the second one (DC-AE)
    """

    channels: tuple[int, ...]
    blocks: int
    residual: int
    latent: int
    grouped: bool


@dataclass(frozen=True, slots=True)
class Denoiser:
    """A diffusion transformer.

    text_tokens   tokens of a prompt, as its pipeline pads them
    conditioning  chains of linear layers on one vector per sample: time step, guidance, pooled text
    text_layers   linear layers on every token of the text
    held          further weights, which stay in memory
    blocks        each distinct block with its number of occurrences, in order
    modulation_out  linear layers to the last norm's shift and scale
    out           features of a token's output
    patch_bias    the patches' embedding has a bias
    side          pixels per side of an image by default
    encoders      the pipeline's encoders of the prompt
    decoder       of the latent; None: a video's, which is not known here
    """

    width: int
    heads: int
    head_dim: int
    grid: Grid
    text_tokens: int
    conditioning: tuple[tuple[Sizes, ...], ...]
    text_layers: tuple[Sizes, ...]
    blocks: tuple[tuple[Block, int], ...]
    modulation_out: tuple[Sizes, ...]
    out: int
    patch_bias: bool = True
    held: int = 0
    side: int = 1024
    encoders: tuple[TextEncoder, ...] = ()
    decoder: ImageDecoder | None = None
