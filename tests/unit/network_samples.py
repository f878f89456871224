"""A small hand-made transformer as a workload, and latencies made up for it."""

from __future__ import annotations

import numpy as np

from app.networks.build import Builder
from app.ops import kinds_of, work_of
from app.tables.arrays import Floats
from app.tables.workload import Workload


def gpt2(
    *, layers: int = 36, hidden: int = 1280, heads: int = 20, batch: int = 1, sequence: int = 1024, dtype: str = "fp32"
) -> Workload:
    """GPT-2: embedding, layers, head; tied weights."""
    b, rows, width = Builder(dtype), batch * sequence, hidden // heads
    vocabulary = 50257
    b.begin()
    table = b.add(
        "embedding", outputs=rows * hidden, parameters=vocabulary * hidden, b=rows, h=hidden, vocabulary=vocabulary
    )
    b.add("add", [table], outputs=rows * hidden, parameters=sequence * hidden, b=rows, h=hidden)
    b.begin(layers)
    first = b.add("layer_norm", outputs=rows * hidden, parameters=2 * hidden, b=rows, h=hidden)
    qkv = _linear(b, [first], rows, 3 * hidden, hidden)
    scores = batch * heads * sequence * sequence
    product = b.add("bmm", [qkv], outputs=scores, b=batch * heads, m=sequence, n=sequence, k=width)
    softmax = b.add("softmax", [product], outputs=scores, b=batch * heads * sequence, h=sequence)
    context = b.add("bmm", [softmax, qkv], outputs=rows * hidden, b=batch * heads, m=sequence, n=width, k=sequence)
    attended = b.add("add", [_linear(b, [context], rows, hidden, hidden)], outputs=rows * hidden, b=rows, h=hidden)
    second = b.add("layer_norm", [attended], outputs=rows * hidden, parameters=2 * hidden, b=rows, h=hidden)
    up = _linear(b, [second], rows, 4 * hidden, hidden)
    gelu = b.add("gelu", [up], outputs=rows * 4 * hidden, b=rows, h=4 * hidden)
    down = _linear(b, [gelu], rows, hidden, 4 * hidden)
    b.add("add", [attended, down], outputs=rows * hidden, b=rows, h=hidden)
    b.begin()
    last = b.add("layer_norm", outputs=rows * hidden, parameters=2 * hidden, b=rows, h=hidden)
    b.add("linear", [last], outputs=rows * vocabulary, m=rows, n=vocabulary, k=hidden)
    return b.build()


def _linear(b: Builder, inputs: list[int], m: int, n: int, k: int) -> int:
    return b.add("linear", inputs, outputs=m * n, parameters=n * k + n, m=m, n=n, k=k)


def roofline(w: Workload, *rates: tuple[float, float]) -> Floats:
    """Latencies [n, g] on devices of (FLOP/s, B/s)."""
    work = work_of(w.ops, kinds_of(w.ops))
    return np.stack([np.maximum(work.flops / flops, work.bytes / moved) for flops, moved in rates], axis=1)
