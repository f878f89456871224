"""Writer of a denoiser's rows on one device.

In PyTorch (no serving stack) each kernel that the Diffusers module launches is a row: modulation, gates and rotary
positions in parts, and norms of heads and rotary positions in FP32 with their casts. Otherwise norms with their
modulation, gates with their residual sum, and rotary positions are one kernel each, as serving stacks fuse them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from app.networks.build import FP32_BYTES
from app.networks.diffusion.architecture import HeadNorm, Sizes
from app.networks.run import Run
from app.networks.transformers.architecture import Architecture, Embedding, Head, NormKind, Stack
from app.networks.transformers.row_writer import Flow, RowWriter


class Tokens(NamedTuple):
    """Samples of a device, rows and columns of a frame's tokens, latent frames' tokens, and tokens of the text."""

    batch: float
    high: float
    wide: float
    frames: float
    text: float

    @property
    def image(self) -> float:
        """Tokens of an image or a video."""
        return self.high * self.wide * self.frames


class DenoiserRows(RowWriter):
    """Adds the parts of a denoiser to one Builder; `x` are the rows that a part reads."""

    def __init__(self, width: int, run: Run) -> None:
        super().__init__(Architecture((Stack(width, Embedding(width), (), "layer_norm"),), Head()), run)
        self.eager = run.release.kernels is None

    def moved(self, x: Flow, elements: float, size: float, name: str) -> Flow:
        """Add a kernel that reads and writes `size` bytes per element in all."""
        return self.add("memory", x, outputs=elements, name=name, bytes=elements * size)

    def cast(self, x: Flow, elements: float, name: str) -> Flow:
        """Add the copy to FP32, or back from it; none where the format is FP32."""
        return x if self.size >= FP32_BYTES else self.moved(x, elements, self.size + FP32_BYTES, name)

    def fp32(self, op: str, x: Flow, b: float, h: float, name: str) -> Flow:
        """Add an operator on `b` rows of `h` elements in FP32."""
        return self.add(op, x, outputs=b * h, name=name, dtype="fp32", b=b, h=h)

    def plain_norm(
        self, x: Flow, b: float, h: float, name: str, *, affine: bool = False, precise: bool = False
    ) -> Flow:
        """Add a layer norm, with weights where `affine`; in PyTorch in FP32 where `precise`."""
        cast = self.eager and precise
        x = self.cast(x, b * h, f"{name}.cast") if cast else x
        y = self.add(
            "layer_norm", x, outputs=b * h, name=name, parameters=2.0 * h if affine else 0.0, b=b, h=h,
            dtype="fp32" if cast else None,
        )  # fmt: skip
        return self.cast(y, b * h, f"{name}.cast_back") if cast else y

    def modulated_norm(
        self, x: Flow, b: float, h: float, name: str, *, affine: bool = False, precise: bool = False
    ) -> Flow:
        """Add a layer norm, then its product with 1 + scale and the sum with a shift."""
        x = self.plain_norm(x, b, h, name, affine=affine, precise=precise)
        if not self.eager:
            return x
        return self.each("add_scalar", self.each("mul_scalar", x, b, h, f"{name}.scale"), b, h, f"{name}.shift")

    def gated_sum(self, x: Flow, b: float, h: float, name: str) -> Flow:
        """Add the product of a part's output with its gate, and the residual sum."""
        return self.summed_in(self.each("mul_scalar", x, b, h, f"{name}.gate") if self.eager else x, b, h, name)

    def summed_in(self, x: Flow, b: float, h: float, name: str) -> Flow:
        """Add the residual sum of a part's output."""
        return self.each("add", x, b, h, f"{name}.residual")

    def head_norm(self, x: Flow, tokens: float, heads: Sizes, kind: HeadNorm, name: str) -> Flow:
        """Add a norm of queries or keys of `heads` (number, elements of each)."""
        if kind == "none":
            return x
        number, size = heads
        b, h = (tokens, number * size) if kind == "whole_rms_norm" else (tokens * number, size)
        if kind == "layer_norm":
            return self.plain_norm(x, b, h, name, affine=True)
        return self.rms_norm(x, b, h, name)

    def rms_norm(self, x: Flow, b: float, h: float, name: str) -> Flow:
        """Add an RMS norm; in PyTorch its mean square in FP32, and two products."""
        norm: NormKind = "rms_norm"
        if not self.eager:
            return self.norm(x, b, h, name, norm)
        squares = self.fp32("pow_scalar", self.cast(x, b * h, f"{name}.cast"), b, h, f"{name}.pow")
        mean = self.moved(squares, b * h, FP32_BYTES, f"{name}.mean")
        scaled = self.moved((*x, *mean), b * h, self.size + FP32_BYTES, f"{name}.scale")
        scaled = self.cast(scaled, b * h, f"{name}.cast_back")
        return self.add("mul_scalar", scaled, outputs=b * h, name=f"{name}.weight", parameters=h, b=b, h=h)

    def rotated(self, x: Flow, b: float, h: float, name: str) -> Flow:
        """Add the rotary position of `b` rows of `h`, x cos + rotate(x) sin; in PyTorch in FP32."""
        if not self.eager:
            return self.each("copy", x, b, h, name)
        turned = self.each("mul_scalar", x, b, h / 2.0, f"{name}.negated")
        turned = self.each("copy", (*x, *turned), b, h, f"{name}.stacked")
        sine = self.fp32("mul_scalar", self.cast(turned, b * h, f"{name}.cast_turned"), b, h, f"{name}.sine")
        cosine = self.fp32("mul_scalar", self.cast(x, b * h, f"{name}.cast"), b, h, f"{name}.cosine")
        return self.cast(self.fp32("add", (*cosine, *sine), b, h, f"{name}.sum"), b * h, f"{name}.cast_back")

    def joined(self, x: Flow, b: float, h: float, name: str) -> Flow:
        """Add a concatenation, which PyTorch copies; others write to their place at once."""
        return self.each("copy", x, b, h, name) if self.eager else x

    def attended(
        self,
        qkv: Flow,
        heads: Sizes,
        batch: float,
        lengths: tuple[float, float],
        name: str,
        *,
        kv_heads: int | None = None,
    ) -> Flow:
        """Add fused attention of all queries to all keys; `lengths` are queries and keys of a sample."""
        (number, size), (queries, keys) = heads, lengths
        # Without a causal mask, a window as long as the keys gives the same pairs of query and key.
        return self.add(
            "attention_prefill",
            (*dict.fromkeys(qkv),),
            outputs=batch * queries * number * size,
            name=name,
            batch=batch,
            heads=number,
            kv_heads=number if kv_heads is None else kv_heads,
            head_dim=size,
            query_length=queries,
            context_length=keys + queries - 1.0,
            window=keys,
        )

    def chained(self, x: Flow, m: float, layers: Sequence[Sizes], name: str) -> Flow:
        """Add linear layers on `m` rows with an activation before all but the first."""
        for k, (inputs, outputs) in enumerate(layers):
            x = self.each("silu", x, m, inputs, f"{name}.activation") if k else x
            x = self.linear(x, m, outputs, inputs, name, bias=True)
        return x

    def fed(self, x: Flow, tokens: float, width: float, inner: float, name: str) -> Flow:
        """Add a feed-forward part: two linear layers around a GELU."""
        x = self.linear(x, tokens, inner, width, f"{name}.up", bias=True)
        x = self.each("gelu", x, tokens, inner, f"{name}.activation")
        return self.linear(x, tokens, width, inner, f"{name}.down", bias=True)

    def modulations(self, layers: Sequence[Sizes], batch: float, name: str) -> None:
        """Add the linear layers from a time step's features to shifts, scales and gates, each of its own."""
        for inputs, outputs in layers:
            self.linear(
                self.each("silu", (), batch, inputs, f"{name}.activation"), batch, outputs, inputs, name, bias=True
            )

    def turned(self, qkv: Flow, count: float, heads: Sizes, name: str) -> Flow:
        """Add the rotary positions of queries and keys of `count` tokens."""
        for part in ("query", "key"):
            qkv = (*qkv, *self.rotated(qkv, count * heads[0], heads[1], f"{name}.{part}_rotary"))
        return qkv

    def convolution(  # noqa: PLR0913  a convolution's sizes
        self,
        x: Flow,
        images: float,
        channels: tuple[float, float],
        plane: tuple[float, float],
        name: str,
        *,
        kernel: int = 1,
        stride: int = 1,
        groups: float = 1.0,
        bias: bool = True,
    ) -> Flow:
        """Add a convolution of `plane` (height, width) from and to `channels`; at stride 1 the plane keeps its size."""
        inputs, outputs = channels
        padding = (kernel - 1) / 2.0
        return self.add(
            "conv2d", x, outputs=images * plane[0] * plane[1] / stride**2 * outputs, name=name,
            parameters=inputs * outputs / groups * kernel**2 + (outputs if bias else 0.0),
            b=images, in_channels=inputs, out_channels=outputs, groups=groups,
            kernel_size_height=kernel, kernel_size_width=kernel,
            input_size_height=plane[0], input_size_width=plane[1], padding_height=padding, padding_width=padding,
            stride_height=stride, stride_width=stride,
        )  # fmt: skip
