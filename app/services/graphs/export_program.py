"""Convert a torch.export archive (.pt2) to records of ATen calls, as `gpucast trace` does in PyTorch, and to a graph.

The file is untrusted: only its JSON program is read. Weights, constants and examples, some of them pickles, are never
opened, and sizes stated in the file are not trusted. Fields are those of PyTorch's torch/_export/serde/schema.py that
shapes depend on. Others, and so those of later versions, are ignored. Sizes that an export left dynamic take their
value from its example.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from app.errors import BadInput, Malformed, TooLarge
from app.networks.importers.aten import BUFFER, GETITEM, INPUT, PARAMETER, Record, Ref, graph
from app.ops.base import MOST_BYTES
from app.wire.graph_form import MAX_NODES, MAX_RANK, MAX_TENSORS, check_graph

MAX_BRACKETS = 2_000_000  # each opens an object of some 200 bytes
# PyTorch before 2.6 writes these numbers, which are not JSON; no shape depends on them.
_NO_NUMBER = re.compile(rb"(?<=[:,\[ ])(?:-?Infinity|NaN)(?=[,\]} ])")
# ScalarType codes, by the names of torch.dtype.
_DTYPES = dict(enumerate(("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"), start=1)) | {
    12: "bool", 13: "bfloat16", 28: "int16", 29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fn",
    32: "float8_e5m2",
}  # fmt: skip

Name = Annotated[str, Meta(max_length=512)]
Some = Meta(max_length=MAX_TENSORS)


class _Named(Struct):
    name: Name


class _Hint(Struct):
    as_int: int | None = None


class _Expression(Struct):
    expr_str: str
    hint: _Hint | int | None = None


class _Size(Struct):
    as_int: int | None = None
    as_expr: _Expression | None = None


class _SizeArgument(Struct):
    as_int: int | None = None
    as_name: Name | None = None


class _Maybe(Struct):
    as_tensor: _Named | Name | None = None


class _Argument(Struct):
    as_tensor: _Named | None = None
    as_tensors: Annotated[list[_Named], Some] | None = None
    as_optional_tensor: _Maybe | None = None
    as_optional_tensors: Annotated[list[_Maybe], Some] | None = None
    as_sym_int: _SizeArgument | None = None
    as_sym_ints: Annotated[list[_SizeArgument], Some] | None = None
    as_int: int | None = None
    as_ints: Annotated[list[int], Some] | None = None
    as_bool: bool | None = None
    as_string: str | None = None


class _Input(Struct):
    arg: _Argument
    name: Name = ""
    kind: int | None = None


class _Node(Struct):
    target: Name
    inputs: Annotated[list[_Input], Some]
    outputs: Annotated[list[_Argument], Some]
    name: Name | None = None


class _Meta(Struct):
    dtype: int
    sizes: Annotated[list[_Size], Meta(max_length=MAX_RANK)]


class _Graph(Struct):
    inputs: list[_Argument]
    nodes: Annotated[list[_Node], Meta(max_length=MAX_NODES)]
    tensor_values: dict[str, _Meta]
    sym_int_values: dict[str, _Size] = {}


class _Held(Struct):
    arg: _Named


class _Spec(Struct):
    parameter: _Held | None = None
    buffer: _Held | None = None
    tensor_constant: _Held | None = None


class _Signature(Struct):
    input_specs: list[_Spec]


class _Module(Struct):
    graph: _Graph
    signature: _Signature


class Program(Struct):
    """An ExportedProgram."""

    graph_module: _Module


_DECODER = msgspec.json.Decoder(Program)
_KEYWORD = 2


def decode_program(text: bytes, place: str) -> Program:
    """Return a program from JSON. Raises Malformed, TooLarge or BadInput, with `place`, its file."""
    if text.count(b"{") + text.count(b"[") > MAX_BRACKETS:
        raise TooLarge(f"{place}: more than {MAX_BRACKETS:,} objects and lists.")
    try:
        return _DECODER.decode(_NO_NUMBER.sub(b"null", text))
    except msgspec.ValidationError as error:
        raise BadInput.at((place,), str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"{place}: invalid JSON: {error}.") from None
    except RecursionError:
        raise Malformed(f"{place}: nested too deeply.") from None


def to_records(program: Program, place: str) -> list[Record]:
    """Return the inputs, then every call that writes a tensor. Raises BadInput that names the wrong tensor."""
    reader = _Reader(program.graph_module.graph, place)
    return list(reader.inputs(program.graph_module.signature)) + list(reader.calls())


class _Reader:
    """Reader of one program, with its tensors and dynamic sizes by name."""

    def __init__(self, graph: _Graph, place: str) -> None:
        self._graph = graph
        self._place = f"{place}: graph_module.graph"

    def inputs(self, signature: _Signature) -> Iterator[Record]:
        """Yield records of weights, buffers and inputs."""
        specs = signature.input_specs
        kinds = {spec.parameter.arg.name: PARAMETER for spec in specs if spec.parameter}
        kinds |= {held.arg.name: BUFFER for spec in specs if (held := spec.buffer or spec.tensor_constant)}
        for argument in self._graph.inputs:
            if argument.as_tensor:
                name = argument.as_tensor.name
                yield Record(name, kinds.get(name, INPUT), (), {}, [self._tensor(name)])

    def calls(self) -> Iterator[Record]:
        """Yield records of calls; for calls with several results also one per result, as in PyTorch's graph."""
        for k, node in enumerate(self._graph.nodes):
            names = list(_written(node.outputs))
            if not any(names):  # sizes and checks
                continue
            target = node.target.removeprefix("torch.ops.")
            several = len(node.outputs) > 1 or node.outputs[0].as_tensor is None
            name = (node.name or f"{target} {k}") if several else names[0]
            args = [self._plain(given.arg) for given in node.inputs if given.kind != _KEYWORD]
            kwargs = {given.name: self._plain(given.arg) for given in node.inputs if given.kind == _KEYWORD}
            yield Record(name, target, args, kwargs, [self._tensor(written) for written in names])
            if several:
                for j, written in enumerate(names):
                    yield Record(written, GETITEM, (Ref(name), j), {}, [self._tensor(written)])

    def _plain(self, argument: _Argument) -> Any:
        """Return numbers, strings, tensor names, and lists of these; None for anything else."""
        lists = argument.as_tensors, argument.as_optional_tensors, argument.as_sym_ints
        several = next((items for items in lists if items is not None), None)
        if several is not None:
            return [self._value(item) for item in several]
        single = argument.as_tensor or argument.as_optional_tensor or argument.as_sym_int
        if single:
            return self._value(single)
        plain = argument.as_int, argument.as_ints, argument.as_bool, argument.as_string
        return next((value for value in plain if value is not None), None)

    def _value(self, item: _Named | _Maybe | _SizeArgument) -> Ref | int | None:
        """Return one tensor or size."""
        if isinstance(item, _Named):
            return Ref(item.name)
        if isinstance(item, _Maybe):
            tensor = item.as_tensor
            return None if tensor is None else Ref(tensor if isinstance(tensor, str) else tensor.name)
        if item.as_name is None:
            return item.as_int
        size = self._graph.sym_int_values.get(item.as_name)
        return None if size is None else _size(size)

    def _tensor(self, name: str) -> tuple[Sequence[int], str]:
        """Return shape and dtype; results that are not tensors count as a scalar."""
        if not name:
            return (), "float32"
        meta = self._graph.tensor_values.get(name)
        if meta is None:
            raise self._refusal(f"tensor_values lacks {name!r}, which a node or input refers to")
        sizes = [_size(size) for size in meta.sizes]
        if None in sizes:
            k = sizes.index(None)
            expression = meta.sizes[k].as_expr
            shown = expression.expr_str[:100] if expression else "no expression"
            message = f"size {k} of {name!r} is dynamic ({shown}), without an example"
            raise self._refusal(f"{message}: export with an example, or with fixed sizes")
        whole = [size for size in sizes if size is not None]
        if min(whole, default=0) < 0 or prod(whole) > MOST_BYTES:
            raise self._refusal(f"shape {whole} of {name!r} is invalid, or has more than {MOST_BYTES:.0e} elements")
        return whole, _DTYPES.get(meta.dtype, "float32")

    def _refusal(self, message: str) -> BadInput:
        return BadInput.at((self._place,), message)


