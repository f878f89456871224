"""Archives as torch.export.save writes them, made without PyTorch."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

FLOAT = 7  # ScalarType


def tensor(*sizes: Any) -> dict[str, Any]:
    """An entry of tensor_values; sizes that are objects are expressions."""
    return {
        "dtype": FLOAT,
        "sizes": [{"as_expr": size} if isinstance(size, dict) else {"as_int": size} for size in sizes],
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
    }


def perceptron() -> dict[str, Any]:
    """gelu(linear(x)), with what PyTorch writes beside it."""

    def call(target: str, output: str, **arguments: Any) -> dict[str, Any]:
        inputs = [{"name": name, "arg": arg, "kind": 1} for name, arg in arguments.items()]
        written = [{"as_tensor": {"name": output}}]
        return {"target": target, "inputs": inputs, "outputs": written, "name": output, "metadata": {"stack_trace": ""}}

    def given(name: str) -> dict[str, Any]:
        return {"as_tensor": {"name": name}}

    gelu = call("torch.ops.aten.gelu.default", "gelu", self=given("linear"))
    gelu["inputs"].append({"name": "approximate", "arg": {"as_float": 0.5}, "kind": 2})  # a number passed over
    linear = call("torch.ops.aten.linear.default", "linear", input=given("x"), weight=given("p_w"), bias=given("p_b"))
    graph = {
        "inputs": [given("p_w"), given("p_b"), given("x")],
        "outputs": [given("gelu")],
        "nodes": [linear, gelu],
        "tensor_values": {
            "p_w": tensor(512, 784),
            "p_b": tensor(512),
            "x": tensor(8, 784),
            "linear": tensor(8, 512),
            "gelu": tensor(8, 512),
        },
        "sym_int_values": {},
    }
    specs = [{"parameter": {"arg": {"name": name}, "parameter_name": name[2:]}} for name in ("p_w", "p_b")]
    signature = {"input_specs": [*specs, {"user_input": {"arg": given("x")}}], "output_specs": []}
    return {"graph_module": {"graph": graph, "signature": signature}, "schema_version": {"major": 8, "minor": 20}}


def weighty(entries: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def archive(program: Any, place: str = "net/models/model.json", compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of one program, given as a form or as its bytes."""
    text = program if isinstance(program, bytes) else json.dumps(program).encode()
    return weighty({place: text}, compression)
