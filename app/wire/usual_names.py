"""Usual names of other tools, and the ones that this service has for them.

Number formats by their PyTorch and Hugging Face names are accepted: a refused body is read again with the names of
`DTYPE_NAMES` replaced, so that bodies with the service's own names cost nothing. Operators and fields of other names
are refused, and the error says which to send.
"""

from __future__ import annotations

import re
from typing import Any

DTYPE_NAMES = {
    "float64": "fp64", "double": "fp64", "float": "fp32", "float32": "fp32", "single": "fp32", "tensorfloat32": "tf32",
    "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float8": "fp8", "float8_e4m3fn": "fp8", "fp8_e4m3": "fp8",
    "e4m3": "fp8", "fp4": "nvfp4",
}  # fmt: skip
_OWN = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp8_block", "int8", "nvfp4", "int4_wo")
_FIELDS = ("dtype", "kv_dtype")
_TEXT = re.compile(rb'(?<!\\)"((?:kv_)?dtype)"(\s*:\s*)("[A-Za-z0-9_.]{1,40}"|\[[^\[\]{}]*\])')
_WORD = re.compile(rb'"([A-Za-z0-9_.]{1,40})"')
# Numbers that JSON lacks, as publishers write them into configurations.
_INFINITY, _NAN = re.compile(rb"(?<=[\[,:])(\s*-?)Infinity\b"), re.compile(rb"(?<=[\[,:])(\s*)NaN\b")

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
    "output_tokens": ("osl", "max_new_tokens", "max_tokens"),
    "dtype": ("precision", "data_type", "torch_dtype"),
}
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

    return _TEXT.sub(lambda found: b'"%b"%b%b' % (found[1], found[2], _WORD.sub(renamed, found[3])), body)


def with_json_numbers(body: bytes) -> bytes:
    """Return a text with Infinity as the number 1e308, and NaN as a string, which no numeric field accepts."""
    return _NAN.sub(rb'\1"NaN"', _INFINITY.sub(rb"\g<1>1e308", body))


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
