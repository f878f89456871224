"""Methods of `quantization_config` beside those of published configurations: nearest formats, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import BadInput
from app.networks.builtin import find_config
from app.networks.importers import hf

MODEL = dict(find_config("qwen3-8b") or {})


def quark(weight: str, inputs: str) -> dict[str, Any]:
    return {
        "quant_method": "quark",
        "global_quant_config": {"weight": {"dtype": weight}, "input_tensors": {"dtype": inputs}},
    }


@pytest.mark.parametrize(
    ("given", "linear"),
    [
        ({"quant_method": "awq_marlin", "bits": 4}, "int4_wo"),
        ({"quant_method": "gptq_marlin", "bits": 4}, "int4_wo"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}}, "int4_wo"),
        ({"quant_method": "w4afp8"}, "w4a8_mxfp4"),
        (quark("fp8_e4m3", "fp8_e4m3"), "fp8"),
        (quark("fp4", "fp4"), "nvfp4"),
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
        ({"quant_method": "gguf"}, "quant_method"),
    ],
)
def test_what_is_not_known_is_named(given: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        hf.formats_of(MODEL | {"quantization_config": given})
    assert field in [str(part) for error in refused.value.errors for part in error.loc]
    assert "send dtype" in refused.value.detail