def _size(size: _Size) -> int | None:
    """Return a size, for dynamic ones that of the example."""
    if size.as_expr is None:
        return size.as_int
    return size.as_expr.hint.as_int if isinstance(size.as_expr.hint, _Hint) else size.as_expr.hint


def _written(outputs: Sequence[_Argument]) -> Iterator[str]:
    """Yield names of results, empty for results that are not tensors."""
    for output in outputs:
        if output.as_tensors is not None:
            yield from (tensor.name for tensor in output.as_tensors)
        else:
            yield output.as_tensor.name if output.as_tensor else ""


MAX_ENTRIES = 20_000  # one for each weight
MAX_PROGRAM_BYTES = 64 * 2**20  # of JSON, unpacked
_ENTRY = b"PK\x01\x02"
# Paths of the program, in PyTorch up to 2.7 and later, optionally in a folder named like the archive.
_PROGRAM = re.compile(r"(?:([^/]+)/)?(?:serialized_exported_program|models/[^/]+)\.json")
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # methods that can be unpacked up to a limit
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError, OverflowError)


def read_archive(body: bytes) -> Mapping[str, Any]:
    """Return the JSON graph of an archive. Raises Malformed, TooLarge or BadInput that name the place in it."""
    name, place, text = _program(body)
    calls = to_records(decode_program(text, place), place)
    try:
        return check_graph(graph(name, calls), loc=(place,))
    except ValueError as error:
        raise BadInput.at((place,), str(error)) from None


