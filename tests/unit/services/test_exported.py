"""torch.export archives read without PyTorch: valid programs and hostile files."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from app.errors import BadInput, GpucastError, Malformed, TooLarge
from app.networks.importers.aten import GETITEM, INPUT, PARAMETER, Record, Ref, graph
from app.networks.importers.json_graph import lower
from app.networks.run import Run
from app.services.graphs import export_program
from app.services.graphs.export_program import read_archive
from tests.export_bytes import archive, perceptron, tensor, weighty

Program = dict[str, Any]


def calls(*nodes: Any, values: dict[str, list[Any]], **graph_fields: Any) -> Program:
    """A program of calls on the input x: (target, arguments, outputs)."""
    program = perceptron()
    program["graph_module"]["graph"] |= {
        "inputs": [{"as_tensor": {"name": "x"}}],
        "nodes": [
            {
                "target": target,
                "inputs": [{"name": str(k), "arg": arg} for k, arg in enumerate(args)],
                "outputs": outputs,
            }
            for target, args, outputs in nodes
        ],
        "tensor_values": {name: tensor(*sizes) for name, sizes in values.items()},
    } | graph_fields
    program["graph_module"]["signature"]["input_specs"] = []
    return program


def test_archives_give_the_graph_that_pytorch_gives() -> None:
    found = read_archive(archive(perceptron()))
    x, hidden = Ref("x"), Ref("linear")
    assert found == graph("net", [
        Record("p_w", PARAMETER, (), {}, [([512, 784], "float32")]),
        Record("p_b", PARAMETER, (), {}, [([512], "float32")]),
        Record("x", INPUT, (), {}, [([8, 784], "float32")]),
        Record("linear", "aten.linear.default", [x, Ref("p_w"), Ref("p_b")], {}, [([8, 512], "float32")]),
        Record("gelu", "aten.gelu.default", [hidden], {}, [([8, 512], "float32")]),
    ])  # fmt: skip
    assert lower(found, Run()).parameters.sum() == 784 * 512 + 512


@pytest.mark.parametrize(
    ("place", "name"),
    [("net/models/model.json", "net"), ("models/model.json", "exported"),
     ("serialized_exported_program.json", "exported")],
)  # fmt: skip
def test_programs_are_found_where_pytorch_writes_them(place: str, name: str) -> None:
    assert read_archive(archive(perceptron(), place))["name"] == name
    assert read_archive(archive(perceptron(), place, zipfile.ZIP_DEFLATED))["name"] == name


def test_calls_with_several_results() -> None:
    x, one = {"as_tensor": {"name": "x"}}, [4, 9, 16]
    parts = [{"name": "b"}, {"name": "a"}]
    program = calls(
        ("torch.ops.aten.unbind.int", [x], [{"as_tensors": parts[::-1]}]),
        ("torch.ops.aten.cat.default", [{"as_tensors": parts}], [{"as_tensor": {"name": "c"}}]),
        ("torch.ops.aten.max.dim", [{"as_tensor": {"name": "c"}}, {"as_int": 1}],
         [{"as_tensor": {"name": "v"}}, {"as_tensor": {"name": ""}}]),
        ("torch.ops.aten.relu.default", [{"as_tensor": {"name": "v"}}], [{"as_tensor": {"name": "y"}}]),
        values={"x": [2, *one], "a": one, "b": one, "c": [8, 9, 16], "v": [8, 16], "y": [8, 16]},
    )  # fmt: skip
    nodes = read_archive(archive(program))["nodes"]
    assert [node["inputs"] for node in nodes] == [
        ["x"],
        ["aten.unbind.int 0:1", "aten.unbind.int 0"],
        ["c"],
        ["aten.max.dim 2"],
    ]
    assert GETITEM not in {node["op"] for node in nodes}


def test_symbolic_sizes_are_those_of_the_example_inputs() -> None:
    batch = {"expr_str": "Symbol('s0', positive=True, integer=True)", "hint": {"as_int": 8}}
    size = {"target": "torch.ops.aten.sym_size.int", "inputs": [], "outputs": [{"as_sym_int": {"as_name": "n"}}]}
    program = calls(
        ("torch.ops.aten.view.default",
         [{"as_tensor": {"name": "x"}}, {"as_sym_ints": [{"as_name": "n"}, {"as_int": 32}]}],
         [{"as_tensor": {"name": "v"}}]),
        ("torch.ops.aten.relu.default", [{"as_tensor": {"name": "v"}}], [{"as_tensor": {"name": "y"}}]),
        values={"x": [batch, 4, 8], "v": [batch, 32], "y": [batch | {"hint": 8}, 32]},
        sym_int_values={"n": {"as_expr": batch}},
    )  # fmt: skip
    program["graph_module"]["graph"]["nodes"].insert(0, size)
    assert [node["outputs"][0]["shape"] for node in read_archive(archive(program))["nodes"]] == [[8, 32], [8, 32]]
    program["graph_module"]["graph"]["tensor_values"]["x"] = tensor(batch | {"hint": None}, 4, 8)
    with pytest.raises(BadInput, match=r"size 0 of 'x' is dynamic \(Symbol\('s0'"):
        read_archive(archive(program))


def test_non_finite_numbers_are_read() -> None:
    text = json.dumps(perceptron()).replace('"as_float": 0.5', '"as_float": -Infinity')
    assert "Infinity" in text
    assert len(read_archive(archive(text.encode()))["nodes"]) == 2


def _without(*path: Any) -> Callable[[Program], None]:
    def change(program: Program) -> None:
        inner: Any = program
        for part in path[:-1]:
            inner = inner[part]
        del inner[path[-1]]

    return change


def _with(value: Any, *path: Any) -> Callable[[Program], None]:
    def change(program: Program) -> None:
        inner: Any = program
        for part in path[:-1]:
            inner = inner[part]
        inner[path[-1]] = value

    return change


_GRAPH = ("graph_module", "graph")
_FIRST = (*_GRAPH, "nodes", 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without("graph_module"), "graph_module"),
        (_without("graph_module", "signature"), "signature"),
        (_with(3, *_FIRST, "target"), r"nodes\[0\].target"),
        (_with([{"name": "weight", "arg": {"as_int": "7"}}], *_FIRST, "inputs"), "as_int"),
        (_with([], *_FIRST, "inputs"), "linear .*argument 1 of linear is not a tensor"),
        (_with([], *_GRAPH, "nodes"), "nodes"),
        (_with({}, *_GRAPH, "tensor_values"), "tensor_values lacks 'p_w'"),
        (_with(tensor(-1), *_GRAPH, "tensor_values", "x"), "of 'x' is invalid"),
        (_with(tensor(2**60), *_GRAPH, "tensor_values", "x"), "of 'x' is invalid, or has more"),
        (_with(tensor(*[1] * 17), *_GRAPH, "tensor_values", "x"), "sizes"),
        (_with(tensor({"expr_str": "u0"}), *_GRAPH, "tensor_values", "x"), r"is dynamic \(u0\)"),
        (_with("x", *_FIRST, "outputs", 0, "as_tensor", "name"), "name"),
        (_with("\x00", *_FIRST, "outputs", 0, "as_tensor", "name"), "tensor_values lacks"),
    ],
)
def test_invalid_programs_are_rejected(change: Callable[[Program], None], said: str) -> None:
    program = copy.deepcopy(perceptron())
    change(program)
    with pytest.raises(BadInput, match=said) as caught:
        lower(read_archive(archive(program)), Run(), loc=())
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("body", "said"),
    [(b"", "not a zip"), (b"PK\x03\x04..", "not a zip"), (archive(perceptron())[:-40], "not a zip"),
     (archive(b"{"), "models/model.json: invalid JSON"), (archive(b'{"a":' + b"[" * 100_000), "nested"),
     (archive(b"\xff"), "invalid JSON")],
)  # fmt: skip
def test_files_that_are_not_archives_are_rejected(body: bytes, said: str) -> None:
    with pytest.raises(Malformed, match=said):
        read_archive(body)


def test_archives_without_one_program() -> None:
    with pytest.raises(BadInput, match="has none"):
        read_archive(weighty({"data/aotinductor/model/model.so": b""}))
    with pytest.raises(BadInput, match=r"models/a.json, models/b.json"):
        read_archive(weighty({"models/a.json": b"{}", "models/b.json": b"{}"}))


def test_weights_are_never_read() -> None:
    bomb = {"net/data/weights/weight_0": b"\x00" * 10_000, "net/data/sample_inputs/model.pt": b"no pickle"}
    whole = weighty({"net/models/model.json": json.dumps(perceptron()).encode()} | bomb)
    broken = whole.replace(b"no pickle", b"NO PICKLE", 1)  # no longer what its checksum says
    assert read_archive(broken) == read_archive(archive(perceptron()))


def test_false_sizes_are_rejected() -> None:
    good = archive(perceptron())
    size = len(json.dumps(perceptron()))
    for said in (size - 1, size + 1, 7, 2**31):
        at = good.rindex(b"PK\x01\x02")
        lying = good[: at + 24] + said.to_bytes(4, "little") + good[at + 28 :]
        with pytest.raises(Malformed):
            read_archive(lying)


def test_decompression_bombs_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_program, "MAX_PROGRAM_BYTES", 2**20)
    monkeypatch.setattr(export_program, "MAX_BRACKETS", 1000)
    monkeypatch.setattr(export_program, "MAX_ENTRIES", 100)
    for bomb, said in (
        (archive(b" " * 2**22, compression=zipfile.ZIP_DEFLATED), "more than 1,048,576 bytes"),
        (archive(b"[" + b"{}," * 2000 + b"{}]", compression=zipfile.ZIP_DEFLATED), "more than 1,000 objects"),
        (weighty({f"{k}": b"" for k in range(101)}), "more than 100 entries"),
    ):
        assert len(bomb) < 20_000
        with pytest.raises(TooLarge, match=said):
            read_archive(bomb)
    with pytest.raises(Malformed, match="compressed by another"):
        read_archive(archive(perceptron(), compression=zipfile.ZIP_LZMA))


def test_no_changed_byte_crashes_the_reader() -> None:
    good = archive(perceptron())
    assert zipfile.is_zipfile(io.BytesIO(good))
    for at in range(0, len(good), 7):
        for changed in (good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :], good[:at]):
            try:
                read_archive(changed)
            except GpucastError as error:
                assert 400 <= error.status < 500
