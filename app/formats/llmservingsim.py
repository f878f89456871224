"""Read LLMServingSim's measurements of vLLM 0.19: what runs between products, the head, and attention of mixed batches.

Times are microseconds of device time, of one of `tp` devices in BF16. Attention without a chunk of a prompt is
decoding, without decodes a chunk on keys that are cached already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from app.errors import BadInput, FieldError, NotFound
from app.formats.base import Part, PartsImporter
from app.formats.table_columns import constant_column, number_column, read_table, text_column
from app.tables.arrays import Floats
from app.wire.measurements.upload import OperatorColumns
from app.wire.operators.operator_columns import Column, Numbers

SOURCE, SOFTWARE = "llmservingsim", "vllm-0.19"
DENSE, PER_SEQUENCE, ATTENTION = (
    f"llmservingsim_ops_{name}.parquet" for name in ("dense", "per_sequence", "attention")
)
_US_PER_MS = 1e3
_GPUS = {"RTXPRO6000": "rtx-pro-6000-server", "RTX4090": "rtx-4090"}


class _Model(NamedTuple):
    """Sizes of a model, from its config.json; `inner` of the feed-forward part of a layer."""

    hidden: float
    heads: float
    kv_heads: float
    head_dim: float
    inner: float
    vocabulary: float


_MODELS = {
    "meta-llama/Llama-3.1-8B": _Model(4096, 32, 8, 128, 14336, 128256),
    "Qwen/Qwen3-32B": _Model(5120, 64, 8, 128, 25600, 151936),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": _Model(2048, 32, 4, 128, 768, 151936),
}


class _Sizes(NamedTuple):
    """Sizes of the models of n rows, float64 [n] each, and the devices that share each layer."""

    hidden: Floats
    heads: Floats
    kv_heads: Floats
    head_dim: Floats
    inner: Floats
    vocabulary: Floats
    devices: Floats


Fields = Mapping[str, Floats]


def _linear(m: Floats, n: Floats, k: Floats) -> Fields:
    return {"m": m, "n": n, "k": k}


def _rows(b: Floats, h: Floats) -> Fields:
    return {"b": b, "h": h}


# Layer -> operator, and its fields from the number of rows (tokens, or sequences) and the sizes.
_LAYERS: Mapping[str, tuple[str, Callable[[Floats, _Sizes], Fields]]] = {
    "embedding": ("embedding", lambda b, s: {**_rows(b, s.hidden), "vocabulary": np.ceil(s.vocabulary / s.devices)}),
    "layernorm": ("add_norm", lambda b, s: _rows(b, s.hidden)),
    "final_layernorm": ("add_norm", lambda b, s: _rows(b, s.hidden)),
    "act_fn": ("gated_activation", lambda b, s: _rows(b, s.inner / s.devices)),
    "qkv_proj": (
        "linear",
        lambda b, s: _linear(b, (s.heads + 2.0 * s.kv_heads) * s.head_dim / s.devices, s.hidden),
    ),
    "o_proj": ("linear", lambda b, s: _linear(b, s.hidden, s.heads * s.head_dim / s.devices)),
    "gate_up_proj": ("linear", lambda b, s: _linear(b, 2.0 * s.inner / s.devices, s.hidden)),
    "down_proj": ("linear", lambda b, s: _linear(b, s.hidden, s.inner / s.devices)),
    "lm_head": ("linear", lambda b, s: _linear(b, s.vocabulary / s.devices, s.hidden)),
    "sampler": ("sample", lambda b, s: _rows(b, s.vocabulary)),
}


def read(folder: Path) -> Iterator[Part]:
    """Yield one part per operator and file. Raises BadInput that names an unknown model or GPU."""
    found = [name for name in (DENSE, PER_SEQUENCE, ATTENTION) if (folder / name).is_file()]
    if not found:
        raise NotFound(f"{folder} has none of {DENSE}, {PER_SEQUENCE}, {ATTENTION}.")
    for name in found:
        if name == ATTENTION:
            yield from _attention(folder / name)
        else:
            yield from _layers(folder / name, "tokens" if name == DENSE else "sequences")


def _layers(path: Path, rows: str) -> Iterator[Part]:
    table = read_table(path, ("dtype", "model", "gpu", "layer"), ("tp", rows, "time_us"))
    layer = np.array(table["layer"].to_pylist())
    for name, (op, fields) in _LAYERS.items():
        here = table.filter(pa.array(layer == name))
        if here.num_rows:
            yield _part(path, here, op, fields(number_column(here, rows).values, _sizes(here, path)))


def _attention(path: Path) -> Iterator[Part]:
    numbers = ("tp", "prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    table = read_table(path, ("dtype", "model", "gpu"), numbers)
    chunk, decodes = (number_column(table, name).values for name in ("prefill_chunk", "n_decode"))
    for op, rows in (
        ("attention_decode", (chunk == 0) & (decodes > 0)),
        ("attention_prefill", (chunk > 0) & (decodes == 0)),
        ("attention_mixed", (chunk > 0) & (decodes > 0)),
    ):
        here = table.filter(pa.array(rows))
        if here.num_rows:
            yield _part(path, here, op, _attended(op, here, _sizes(here, path)))


def _attended(op: str, table: pa.Table, sizes: _Sizes) -> Fields:
    chunk, cached, decodes, seen = (
        number_column(table, name).values for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    )
    heads, shared = sizes.heads / sizes.devices, sizes.kv_heads / sizes.devices
    layer = {"heads": heads, "kv_heads": shared, "head_dim": sizes.head_dim}
    if op == "attention_decode":
        return {**layer, "batch": decodes, "context_length": seen + 1.0}
    prompt = {**layer, "query_length": chunk, "context_length": cached + chunk}
    if op == "attention_prefill":
        return {**prompt, "batch": np.ones(len(chunk))}
    return {**prompt, "decodes": decodes, "decode_context": seen + 1.0}


def _sizes(table: pa.Table, path: Path) -> _Sizes:
    models = text_column(table, "model")
    if unknown := [name for name in models.words if name not in _MODELS]:
        message = f"unknown model {unknown[0]!r}; known are {', '.join(_MODELS)}"
        raise BadInput(f"{path.name}: {message}", errors=[FieldError((path.name, "model"), message)])
    of_model = zip(*(_MODELS[name] for name in models.words), strict=True)
    hidden, heads, kv_heads, head_dim, inner, vocabulary = (np.array(sizes)[models.codes] for sizes in of_model)
    return _Sizes(hidden, heads, kv_heads, head_dim, inner, vocabulary, number_column(table, "tp").values)


def _part(path: Path, table: pa.Table, op: str, fields: Fields) -> Part:
    latency = number_column(table, "time_us")
    columns: dict[str, Column] = {
        "op": constant_column(op),
        "gpu": text_column(table, "gpu", _GPUS),
        "software": constant_column(SOFTWARE),
        "source": constant_column(SOURCE),
        "dtype": text_column(table, "dtype"),
        "latency_ms": latency._replace(values=latency.values / _US_PER_MS),
    }
    columns |= {name: Numbers(values, np.isnan(values), False) for name, values in fields.items()}
    return Part(path.name, OperatorColumns(columns, np.arange(table.num_rows)), None)


IMPORTER = PartsImporter(SOURCE, read)
