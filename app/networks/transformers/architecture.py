"""Description of a transformer's architecture: families read configurations into it, one lowering writes rows from it.

Sizes are of the whole model, in elements; the lowering splits them over devices. `False`, 0 and None mean that the part
is absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Place of norms in a layer: before each part; after each residual sum; before and after each part; after each part and
# before its residual sum (OLMo 2); one norm for both parts in parallel (GPT-J, Phi); or one for each (GPT-NeoX).
Order = Literal["pre", "post", "sandwich", "inner", "parallel", "parallel_normed"]
# A LayerNorm without bias, and an RMS norm, have one weight per feature; a weightless LayerNorm has none (OLMo).
NormKind = Literal["layer_norm", "unbiased_layer_norm", "weightless_layer_norm", "rms_norm"]


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, 2024).

    query  features that queries are compressed to (0: not compressed), normalised
    keys   features that keys and values are compressed to and cached as, normalised
    plain  elements of a head without rotary position, in addition to `Attention.rotary` with it
    value  elements of a head's value
    """

    query: int
    keys: int
    plain: int
    value: int


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention layer, and how its Hugging Face module computes it.

    heads, kv_heads, head_dim  query heads, heads of keys and values, elements of each
    one_linear   queries, keys and values come from one linear layer
    bias, out_bias  biases of these linear layers, and of the output projection
    rotary       elements of a head that are rotated with position
    head_norm    queries and keys are normalised per head
    scale        where eager applies 1 / sqrt(head_dim)
    mask         how eager masks keys: `selected` overwrites scores, `added` adds to them
    biased       scores get a bias per pair and head (T5), stored in the scores' layout or with heads last
    softcap      scores pass through a scaled tanh (Gemma 2)
    window       sliding window: keys that a query sees, itself included; without a causal mask as many before as after
    chunk        queries see only keys of their own chunk of this length (Llama 4)
    value        elements of a head's value, if other than `head_dim` (MiMo-V2)
    whole_norm   queries and keys are normalised over all heads together (OLMo 2, MiniMax-M2)
    keys_as_values  values are the keys' projection, which has no other (Gemma 4)
    gated        the output is multiplied by a gate per element, from the layer's input (Qwen3-Next)
    sinks        a learned score per head takes part in the softmax (gpt-oss)
    floored      eager clamps masked scores to the smallest finite number (OPT)
    copied       when eager copies queries, keys and values to the product's layout; `batched`: with more than one
                 sequence, whose stride then differs from the heads'
    latent       multi-head latent attention
    keys_from_earlier  an earlier layer's keys and values are attended to (Gemma 3n): no projection, no cache of its own
    relative_rows  rows of a table of positions by distance, to which contents are compared both ways (DeBERTa); 0: none
    query_rank   features that queries are compressed to and normalised before their projection (Step-3); 0: none
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
    chunk: int = 0
    value: int = 0
    whole_norm: bool = False
    keys_as_values: bool = False
    gated: bool = False
    sinks: bool = False
    floored: bool = False
    copied: Literal["never", "batched", "always"] = "never"
    latent: Latent | None = None
    keys_from_earlier: bool = False
    query_rank: int = 0
    relative_rows: int = 0

    @property
    def value_dim(self) -> int:
        """Elements of a head's value."""
        return self.value or self.head_dim


@dataclass(frozen=True, slots=True)
class AttentionModule:
    """Attention that selects or compresses keys, lowered as one operator with its projections.

    Fields are those of the operator `attention_module` (app/ops/attention_module.py), of the whole model:

    kind         how keys are kept and selected
    query_rank, output_rank  features that queries, and each of `output_groups` groups of heads, are projected through
    index_heads, index_dim, index_keys  the indexer, and the most keys that a query attends to
    compression  tokens per compressed key; 0: none
    sinks        a learned score per head takes part in the softmax
    head_norm    queries and keys are normalised per head
    """

    kind: Literal["mla", "dsa", "msa", "csa", "hca"]
    heads: int
    head_dim: int
    value_dim: int
    kv_heads: int = 1
    latent_dim: int = 0
    rope_dim: int = 0
    query_rank: int = 0
    output_rank: int = 0
    output_groups: int = 1
    index_heads: int = 0
    index_dim: int = 0
    index_keys: int = 0
    compression: int = 0
    window: int = 0
    sinks: bool = False
    head_norm: bool = False


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A layer of linear attention: projections, a short convolution, a state per head, a gated norm (Mamba2, Qwen3.5).

    kind         rule by which the state changes (app.ops.linear_attention); `mamba`: the first one's, a rate for each
                 feature; `convolution`: no state, only the short convolution between gates (LFM2)
    key_heads, value_heads, key_dim, value_dim  heads and elements of keys and of values (mamba2: groups, heads, state,
                 elements of a head)
    taps         tokens that the convolution spans; `filter_bias`: it has a bias
    chunk        tokens that prefill computes at once
    bias         the projections have biases
    decay_rank   features between the two linear layers that give a decay per element of the key (kda)
    gate_rank    the same of the output gate; 0: one linear layer
    normed       a norm follows the state: per head; or of all heads together (`whole_norm`)
    """

    kind: Literal["gdn", "kda", "mamba2", "mamba", "convolution"]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int = 4
    filter_bias: bool = False
    chunk: int = 64
    bias: bool = False
    decay_rank: int = 0
    gate_rank: int = 0
    normed: bool = True
    whole_norm: bool = False


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Two linear layers around an activation.

    gated       a third linear layer's output multiplies the activation
    one_linear  gate and up projection are one linear layer
    drops       training applies dropout inside (T5)
    clamped     the gate and what it multiplies are clamped first (GPT-OSS)
    """

    inner: int
    activation: str
    gated: bool = False
    bias: bool = False
    one_linear: bool = False
    drops: bool = False
    clamped: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of `count` experts, `top_k` per token.

    each         one expert
    capacity     most tokens of a sequence that one expert processes (Switch); 0: no limit
    latent       features that tokens are projected to before the routed experts, and back from (Nemotron 3 Super)
    shared       an expert that processes every token
    shared_gate  its output is scaled by a learned gate per token (Qwen2-MoE)
    router_bias  the router has a bias per expert
    groups       groups of experts, of which the router first chooses `of_groups`; 1: it chooses among all
    jitter       training multiplies the router's input by noise
    """

    count: int
    top_k: int
    each: FeedForward
    capacity: int = 0
    shared: FeedForward | None = None
    latent: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    groups: int = 1
    of_groups: int = 1
    jitter: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """Self-attention, attention to the encoder's output (`cross`), and a feed-forward part; any may be absent.

    beside  linear attention that runs on the same input as self-attention, their outputs added (Falcon-H1)
    """

    attention: Attention | AttentionModule | Recurrence | None
    feed_forward: FeedForward | Experts | None
    order: Order = "pre"
    cross: Attention | None = None
    beside: Recurrence | None = None


@dataclass(frozen=True, slots=True)
class Patches:
    """Square patches of `size` pixels per side with `channels`, from an image of `image_size` pixels per side.

    marked  a learned token stands before them (ViT)
    """

    image_size: int
    size: int
    channels: int
    marked: bool = True

    @property
    def count(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.size) ** 2


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of sound with `bands` features each (Whisper): two convolutions over 3 frames, the second halves them.

    count  frames after both, which have learned positions
    """

    count: int
    bands: int


