"""Transformers in PyTorch, built from the graphs' Architecture: the same networks are predicted.

They are single encoders or decoders of dense layers. `eager` computes the operations of the Hugging Face module;
otherwise PyTorch's own attention, norms and activations are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from app.networks.importers.hf import read
from app.networks.transformers.architecture import (
    Architecture,
    Attention,
    Embedding,
    FeedForward,
    Head,
    Layer,
    NormKind,
)

_ROTARY_BASE = 10_000.0
_EPSILON = 1e-5
_DROPPED = 0.1
_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "swish": functional.silu,
    "tanh": torch.tanh,
}


def transformer(config: Mapping[str, Any], *, eager: bool, last_only: bool = False) -> Transformer:
    """Return the network of a dense configuration; with `last_only`, logits are of each sequence's last token only."""
    return Transformer(read(config), eager=eager, last_only=last_only)


class Transformer(nn.Module):
    """Maps tokens [batch, sequence] to logits, pooled features or labels."""

    def __init__(self, architecture: Architecture, *, eager: bool, last_only: bool) -> None:
        super().__init__()
        (stack,) = architecture.stacks
        drop, drop_attention = (_DROPPED * drops for drops in (architecture.drops, architecture.drops_attention))
        self.embedding = _Embedded(stack.embedding, stack.norm, eager, drop)
        self.layers = nn.ModuleList(
            _Layer(layer, stack.width, stack.norm, eager, (drop, drop_attention))
            for layer, repeats in stack.layers
            for _ in range(repeats)
        )
        self.norm = _norm(stack.norm, stack.width, eager) if stack.final_norm else nn.Identity()
        tied = self.embedding.words if architecture.head.tied else None
        self.head = _Head(architecture.head, stack.width, stack.norm, eager, tied)
        self.last_only = last_only

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the head's outputs: logits [batch, sequence or 1, vocabulary], labels, or features."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        outputs: tuple[torch.Tensor, ...] = self.head(x[:, -1:] if self.last_only else x)
        return outputs


class _Embedded(nn.Module):
    """Embedding of tokens, positions and segments."""

    def __init__(self, spec: Embedding, norm: NormKind, eager: bool, drop: float) -> None:
        super().__init__()
        self.words = nn.Embedding(spec.vocabulary, spec.width)
        self.positions = nn.Embedding(spec.positions, spec.width) if spec.positions else None
        self.segments = nn.Embedding(spec.segments, spec.width) if spec.segments else None
        self.norm = _norm(norm, spec.width, eager) if spec.norm else nn.Identity()
        self.scale = math.sqrt(spec.width) if spec.scaled else None
        self.drop = nn.Dropout(drop * spec.drops)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(tokens))
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        if self.scale is not None:
            x = x * self.scale
        dropped: torch.Tensor = self.drop(self.norm(x))
        return dropped


