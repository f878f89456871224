"""Names of other tools: number formats are accepted, operators and fields lead to the right one."""

import json
from typing import Any

import pytest

from app.errors import BadInput
from app.wire.names import own_dtype, renamed_dtypes, with_own_dtypes
from app.wire.predict_body import read_request
from tests.unit.transformers import config

MODEL: dict[str, Any] = {"kind": "model", "config": config("gpt2"), "sequence": 128}


def read(workload: dict[str, Any], gpu: str = "nvidia-l4") -> Any:
    return read_request(json.dumps({"gpu": gpu, "workload": workload}).encode()).workload


@pytest.mark.parametrize(
    ("name", "own"),
    [("float16", "fp16"), ("half", "fp16"), ("bfloat16", "bf16"), ("BF16", "bf16"), ("float32", "fp32"),
     ("torch.bfloat16", "bf16"), ("fp64", "fp64"), ("FP8", "fp8"), ("posit8", "posit8")],
)  # fmt: skip
def test_formats_by_other_names(name: str, own: str) -> None:
    assert own_dtype(name) == own
    if own not in {name, "posit8"}:
        assert read(MODEL | {"dtype": name}).dtype == own
        rows = read({"kind": "operators", "operators": [{"op": "relu", "b": 8, "h": 8, "dtype": name}]})
        assert rows.operators[0].dtype == own


def test_only_fields_of_formats_are_renamed() -> None:
    body = json.dumps(
        {"dtype": ["half", "x y"], "name": "float16", "kv_dtype": "FP8", "note": '"dtype": "half"'}
    ).encode()
    assert json.loads(with_own_dtypes(body)) == json.loads(body) | {"dtype": ["fp16", "x y"], "kv_dtype": "fp8"}
    assert renamed_dtypes([{"dtype": "half", "of": "half"}]) == [{"dtype": "fp16", "of": "half"}]


def test_an_unknown_format_is_refused_by_its_field() -> None:
    with pytest.raises(BadInput) as caught:
        read(MODEL | {"dtype": "posit8"})
    assert caught.value.errors[0].loc == ("workload", "dtype")


@pytest.mark.parametrize(
    ("op", "own"), [("gemm", "linear"), ("matmul", "linear"), ("attention", "attention_prefill"), ("FC", "linear")]
)
def test_operators_by_other_names_lead_to_the_right_one(op: str, own: str) -> None:
    with pytest.raises(BadInput) as caught:
        read({"kind": "operators", "operators": [{"op": op, "m": 8, "dtype": "bf16"}]})
    assert f"send {own}" in caught.value.errors[0].msg


def test_fields_by_other_names_lead_to_the_right_one() -> None:
    with pytest.raises(BadInput) as caught:
        read(MODEL | {"tp": 2, "batch_size": 4})
    messages = {error.loc[-1]: error.msg for error in caught.value.errors}
    assert "parallelism.tensor" in messages["tp"]
    assert messages["batch_size"] == "unknown field: send batch"


def test_infinity_in_a_configuration_is_read_and_elsewhere_refused() -> None:
    text = b'{"gpu": "nvidia-l4", "workload": {"kind": "model", "sequence": 8, "config": {"limit": [0.0, %b]}}}'
    assert read_request(text % b"Infinity").workload.config == {"limit": [0.0, 1e308]}
    assert read_request(text % b"-Infinity").workload.config == {"limit": [0.0, -1e308]}
    assert read_request(text % b"NaN").workload.config == {"limit": [0.0, "NaN"]}
    for number in (b"Infinity", b"NaN"):
        with pytest.raises(BadInput):
            read_request((text % b"1").replace(b'"sequence": 8', b'"sequence": ' + number))
