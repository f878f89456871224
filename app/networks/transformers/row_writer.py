"""Writer of a transformer's rows on one device: linear layers, norms, activations and collectives of a run.

`eager` writes one row per kernel that the Hugging Face module launches in PyTorch: RMS norms and tanh-GELU in parts (as
in NeuSight's graphs), and in 16 bits the norms in FP32. So does training in PyTorch under fused attention, unless it is
compiled (`in_parts`). Otherwise norms, activations and rotary embeddings are one kernel each, as serving stacks fuse
them. A broadcast constant operand (a mask of keys, a scale) costs no traffic: such rows are scalar operators.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from app.networks.build import ADAPTER, FP32_BYTES, Builder
from app.networks.roles import QUANTISED
from app.networks.run import Formats, Run, spanned
from app.networks.transformers.architecture import Architecture, NormKind
from app.ops import OP_CODE
from app.ops.attention import HYBRIDS
from app.ops.collective import CUSTOM, NCCL
from app.ops.elementwise import MASK_BYTES
from app.stacks.registry import code_of
from app.tables.ops import (
    DTYPE_BYTES,
    DTYPE_CODE,
    EXPERT_DTYPES,
    OUTPUT_BYTES,
    WEIGHT_BYTES,
    WEIGHT_DTYPES,
    WEIGHT_ONLY_DTYPES,
)
from app.tables.workload import Workload

# Producer rows of a tensor.
Flow = tuple[int, ...]

# Part of `Formats` of a linear layer, by the first word of its name; others are `linear`.
_PART_OF = {"attention": "attention", "cross": "attention", "mixer": "recurrence", "shared": "shared"}
# Products that are modules with adapters by Hugging Face's names, alone or merged with others.
_LAYERS_OF = {
    "q_proj": ("query", "qkv", "query_up", "qkv_down"),
    "k_proj": ("key", "qkv", "key_up", "qkv_down"),
    "v_proj": ("value", "qkv", "value_up", "qkv_down"),
    "o_proj": ("output",),
    "gate_proj": ("gate", "gate_up"),
    "up_proj": ("up", "gate_up"),
    "down_proj": ("down",),
}
# Format of all but the linear layers, where it differs from theirs: low-precision products write BF16.
_BESIDE = {"fp8": "bf16", "fp8_block": "bf16", "int8": "bf16", "nvfp4": "bf16", "tf32": "fp32"}
_BESIDE |= dict.fromkeys(WEIGHT_DTYPES, "bf16")

# Bytes moved per element of an operand to quantise it for training, from 16 bits and in the two orientations that the
# products read. TransformerEngine: FP8 with current scaling reads for the largest magnitude first; MXFP8 writes both
# orientations at once; NVFP4 (NVIDIA 2025, arXiv 2509.25149) reads for the largest magnitude, and a third time for the
# Hadamard transform of the second orientation.
_QUANTISED_BYTES = {"fp8": 4.0 + 2.0, "mxfp8": 2.0 + 2.0 + 1.0 / 16.0, "nvfp4": 6.0 + 1.0 + 1.0 / 8.0}
# Formats of the products that LayerRules.products_of is about.
_BORROWED = ("fp8", "nvfp4")
_OF_SEQUENCES = ("all_gather", "reduce_scatter")
_TANH_GELU = ("mul_scalar", "pow_scalar", "mul_scalar", "add", "mul_scalar", "tanh", "add_scalar", "mul")
# Activations by Hugging Face's names: kernels in eager (binary ones also read the activation's input), and fused.
ACTIVATIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "relu": (("relu",), "relu"),
    "relu2": (("relu", "pow_scalar"), "relu"),  # squared (Nemotron)
    "gelu": (("gelu",), "gelu"),
    "gelu_pytorch_tanh": (("gelu",), "gelu"),
    "gelu_new": (_TANH_GELU, "gelu"),
    "gelu_fast": (_TANH_GELU, "gelu"),
    "silu": (("silu",), "silu"),
    "swish": (("silu",), "silu"),
    "quick_gelu": (("mul_scalar", "tanh", "mul"), "silu"),  # x sigmoid(1.702 x) (CLIP): a sigmoid is a shifted tanh
    # Gates that limit the linear part too: clamped and shifted (MiniMax-M3), by a tanh on both parts (SiTU, Kimi-K3).
    "swigluoai": (("silu",), "silu"),
    "situ": (("silu", "tanh"), "silu"),
    "tanh": (("tanh",), "tanh"),
    # A square or an exponential, by the sign, beside a linear part (Apertus).
    "xielu": (("pow_scalar", "tanh", "mul_scalar", "add"), "silu"),
}


class RowWriter:
    """Adds the rows of a model's parts to one Builder, with the formats and parallelism of a run."""

    def __init__(self, architecture: Architecture, run: Run) -> None:
        parallelism = run.parallelism
        self.run = run
        self.norm_kind: NormKind = architecture.stacks[-1].norm
        self.tensor = parallelism.tensor
        self.dtype = _BESIDE.get(run.dtype, run.dtype)
        self.linear_dtype = self.dtype if run.dtype in EXPERT_DTYPES else run.dtype
        self.product_dtype = "tf32" if run.dtype == "tf32" else self.dtype
        formats = run.formats or Formats()
        self.expert_dtype = formats.experts or run.dtype
        self.head_dtype = formats.head or self.product_dtype
        self.size = float(DTYPE_BYTES[DTYPE_CODE[self.dtype]])
        self.kv_code = float(DTYPE_CODE[run.kv_dtype]) if run.kv_dtype else np.nan
        self.kv_size = float(DTYPE_BYTES[DTYPE_CODE[run.kv_dtype or self.dtype]])
        self.eager = run.attention == "eager"
        plain = run.mode == "training" and run.release.kernels is None and not run.fused
        self.in_parts = self.eager or (plain and not run.of_images)
        self.caches = run.mode in ("prefill", "decode")
        self.drops = architecture.drops and run.mode == "training"
        self.drops_attention = architecture.drops_attention and run.mode == "training"
        # Sequence parallelism: between the parts of a layer each device holds its share of the tokens.
        self.split = self.tensor if parallelism.sequence else 1
        self.together = parallelism.pipeline == 1  # first and last stage are the same: tied weights are stored once
        self.idle = 0.0  # weights of a stack that does not run, counted with the first row's
        self.encoded_tokens = 0.0  # tokens of the encoder, which a decoder attends to
        self.nodes = spanned(self.tensor, 1, run)
        self.rules = run.rules
        kind = architecture.hybrid if self.rules.tells_hybrids else None
        self.hybrid_code = float(HYBRIDS.index(kind)) if kind in HYBRIDS else np.nan
        # Weights of norms that a collective computes, counted with the product that follows.
        self.norm_weights = 0.0
        self.builder = Builder(self.dtype, run.release.column, frozen=run.adapter_rank > 0)

    def built(self) -> Workload:
        """Return the rows. Of a sequence that backward gathers again a device's share alone is saved.

        Products read it as it is, or quantised (Korthikanti et al. 2022, section 4.2.2).
        """
        w = self.builder.build()
        if self.split == 1 or not self.rules.gathers_again:
            return w
        shared = w.ops.kind == OP_CODE["all_gather"]
        read = w.edges[1, shared[w.edges[0]]].tolist()
        shared[[row for row in read if w.names[row].endswith(QUANTISED)]] = True
        return replace(w, saved_bytes=np.where(shared, w.saved_bytes / self.split, w.saved_bytes))

    def add(self, op: str, x: Flow = (), **row: Any) -> Flow:
        """Add an operator that reads `x`, and return its row; `row` are further arguments of `Builder.add`."""
        return (self.builder.add(op, x, **row),)

    def linear(  # noqa: PLR0913  a product's sizes, and what it holds
        self,
        x: Flow,
        m: float,
        n: float,
        k: float,
        name: str,
        *,
        bias: bool = False,
        dtype: str | None = None,
        parameters: float | None = None,
        count: float = 1.0,
    ) -> Flow:
        """Add `count` products y[m, n] = x[m, k] W + bias, and return their row."""
        dtype = dtype or self.format_of(name)
        x = self._quantised(x, (m, n, k), dtype, name, count)
        if self.run.mode == "training" and dtype in WEIGHT_ONLY_DTYPES:
            x, dtype, parameters = self._widened(x, (m, n, k), dtype, name, count), self.dtype, 0.0
        held = (n * k + n if bias else n * k) if parameters is None else parameters
        held, self.norm_weights = held + self.norm_weights / count, 0.0
        y = self.add(
            "linear", x, outputs=count * m * n, name=name, dtype=dtype, parameters=count * held,
            m=m, n=n, k=k, count=count, **self._product_stack(dtype),
        )  # fmt: skip
        return self._adapted(y, x, (m, n, k), name, count)

    def _quantised(self, x: Flow, sizes: tuple[float, float, float], dtype: str, name: str, count: float) -> Flow:
        """Add the quantisation of a product's operands in training; return the rows of the first."""
        key = "mxfp8" if self.run.microscaled and dtype == "fp8" else dtype
        if self.run.mode != "training" or key not in _QUANTISED_BYTES:
            return x
        m, n, k = sizes
        # Forward handles the input, backward the output's gradient: half of both in either.
        moved, code = 0.5 * count * m * (k + n) * _QUANTISED_BYTES[key], DTYPE_CODE[dtype]
        kept = count * m * k * float(DTYPE_BYTES[code] / OUTPUT_BYTES[code])
        return self.add("memory", x, outputs=kept, saved=0.0, name=f"{name}{QUANTISED}", dtype=dtype, bytes=moved)

    def _widened(self, x: Flow, sizes: tuple[float, float, float], dtype: str, name: str, count: float) -> Flow:
        """Add the widening of frozen weights to 16 bits, for a product in either pass (QLoRA, Dettmers et al. 2023)."""
        m, n, k = sizes
        each = float(WEIGHT_BYTES[DTYPE_CODE[dtype]]) + self.size
        return self.add(
            "memory", x, outputs=count * m * k, saved=0.0, name=f"{name}.widened", dtype=dtype,
            parameters=count * n * k, bytes=count * n * k * each,
        )  # fmt: skip

    def _adapted(self, y: Flow, x: Flow, sizes: tuple[float, float, float], name: str, count: float) -> Flow:
        """Add the low-rank adapter beside a linear layer that has one (LoRA, Hu et al. 2021), and return the sum."""
        rank, (part, _, layer) = self.run.adapter_rank, name.partition(".")
        adapted = any(layer in _LAYERS_OF[module] for module in self.run.adapted) and part in (*_PART_OF, "mlp")
        if not self.run.adapted:
            adapted = _PART_OF.get(part) == "attention"
        if not rank or not adapted or count != 1.0:
            return y
        m, n, k = sizes
        low = self.linear(x, m, rank, k, f"{ADAPTER}.down", dtype=self.dtype)
        wide = self.linear(low, m, n, rank, f"{ADAPTER}.up", dtype=self.dtype)
        return self.each("add", (*y, *wide), m, n, f"{ADAPTER}.sum")

    def format_of(self, name: str) -> str:
        """Return the format of a linear layer by its name, whose first word is its part of the layer."""
        formats = self.run.formats
        if formats is None:
            return self.linear_dtype
        part = _PART_OF.get(name.partition(".")[0], "linear")
        return getattr(formats, part) or self.dtype

    def _product_stack(self, dtype: str) -> dict[str, float]:
        """Return the column of another stack whose products are measured as this one's run in a CUDA graph, if any."""
        owner = self.rules.products_of
        return {"stack": code_of(owner)} if owner is not None and dtype in _BORROWED else {}

    def bmm(self, x: Flow, sizes: tuple[float, float, float, float], name: str, **row: Any) -> Flow:
        """Add `b` products (m x k)(k x n), and return their row; `sizes` are b, m, n, k."""
        b, m, n, k = sizes
        dtype = row.pop("dtype", self.product_dtype)
        return self.add("bmm", x, outputs=b * m * n, name=name, dtype=dtype, b=b, m=m, n=n, k=k, **row)

    def each(
        self, op: str, x: Flow, b: float, h: float, name: str, count: float = 1.0, dtype: str | None = None
    ) -> Flow:
        """Add an element-wise operator, softmax or copy on `b` vectors of `h` elements, and return its row."""
        return self.add(op, x, outputs=count * b * h, name=name, b=b, h=h, count=count, dtype=dtype)

    def norm(self, x: Flow, b: float, h: float, name: str, kind: NormKind | None = None) -> Flow:
        """Add a norm of `b` vectors of `h` elements, and return its output row."""
        kind = kind or self.norm_kind
        if kind != "rms_norm" or not self.in_parts:
            op = "rms_norm" if kind == "rms_norm" else "layer_norm"
            return self.add(op, x, outputs=b * h, name=name, parameters=_norm_weights(kind, h), b=b, h=h)
        wide, dtype = (FP32_BYTES, "fp32") if self.in_parts and not self.eager else (self.size, self.dtype)
        widened = wide != self.size
        if widened:
            x = self._cast(x, b * h, f"{name}.widened", "fp32")
        squares = self.each("pow_scalar", x, b, h, f"{name}.pow", dtype=dtype)
        mean = self.add("memory", squares, outputs=b, name=f"{name}.mean", bytes=b * (h + 1.0) * wide, dtype=dtype)
        shifted = self.each("add_scalar", mean, b, 1.0, f"{name}.epsilon", dtype=dtype)
        root = self.each("pow_scalar", shifted, b, 1.0, f"{name}.rsqrt", dtype=dtype)
        scaled = self.each("mul", (*x, *root), b, h, f"{name}.scale", dtype=dtype)
        if widened:
            scaled = self._cast(scaled, b * h, f"{name}.narrowed", self.dtype)
        return self.add("mul", scaled, outputs=b * h, name=f"{name}.weight", parameters=h, b=b, h=h)

    def _cast(self, x: Flow, elements: float, name: str, dtype: str) -> Flow:
        """Add the cast of 16 bits to FP32 or back, as which format it writes."""
        return self.add(
            "memory", x, outputs=elements, name=name, bytes=elements * (self.size + FP32_BYTES), dtype=dtype
        )

    def entering_norm(self, x: Flow, b: float, h: float, name: str, kind: NormKind | None = None) -> Flow:
        """Add the norm that a part begins with, and the residual sum before it where the stack fuses these."""
        kind = kind or self.norm_kind
        if not self.rules.adds_in_norm:
            return self.norm(x, b, h, name, kind)
        held = _norm_weights(kind, h)
        if self.rules.norms_in_sum and self.tensor > 1:
            self.norm_weights += held
            return x
        return self.add("add_norm", x, outputs=b * h, name=name, parameters=held, b=b, h=h)

    def activation(self, x: Flow, b: float, h: float, function: str, name: str) -> Flow:
        """Add an activation `function` by its Hugging Face name, and return its output row."""
        steps, fused = ACTIVATIONS[function]
        if not self.eager:
            return self.each(fused, x, b, h, name)
        y = x
        for op in steps:
            y = self.each(op, (*x, *y) if op in ("add", "mul") else y, b, h, f"{name}.{op}" if len(steps) > 1 else name)
        return y

    def dropout(self, x: Flow, b: float, h: float, *, attention: bool = False, count: float = 1.0) -> Flow:
        """Add dropout, which saves its mask, if training applies it here; return the output rows."""
        if not (self.drops_attention if attention else self.drops):
            return x
        elements = count * b * h
        mask = elements * MASK_BYTES / self.size
        return self.add("dropout", x, outputs=elements, name="dropout", saved=mask, b=b, h=h, count=count)

    def residual(self, x: Flow, y: Flow, tokens: float, width: float) -> Flow:
        """Add the residual sum of x and y on this device's tokens, and return its row.

        Where the stack adds in the norm that follows, the rows of x and y are returned.
        """
        if self.rules.adds_in_norm:
            return (*dict.fromkeys((*x, *y)),)
        rows = tokens / self.split
        return self.each("add", (*x, *self.dropout(y, rows, width)), rows, width, "residual")

    def summed(self, x: Flow, tokens: float, width: float) -> Flow:
        """Add the sum over the tensor-parallel group: all_reduce, or reduce_scatter with sequence parallelism."""
        return self.collective("reduce_scatter" if self.split > 1 else "all_reduce", x, tokens, width)

    def gathered(self, x: Flow, tokens: float, width: float) -> Flow:
        """Add the all_gather of the tensor-parallel group's tokens; none without sequence parallelism."""
        return self.collective("all_gather", x, tokens, width) if self.split > 1 else x

    def collective(self, op: str, x: Flow, tokens: float, width: float) -> Flow:
        """Add a collective of the tensor-parallel group on tokens x width elements; none on one device."""
        if self.tensor == 1:
            return x
        whole = tokens * width
        outputs = whole / self.tensor if op == "reduce_scatter" else whole
        # Beside its product a collective takes the time of its first or last shard.
        exposed = 1.0 / self.tensor if self.run.parallelism.tensor_overlap and op in _OF_SEQUENCES else 1.0
        own = self.rules.sums_itself and not self.run.release.sums_by_library
        kernel = CUSTOM if own and op == "all_reduce" else NCCL
        return self.add(
            op, x, outputs=outputs, saved=0.0, name=op, message_bytes=whole * self.size, devices=self.tensor,
            count=exposed, nodes=self.nodes, implementation=kernel,
        )  # fmt: skip


def _norm_weights(kind: NormKind, h: float) -> float:
    """Return the weights of a norm of `h` features."""
    return {"layer_norm": 2.0 * h, "weightless_layer_norm": 0.0}.get(kind, h)