class _Layer(nn.Module):
    """Attention and a feed-forward part, each with its norm before it or after the sum."""

    def __init__(self, layer: Layer, width: int, norm: NormKind, eager: bool, drops: tuple[float, float]) -> None:
        super().__init__()
        assert isinstance(layer.attention, Attention)
        assert isinstance(layer.feed_forward, FeedForward)
        self.before = layer.order == "pre"
        self.parts = nn.ModuleList(
            [_Attention(layer.attention, width, eager, drops[1]), _FeedForward(layer.feed_forward, width, eager)]
        )
        self.norms = nn.ModuleList(_norm(norm, width, eager) for _ in self.parts)
        self.drop = nn.Dropout(drops[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part, norm in zip(self.parts, self.norms, strict=True):
            x = x + self.drop(part(norm(x))) if self.before else norm(x + self.drop(part(x)))
        return x


class _Attention(nn.Module):
    """Attention to all tokens, to earlier tokens, or within a window of them."""

    def __init__(self, spec: Attention, width: int, eager: bool, drop: float) -> None:
        super().__init__()
        self.spec, self.eager, self.dropped = spec, eager, drop
        self.sizes = [heads * spec.head_dim for heads in (spec.heads, spec.kv_heads, spec.kv_heads)]
        wide = [sum(self.sizes)] if spec.one_linear else self.sizes
        self.inputs = nn.ModuleList(nn.Linear(width, size, bias=spec.bias) for size in wide)
        self.output = nn.Linear(self.sizes[0], width, bias=spec.out_bias)
        self.norms = nn.ModuleList(_norm("rms_norm", spec.head_dim, eager) for _ in range(2 * spec.head_norm))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        qkv = [linear(x) for linear in self.inputs]
        parts = qkv[0].split(self.sizes, -1) if self.spec.one_linear else qkv
        q, k, v = (part.view(batch, tokens, -1, self.spec.head_dim) for part in parts)
        if self.norms:
            q, k = (norm(heads) for norm, heads in zip(self.norms, (q, k), strict=True))
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        if self.spec.rotary:
            q, k = _turned(q, k, self.spec.rotary)
        y = (self._eager if self.eager else self._fused)(q, k, v)
        out: torch.Tensor = self.output(y.transpose(1, 2).reshape(batch, tokens, -1))
        return out

    def _eager(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        groups = self.spec.heads // self.spec.kv_heads
        if groups > 1:
            k, v = (heads.repeat_interleave(groups, 1) for heads in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(self.spec.head_dim)
        if self.spec.causal:
            scores = scores.masked_fill(~self._seen(q), torch.finfo(q.dtype).min)
        weights = functional.dropout(scores.softmax(-1), self.dropped, self.training)
        return weights @ v

    def _fused(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        windowed = 0 < self.spec.window < q.shape[2]
        return functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=self._seen(q) if windowed else None,
            dropout_p=self.dropped * self.training,
            is_causal=self.spec.causal and not windowed,
            enable_gqa=self.spec.heads != self.spec.kv_heads,
        )

    def _seen(self, q: torch.Tensor) -> torch.Tensor:
        """Return True for keys that each query sees, bool [tokens, tokens]."""
        tokens = q.shape[2]
        every = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).tril()
        return every.triu(1 - self.spec.window) if self.spec.window else every


def _turned(q: torch.Tensor, k: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
    """Return heads with rotary positions in their first `size` elements (Su et al. 2021)."""
    half = torch.arange(0, size, 2, device=q.device) / size
    angles = torch.outer(torch.arange(q.shape[2], device=q.device), _ROTARY_BASE**-half).repeat(1, 2)
    cosine, sine = angles.cos().to(q.dtype), angles.sin().to(q.dtype)

    def turn(x: torch.Tensor) -> torch.Tensor:
        turning, rest = x[..., :size], x[..., size:]
        first, second = turning.chunk(2, -1)
        turned = turning * cosine + torch.cat((-second, first), -1) * sine
        return torch.cat((turned, rest), -1) if rest.shape[-1] else turned

    return turn(q), turn(k)


class _FeedForward(nn.Module):
    """Two linear layers around an activation; if gated, a third multiplies it."""

    def __init__(self, spec: FeedForward, width: int, eager: bool) -> None:
        super().__init__()
        self.spec, self.activation = spec, _activation(spec.activation, eager)
        wide = [spec.inner] * (1 + spec.gated)
        wide = [sum(wide)] if spec.one_linear else wide
        self.up = nn.ModuleList(nn.Linear(width, size, bias=spec.bias) for size in wide)
        self.down = nn.Linear(spec.inner, width, bias=spec.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = [linear(x) for linear in self.up]
        parts = y[0].split(self.spec.inner, -1) if self.spec.one_linear else y
        inner = self.activation(parts[0]) * parts[1] if self.spec.gated else self.activation(parts[0])
        out: torch.Tensor = self.down(inner)
        return out


class _Head(nn.Module):
    """The head's pooled features, logits and labels."""

    def __init__(self, spec: Head, width: int, norm: NormKind, eager: bool, tied: nn.Embedding | None) -> None:
        super().__init__()
        self.spec, self.activation = spec, _activation(spec.transform or "tanh", eager)
        self.pool = nn.Linear(width, width) if spec.pooled else None
        self.transform = nn.Linear(width, width) if spec.transform else None
        self.norm = _norm(norm, width, eager) if spec.transform else None
        self.words = nn.Linear(width, spec.vocabulary, bias=spec.bias) if spec.vocabulary else None
        if self.words is not None and tied is not None:
            self.words.weight = tied.weight
        self.labels = nn.Linear(width, spec.labels, bias=spec.labels_bias) if spec.labels else None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pooled = torch.tanh(self.pool(x[:, 0])) if self.pool is not None else x
        outputs = []
        if self.words is not None:
            y = x
            if self.transform is not None and self.norm is not None:
                y = self.norm(self.activation(self.transform(x)))
            outputs.append(self.words(y))
        if self.labels is not None:
            outputs.append(self.labels(pooled if self.spec.of == "sequence" else x))
        return tuple(outputs) or (pooled,)


class _RmsNorm(nn.Module):
    """Root mean square norm in parts, as Hugging Face's modules compute it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + _EPSILON))


def _norm(kind: NormKind, width: int, eager: bool) -> nn.Module:
    if kind == "layer_norm":
        return nn.LayerNorm(width, eps=_EPSILON)
    return _RmsNorm(width) if eager else nn.RMSNorm(width, eps=_EPSILON)


def _activation(name: str, eager: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    return _tanh_gelu if eager and name == "gelu_new" else _ACTIVATIONS[name]


def _tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU by its tanh form in parts, as Hugging Face's GPT-2 computes it."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
