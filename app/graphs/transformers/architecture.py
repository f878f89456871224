"""What a transformer is made of: traits that a configuration is read into, and from which one lowering writes rows.

Sizes are of the whole model, in elements; splitting them over devices is the lowering's. `False`, 0 and None mean that
the part is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Layers' order: norm before each part; after each residual sum; before and after each part; or one norm for both
# parts side by side (GPT-J, Phi).
Order = Literal["pre", "post", "sandwich", "parallel"]
NormKind = Literal["layer_norm", "rms_norm"]


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, 2024): what queries and keys are compressed to.

    query      features that queries pass through (0: none), normalised
    keys       features that keys and values are kept as, normalised
    plain      elements of a head without position, beside `Attention.rotary` with
    value      elements of a head's value
    """

    query: int
    keys: int
    plain: int
    value: int


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention, and how its Hugging Face module computes it.

    heads, kv_heads, head_dim  query heads, heads of keys and values, elements of each
    one_linear   queries, keys and values come from one linear
    bias, out_bias  of these linears, and of the one after
    rotary       elements of a head that turn with position
    head_norm    queries and keys are normalised per head
    scale        where 1 / sqrt(head_dim) is multiplied, in eager
    mask         how eager hides keys; `selected` overwrites scores, `added` adds to them
    biased       scores get a bias per pair and head (T5), stored as they are or with heads last
    softcap      scores pass through a scaled tanh (Gemma 2)
    window       keys that a query looks back on, itself included
    floored      eager keeps masked scores from passing the least number there is (OPT)
    copied       when eager copies queries, keys and values to the layout of the product: `batched`, where heads and
                 sequences are two strides that only one sequence makes one
    latent       multi-head latent attention
    """

    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    one_linear: bool = False
    bias: bool = False
    out_bias: bool = False
    rotary: int = 0
    head_norm: bool = False
    scale: Literal["divided", "multiplied", "queries", "none"] = "multiplied"
    mask: Literal["added", "selected", "none"] = "added"
    biased: Literal["no", "heads_first", "heads_last"] = "no"
    softcap: bool = False
    window: int = 0
    floored: bool = False
    copied: Literal["never", "batched", "always"] = "never"
    latent: Latent | None = None


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Two linears around an activation; `gated`: a third, multiplied in; `one_linear`: both of these in one.

    drops   training drops some of what is inside (T5)
    """

    inner: int
    activation: str
    gated: bool = False
    bias: bool = False
    one_linear: bool = False
    drops: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of `count` experts, `top_k` per token.

    each         one expert
    capacity     most tokens of a sequence that one expert takes (Switch); 0: all
    shared       an expert that every token passes through
    shared_gate  its result is scaled by a learned figure per token (Qwen2-MoE)
    router_bias  a figure per expert beside the router's weights
    jitter       training multiplies noise into what is routed
    """

    count: int
    top_k: int
    each: FeedForward
    capacity: int = 0
    shared: FeedForward | None = None
    shared_gate: bool = False
    router_bias: bool = False
    jitter: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention, attention on the encoder's output (`cross`), and a feed-forward part."""

    attention: Attention
    feed_forward: FeedForward | Experts
    order: Order = "pre"
    cross: Attention | None = None


@dataclass(frozen=True, slots=True)
class Patches:
    """An image cut into squares of `size` pixels of `channels`, on a side of `image_size`."""

    image_size: int
    size: int
    channels: int

    @property
    def count(self) -> int:
        """Squares of an image."""
        return (self.image_size // self.size) ** 2


@dataclass(frozen=True, slots=True)
class Embedding:
    """What tokens become on entering.

    vocabulary  rows of the table of words, `width` wide (then brought to the stack's width where it differs)
    positions   rows of a learned table of positions; `reach` of them may be used
    segments    rows of a table of segments (BERT)
    norm        a norm follows
    scaled      multiplied by a constant (Gemma)
    drops       training drops some of it
    shared      the table is another stack's
    patches     an image's in place of words
    """

    width: int
    vocabulary: int = 0
    positions: int = 0
    reach: int = 0
    segments: int = 0
    norm: bool = False
    scaled: bool = False
    drops: bool = False
    shared: bool = False
    patches: Patches | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """Layers that follow one another: each distinct one with how often it occurs.

    relative   buckets of a bias by distance that all layers add to their scores, computed once (T5)
    """

    width: int
    embedding: Embedding
    layers: tuple[tuple[Layer, int], ...]
    norm: NormKind
    final_norm: bool = True
    relative: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """What follows the last layer: any of these, in this order.

    pooled       a linear and tanh on each sequence's first token
    vocabulary   a linear to words, on all tokens
    tied         its weights are the embedding's
    transform    activation of a linear and a norm before it (BERT)
    labels       a linear to labels, on each `of`
    """

    pooled: bool = False
    vocabulary: int = 0
    tied: bool = False
    bias: bool = False
    transform: str = ""
    scaled: bool = False
    softcap: bool = False
    labels: int = 0
    labels_bias: bool = True
    of: Literal["token", "sequence"] = "sequence"


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model: a decoder, an encoder, or an encoder and then a decoder.

    generates     whether it writes one token after another (prefill and decode exist)
    drops, drops_attention  whether training drops activations, and attention weights
    """

    stacks: tuple[Stack, ...]
    head: Head
    generates: bool = True
    drops: bool = False
    drops_attention: bool = False
