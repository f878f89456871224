"""Methods of `quantization_config` beside those of published configurations: nearest formats, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.errors import BadInput
from app.networks.builtin import find_config
from app.networks.importers import hf
from app.networks.run import Run
from app.ops import OP_CODE
from app.tables.ops import DTYPE_CODE

MODEL = dict(find_config("qwen3-8b") or {})


def quark(weight: str, inputs: str) -> dict[str, Any]:
    return {
        "quant_method": "quark",
        "global_quant_config": {"weight": {"dtype": weight}, "input_tensors": {"dtype": inputs}},
    }


def compressed(weights: tuple[Any, ...], inputs: int | None) -> dict[str, Any]:
    names = dict(zip(("num_bits", "type", "group_size"), weights, strict=False))
    group = {"weights": names, "input_activations": inputs and {"num_bits": inputs}}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("given", "linear"),
    [
        ({"quant_method": "awq_marlin", "bits": 4}, "int4_wo"),
        ({"quant_method": "gptq_marlin", "bits": 4}, "int4_wo"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}}, "int4_wo"),
        ({"quant_method": "w4afp8"}, "w4a8_mxfp4"),
        (quark("fp8_e4m3", "fp8_e4m3"), "fp8"),
        (quark("fp4", "fp4"), "mxfp4"),
        (quark("fp6", "fp6"), "mxfp6"),
        ({"quant_method": "gptq", "bits": 8}, "int8_wo"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 8}}}, "int8_wo"),
        ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "int8_wo"),
        ({"quant_method": "torchao", "quant_type": "float8_weight_only"}, "fp8_wo"),
        (compressed((8, "int"), None), "int8_wo"),
        (compressed((8, "float"), None), "fp8_wo"),
        (compressed((8, "float"), 8), "fp8"),
        (compressed((4, "float"), 4), "nvfp4"),
        (compressed((4, "float", 32), 4), "mxfp4"),
        (compressed((4, "float", 32), None), "w4a16_mxfp4"),
        (quark("fp4", "fp8_e4m3"), "w4a8_mxfp4"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}}, "int4_wo"),
        ({"quant_method": "torchao", "quant_type": "float8_dynamic_activation_float8_weight"}, "fp8"),
        ({"quant_method": "torchao", "quant_type": "int8_dynamic_activation_int8_weight"}, "int8"),
    ],
)
def test_a_method_is_read_as_its_format(given: dict[str, Any], linear: str) -> None:
    formats = hf.formats_of(MODEL | {"quantization_config": given})
    assert formats is not None
    assert formats.linear == linear
    assert not formats.head


def test_modules_that_quark_excludes_stay_in_16_bits() -> None:
    given = quark("fp8_e4m3", "fp8_e4m3") | {"exclude": ["re:.*self_attn.*", "lm_head"]}
    formats = hf.formats_of(MODEL | {"quantization_config": given})
    assert formats is not None
    assert (formats.attention, formats.linear) == ("", "fp8")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (quark("int4", ""), "weight"),
        ({"quant_method": "quark"}, "weight"),
        ({"quant_method": "torchao", "quant_type": 3}, "quant_type"),
        ({"quant_method": "torchao"}, "quant_type"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 3}}}, "quant_config"),
        ({"quant_method": "gguf"}, "quant_type"),
        ({"quant_method": "gptq", "bits": 3}, "bits"),
        ({"quant_method": "exl9"}, "quant_method"),
    ],
)
def test_what_is_not_known_is_named(given: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        hf.formats_of(MODEL | {"quantization_config": given})
    assert field in [str(part) for error in refused.value.errors for part in error.loc]
    assert "send dtype" in refused.value.detail


def test_a_file_of_gguf_holds_its_bits_in_all_layers_and_the_head() -> None:
    formats = hf.formats_of(MODEL | {"quantization": "Q6_K"})
    assert formats is not None and (formats.linear, formats.head, formats.kv_cache) == ("q6_k", "q6_k", "")
    assert hf.formats_of(MODEL | {"quantization": "F16"}) is None
    with pytest.raises(BadInput, match="must be one of Q2_K"):
        hf.formats_of(MODEL | {"quantization": "Q9_K"})


def test_mxfp4_is_of_experts_where_there_are_any() -> None:
    dense = hf.formats_of(MODEL | {"quantization_config": {"quant_method": "mxfp4"}})
    mixed = hf.formats_of({**(find_config("gpt-oss-20b") or {}), "quantization_config": {"quant_method": "mxfp4"}})
    assert dense is not None and dense.linear == "w4a16_mxfp4"
    assert mixed is not None and (mixed.experts, mixed.linear) == ("w4a16_mxfp4", "")


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("int8_wo", 8.125), ("fp8_wo", 8.0), ("int4_wo", 4.125), ("mxfp4", 4.25), ("mxfp6", 6.25), ("q4_k_m", 4.84)],
)
def test_a_format_is_of_every_linear_layer_but_the_head(dtype: str, bits: float) -> None:
    rows = hf.lower(MODEL, Run("decode", batch=1, sequence=64, dtype=dtype))
    linear = rows.ops.kind == OP_CODE["linear"]
    head = np.array([name.endswith("logits") for name in rows.names])
    layers = linear & ~head
    assert set(rows.ops.dtype[layers].tolist()) == {DTYPE_CODE[dtype]}
    assert rows.weight_bytes[layers].sum() == pytest.approx(bits / 8.0 * rows.parameters[layers].sum())
