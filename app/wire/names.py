"""Names that callers send in place of known ones: near misses, and the usual names of other tools."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from app.coefficients import Coefficients
from app.tables.ops import DTYPES

# Least similarity (difflib's ratio) of names that are suggested, and the most of them.
_SIMILAR, _MOST = 0.6, 3
_ALIKE = Coefficients("names").number("alike")


def near_names(word: str, names: Iterable[str]) -> list[str]:
    """Return the known names most similar to `word`, best first; names that it begins, or that begin it, count too."""
    by_lower = {name.lower(): name for name in names}
    lower = word.lower()[:100]
    near = difflib.get_close_matches(lower, by_lower, _MOST, _SIMILAR)
    if len(lower) > 2:
        near += [name for name in by_lower if name not in near and (name.startswith(lower) or lower.startswith(name))]
    return [by_lower[name] for name in near[:_MOST]]


def nearest_of_family(word: str, names: Sequence[str], most: int = 5) -> list[str]:
    """Return the names most similar to `word` among those of its family (gpt-oss, llama), or else among all."""
    words = _family(word).split("-")
    alike = [[one for one in names if _family(one) == family] for family in ("-".join(words), words[0]) if family]
    near = difflib.get_close_matches(word, next(filter(None, alike), ()), most, 0.0)
    return near or difflib.get_close_matches(word, names, most, _ALIKE)


def _family(name: str) -> str:
    """Return the words before the first digit of a name."""
    return name[: next((k for k, letter in enumerate(name) if not (letter.isalpha() or letter == "-")), None)].strip(
        "-"
    )


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return a question with the nearest known names, in brackets after a space; empty if none is near."""
    near = near_names(word, names)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


DTYPE_NAMES = {
    "float64": "fp64", "double": "fp64", "float": "fp32", "float32": "fp32", "single": "fp32", "tensorfloat32": "tf32",
    "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float8": "fp8", "float8_e4m3fn": "fp8", "fp8_e4m3": "fp8",
    "e4m3": "fp8", "fp4": "nvfp4",
}  # fmt: skip
_OWN = (*DTYPES, "mxfp8")
_FIELDS = ("dtype", "kv_dtype")
# Patterns begin with a literal, which is found in a body of megabytes in a millisecond.
_TEXT = re.compile(rb'dtype(?:(?<=[^\\]"dtype)|(?<=[^\\]"kv_dtype))"(\s*:\s*)("[A-Za-z0-9_.]{1,40}"|\[[^\[\]{}]*\])')
_WORD = re.compile(rb'"([A-Za-z0-9_.]{1,40})"')
# Numbers that JSON lacks, as publishers write them into configurations.
_NO_NUMBER = re.compile(rb"(?:Infinity|NaN)\b")
_BEHIND, _MOST_SPACES, _MOST_NUMBERS = b"[,:", 64, 10_000

_OPERATORS = {
    "linear, or bmm for a batch of products": ("gemm", "matmul", "mm", "dense", "fc", "addmm", "gemv"),
    "bmm": ("batched_gemm", "baddbmm"),
    "attention_prefill or attention_decode (attention_mla: latent attention)": (
        "attention", "flash_attention", "sdpa", "scaled_dot_product_attention", "mha", "gqa",
    ),
    "attention_mla": ("mla",),
    "conv2d": ("conv", "convolution"),
    "all_reduce": ("allreduce",),
    "all_gather": ("allgather",),
    "layer_norm": ("layernorm",),
    "rms_norm": ("rmsnorm",),
    "linear_attention": ("mamba", "mamba2", "gdn", "kda", "ssm"),
}  # fmt: skip
_INSTEAD_OF_FIELD = {
    "parallelism.tensor (of the operator moe: tensor_parallel)": ("tp", "tp_size", "tensor_parallel_size"),
    "parallelism.pipeline": ("pp", "pp_size", "pipeline_parallel_size"),
    "parallelism.data": ("dp", "dp_size", "data_parallel_size"),
    "parallelism.expert (of the operator moe: expert_parallel)": ("ep", "ep_size", "expert_parallel_size"),
    "batch": ("batch_size", "bs"),
    "sequence": ("seq_len", "seq_length", "sequence_length", "input_tokens", "isl"),
    "load.rate_per_s": (
        "qps", "rps", "requests_per_second", "requests_per_s", "request_rate", "arrival_rate", "req_per_s",
    ),
    "load.concurrency": ("users", "max_concurrency", "concurrent_requests", "num_concurrent", "clients"),
    "output_tokens": ("osl", "max_new_tokens", "max_tokens"),
    "dtype": ("precision", "data_type", "torch_dtype"),
}  # fmt: skip
_OF_OPERATOR = {name: own for own, names in _OPERATORS.items() for name in names}
_OF_FIELD = {name: own for own, names in _INSTEAD_OF_FIELD.items() for name in names}


def own_dtype(name: str) -> str:
    """Return the service's name of a number format; a name without one is returned as it is."""
    lower = name.lower().removeprefix("torch.")
    return DTYPE_NAMES.get(lower, lower if lower in _OWN else name)


def with_own_dtypes(body: bytes) -> bytes:
    """Return a JSON text with the number formats of its fields `dtype` and `kv_dtype` by the service's names."""

    def renamed(word: re.Match[bytes]) -> bytes:
        return b'"' + own_dtype(word[1].decode("ascii")).encode("ascii") + b'"'

    return _TEXT.sub(lambda match: b'dtype"%b%b' % (match[1], _WORD.sub(renamed, match[2])), body)


def with_json_numbers(body: bytes) -> bytes:
    """Return a text with Infinity as the number 1e308, and NaN as a string, which no numeric field accepts."""

    def number(match: re.Match[bytes]) -> bytes:
        before = body[max(match.start() - _MOST_SPACES, 0) : match.start()]
        before = (before if match[0] == b"NaN" else before.removesuffix(b"-")).rstrip()
        if before[-1:] not in _BEHIND or not before:
            return match[0]
        return b'"NaN"' if match[0] == b"NaN" else b"1e308"

    return _NO_NUMBER.sub(number, body, _MOST_NUMBERS)


def renamed_dtypes(raw: Any) -> Any:
    """Return plain containers with the number formats of fields `dtype` and `kv_dtype` by the service's names."""
    if isinstance(raw, list):
        return [renamed_dtypes(item) for item in raw]
    if isinstance(raw, dict):
        return {key: _own(value) if key in _FIELDS else renamed_dtypes(value) for key, value in raw.items()}
    return raw


def _own(value: Any) -> Any:
    if isinstance(value, str):
        return own_dtype(value)
    return [_own(item) for item in value] if isinstance(value, list) else value


def operator_hint(name: object) -> str:
    """Return what to send in place of an unknown operator, as the end of a sentence; empty if nothing is known."""
    own = _OF_OPERATOR.get(name.lower()) if isinstance(name, str) else None
    return f": send {own}" if own else ""


def field_hint(name: str) -> str:
    """Return what to send in place of an unknown field, as the end of a sentence; empty if nothing is known."""
    own = _OF_FIELD.get(name.lower())
    return f": send {own}" if own else ""