def _program(body: bytes) -> tuple[str, str, bytes]:
    """Return the network's name, the path of its program, and the program's JSON."""
    if body.count(_ENTRY) > MAX_ENTRIES:  # counted first, because ZipFile reads all entries
        raise TooLarge(f"The archive has more than {MAX_ENTRIES:,} entries.")
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            entry = _find_program(archive)
            with archive.open(entry) as file:
                text = file.read(min(MAX_PROGRAM_BYTES, entry.file_size) + 1)
    except _BROKEN as error:
        raise Malformed(
            f"The archive is truncated, or not a zip file: {str(error)[:200] or type(error).__name__}."
        ) from None
    place = entry.filename
    if len(text) > MAX_PROGRAM_BYTES:
        raise TooLarge(f"{place[:200]}: more than {MAX_PROGRAM_BYTES:,} bytes, unpacked.")
    if len(text) != entry.file_size:
        raise Malformed(f"{place[:200]}: {len(text):,} bytes, but the archive states {entry.file_size:,}.")
    match = _PROGRAM.fullmatch(place)
    return (match and match[1]) or "exported", place, text


def unpacked_bytes(body: bytes) -> int:
    """Return the size of an archive's program, unpacked, as the archive states it; 0 if it cannot be read."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            return _find_program(archive).file_size
    except (*_BROKEN, BadInput):
        return 0


def _find_program(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    programs = [
        entry for entry in archive.infolist() if len(entry.filename) < 500 and _PROGRAM.fullmatch(entry.filename)
    ]
    if len(programs) != 1:
        held = ", ".join(entry.filename for entry in programs[:5]) or "none"
        expected = "one program, models/<name>.json or serialized_exported_program.json"
        raise BadInput(f"A torch.export archive has {expected}; this one has {held[:500]}.")
    if programs[0].compress_type not in _PACKED or programs[0].flag_bits & 1:
        raise Malformed(f"{programs[0].filename}: encrypted, or compressed by another method than deflate.")
    return programs[0]
