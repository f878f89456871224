"""Hostile files: small ones that unpack to much, deep ones and long ones."""

from __future__ import annotations

import io
import json
import zipfile

from benchmarks.hostile_run import Hostile
from tests.export_bytes import archive, perceptron
from tests.onnx_bytes import model, node, subgraph, tensor

ZIP, ONNX = "application/zip", "application/x-onnx"
GRAPHS = "/graphs"
LEAVES_S = 0.5
UNPACKED = 64 * 2**20
_PLACE = "net/models/model.json"


def packed(text: bytes) -> bytes:
    """An archive of a program that compresses well."""
    return archive(text, compression=zipfile.ZIP_DEFLATED)


def zeros(size: int) -> bytes:
    """A program that is a list of zeros."""
    return b"[" + b"0," * (size // 2 - 2) + b"0]"


def program(**graph: object) -> bytes:
    """A valid program with other fields of its graph."""
    form = perceptron()
    form["graph_module"]["graph"].update(graph)
    return json.dumps(form).encode()


def integers(size: int) -> bytes:
    """A program with a long list of integers where there may be any."""
    text = json.dumps(perceptron() | {"opset_version": "HERE"}).encode()
    return text.replace(b'"HERE"', b"[" + b"0," * (size // 2) + b"0]")


def without_numbers(size: int) -> bytes:
    """A program with numbers that are not JSON."""
    text = json.dumps(perceptron() | {"opset_version": "HERE"}).encode()
    return text.replace(b'"HERE"', b"[" + b"NaN," * (size // 4) + b"0]")


def exported(calls: int) -> bytes:
    """A chain of calls."""
    form = perceptron()
    graph = form["graph_module"]["graph"]
    _, last = graph["nodes"]
    shape = graph["tensor_values"]["gelu"]
    before = "gelu"
    for k in range(calls):
        name = f"gelu_{k}"
        given = {"name": "self", "arg": {"as_tensor": {"name": before}}, "kind": 1}
        written = [{"as_tensor": {"name": name}}]
        graph["nodes"].append(last | {"inputs": [given], "outputs": written, "name": name})
        graph["tensor_values"][name] = shape
        before = name
    return packed(json.dumps(form).encode())


def gigabyte() -> bytes:
    """An archive whose program unpacks to 1 GiB."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as held, held.open(_PLACE, "w", force_zip64=True) as entry:
        for _ in range(64):
            entry.write(b"0," * 2**23)
    return file.getvalue()


def entries(number: int) -> bytes:
    """An archive of many empty entries."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as held:
        held.writestr(_PLACE, json.dumps(perceptron()))
        for k in range(number):
            held.writestr(f"{k}", b"")
    return file.getvalue()


def onnx_chain(nodes: int) -> bytes:
    """A long file."""
    names = ["x", *(f"t{k}" for k in range(nodes))]
    return model([node("Relu", [names[k]], [names[k + 1]]) for k in range(nodes)], {"x": [1, 8]})


def onnx_tree(nodes: int, deep: int) -> bytes:
    """Branches within branches, each of as many nodes."""
    each = nodes // (2 * deep)

    def branch(k: int, level: int) -> bytes:
        names = [f"v{level}_{k}_{j}" for j in range(each + 1)]
        inner = [node("Relu", ["x"], names[:1])] + [node("Relu", [names[j]], [names[j + 1]]) for j in range(each)]
        if level < deep:
            then, otherwise = branch(0, level + 1), branch(1, deep)
            inner.append(node("If", ["x"], [f"o{level}_{k}"], then_branch=then, else_branch=otherwise))
        return subgraph(inner, [], names[-1:])

    top = node("If", ["x"], ["y"], then_branch=branch(0, 1), else_branch=branch(1, deep))
    return model([top], {"x": [1, 8]})


def onnx_weights(number: int) -> bytes:
    """Many weights of three numbers."""
    weights = [tensor(f"w{k}", [3], bytes(12)) for k in range(number)]
    return model([node("Relu", ["x"], ["y"])], {"x": [1, 8]}, weights)


def deep_json(size: int) -> bytes:
    """One number of many digits."""
    return b'{"name": "g", "nodes": ' + b"1" * size + b"}"


def form(file: bytes) -> bytes:
    """A form with one file."""
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    return head + file + b"\r\n--x--\r\n"


FILES = (
    Hostile("archive of 64 MB of zeros", GRAPHS, ZIP, lambda: packed(zeros(UNPACKED)), 1, LEAVES_S),
    Hostile("4 archives of 64 MB of zeros", GRAPHS, ZIP, lambda: packed(zeros(UNPACKED)), 4, LEAVES_S),
    Hostile("archive of 20 MB of zeros", GRAPHS, ZIP, lambda: packed(zeros(20_000_000)), 4),
    Hostile("archive of a program and 60 MB of zeros", GRAPHS, ZIP, lambda: packed(integers(60_000_000)), 2, LEAVES_S),
    Hostile("archive of 60 MB of NaN", GRAPHS, ZIP, lambda: packed(without_numbers(60_000_000)), 2, LEAVES_S),
    Hostile("archive of 60 MB of digits", GRAPHS, ZIP, lambda: packed(b"[" + b"1" * 60_000_000 + b"]"), 2, LEAVES_S),
    Hostile("archive of 60 MB of spaces", GRAPHS, ZIP, lambda: packed(b" " * 60_000_000 + b"0"), 2, LEAVES_S),
    Hostile("archive of 60 MB of a text", GRAPHS, ZIP, lambda: packed(b'["' + b"a" * 60_000_000 + b'"]'), 2, LEAVES_S),
    Hostile("archive of 1 GiB", GRAPHS, ZIP, gigabyte, 2, LEAVES_S),
    Hostile("archive of 30,000 calls", GRAPHS, ZIP, lambda: exported(30_000), 2, LEAVES_S),
    Hostile("archive of 20,000 entries", GRAPHS, ZIP, lambda: entries(19_000), 2, LEAVES_S),
    Hostile("60 MB of a zip file's entries", GRAPHS, ZIP, lambda: b"PK\x03\x04" + b"PK\x01\x02" * 15_000_000, 2),
    Hostile("ONNX file of 100,000 nodes", GRAPHS, ONNX, lambda: onnx_chain(100_000), 1, LEAVES_S),
    Hostile("4 ONNX files of 100,000 nodes", GRAPHS, ONNX, lambda: onnx_chain(100_000), 4, LEAVES_S),
    Hostile("ONNX file of branches within branches", GRAPHS, ONNX, lambda: onnx_tree(90_000, 15), 2, LEAVES_S),
    Hostile("ONNX file of 900,000 weights", GRAPHS, ONNX, lambda: onnx_weights(900_000), 2, LEAVES_S),
    Hostile("60 MB of digits", GRAPHS, "application/json", lambda: deep_json(60_000_000), 2),
    Hostile("60 MB of zeros as ONNX", GRAPHS, ONNX, lambda: bytes(60_000_000), 2),
    Hostile(
        "form of an archive of 64 MB", GRAPHS, "multipart/form-data; boundary=x", lambda: form(packed(zeros(UNPACKED)))
    ),
)