@dataclass(frozen=True, slots=True)
class Embedding:
    """Embedding of tokens, image patches or frames of sound.

    vocabulary     rows of the token table, `width` wide (projected to the stack's width if that differs)
    positions      rows of a learned position table, of which `max_positions` may be used
    segments       rows of a segment table (BERT)
    norm           a norm follows
    scaled         multiplied by a constant (Gemma)
    drops          training applies dropout
    shared         the table belongs to another stack
    patches        image patches in place of tokens
    frames         frames of sound in place of tokens
    """

    width: int
    vocabulary: int = 0
    positions: int = 0
    max_positions: int = 0
    segments: int = 0
    norm: bool = False
    scaled: bool = False
    drops: bool = False
    shared: bool = False
    patches: Patches | None = None
    frames: Frames | None = None

    @property
    def fixed_tokens(self) -> int:
        """Tokens of an input of one size; 0 for text."""
        if self.patches:
            return self.patches.count + self.patches.marked
        return self.frames.count if self.frames else 0


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Inputs of every layer (Gemma 3n): `size` features from a table of `vocabulary` rows for all layers."""

    vocabulary: int
    size: int


@dataclass(frozen=True, slots=True)
class AltUp:
    """Alternating updates (Gemma 3n): a layer computes one of `streams`, the others are predicted and corrected.

    rank  features of the learned low-rank residual beside attention (LAuReL)
    """

    streams: int
    rank: int


@dataclass(frozen=True, slots=True)
class Stack:
    """A sequence of layers: each distinct layer with its number of occurrences.

    relative  buckets of a relative position bias that all layers add to their scores, computed once (T5)
    projected  features that one token of each sequence is projected to (CLIP); 0: none
    layer_inputs, altup  further inputs of every layer, and streams beside the computed one
    streams   residual streams, which hyper-connections mix around every part (DeepSeek-V4); 0: one, plainly added to
    """

    width: int
    embedding: Embedding
    layers: tuple[tuple[Layer, int], ...]
    norm: NormKind
    final_norm: bool = True
    relative: int = 0
    projected: int = 0
    layer_inputs: LayerInputs | None = None
    altup: AltUp | None = None
    streams: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """Output layers, any of these in this order.

    pooled      a linear layer and tanh on each sequence's first token
    vocabulary  logits over the vocabulary, for all tokens
    tied        the logits' weights are the embedding's
    transform   activation after a linear layer, before a norm and the logits (BERT), or labels where there are none
    transform_bias  this linear layer has a bias
    labels      a linear layer to class labels, for each `of`
    """

    pooled: bool = False
    vocabulary: int = 0
    tied: bool = False
    bias: bool = False
    transform: str = ""
    transform_bias: bool = True
    scaled: bool = False
    softcap: bool = False
    labels: int = 0
    labels_bias: bool = True
    of: Literal["token", "sequence"] = "sequence"


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model: a decoder, an encoder, an encoder followed by a decoder, or encoders of two kinds of input.

    generates               True if it generates tokens (has the modes prefill and decode)
    drops, drops_attention  True if training applies dropout to activations, and to attention weights
    towers                  weights that are kept in memory but do not run: encoders of images and sound, adapters
    mtp                     layers of multi-token prediction, each with their number; stacks that train them run them
    """

    stacks: tuple[Stack, ...]
    head: Head
    generates: bool = True
    drops: bool = False
    drops_attention: bool = False
    towers: int = 0
    mtp: tuple[tuple[Layer, int], ...] = ()

    @property
    def layers(self) -> int:
        """Number of layers, of all stacks."""
        return sum(count for stack in self.stacks for _, count in stack.layers)

    @property
    def hybrid(self) -> str | None:
        """Kind of its linear attention, the first where there are several; None without."""
        layers = (layer for stack in self.stacks for layer, _ in stack.layers)
        parts = (part for layer in layers for part in (layer.attention, layer.beside) if isinstance(part, Recurrence))
        return next((part.kind for part in parts), None)
