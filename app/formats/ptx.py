"""Count the work of a kernel in PTX: instructions by class, times the iterations of the loops around them.

The counts are of one thread that takes every branch. Iterations follow from loops that count to a constant by a
constant; others are assumed, and said so. Registers are an estimate: PTX names as many as it likes, and ptxas assigns
them; the estimate is the most 32-bit values that are alive at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import NamedTuple

from app.coefficients import Coefficients
from app.errors import BadInput

# Iterations of a loop whose end is not in the text.
ASSUMED_TRIPS = int(Coefficients("launches").number("assumed_trips"))
_MOST_BYTES = 1 << 25
_WARP, _WARP_GROUP = 32, 128
_MOST_TIMES = 10**15
_MOST_REGISTERS, _GRANULE = 255, 8
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*(?:\((?:[^()]*)\))?([^{;]*)\{")
_BLOCK = re.compile(r"\.(reqntid|maxntid)\s+([\d\s,]+)")
_SHARED = re.compile(r"(\.extern\s+)?\.shared\s+(?:\.align\s+\d+\s+)?\.([a-z]+\d+)\s+([\w$%]+)\s*((?:\[\s*\d*\s*\])*)")
_LABEL = re.compile(r"([\w$%]+)\s*:(?!:)")
_STATEMENT = re.compile(r"(?:@!?(%[\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_REGISTER = re.compile(r"%[a-z]+\d+\b")
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_WIDTH = re.compile(r"[busf](\d+)|bf16|tf32")
_ADDS = {"add", "sub", "mul", "div", "min", "max", "rcp", "sqrt", "rsqrt", "sin", "cos", "ex2", "lg2", "tanh"}
_FORMATS = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "tf32": "tf32", "e4m3": "fp8", "e5m2": "fp8"}
_FORMATS |= {"f16x2": "fp16", "bf16x2": "bf16", "s8": "int8", "u8": "int8"}


class Statement(NamedTuple):
    """An instruction: its predicate (empty: none), opcode by its parts, and operands."""

    predicate: str
    opcode: tuple[str, ...]
    operands: str


class Loop(NamedTuple):
    """A loop: first and last statement, and its iterations; None if the text does not say."""

    first: int
    last: int
    trips: int | None


@dataclass
class Counts:
    """What one thread does, in every branch: FLOPs by format, bytes in global memory, and operations of lanes."""

    flops: dict[str, float] = field(default_factory=dict)
    bytes: float = 0.0
    lane_operations: float = 0.0
    atomics: float = 0.0
    barriers: float = 0.0
    uncounted: set[str] = field(default_factory=set)


class Entry(NamedTuple):
    """A kernel of a module: name, threads of a block (None: not fixed), their most, shared bytes, and statements.

    dynamic  it has shared memory whose size the launch gives
    labels   position of the statement that follows each
    """

    name: str
    threads: int | None
    most_threads: int | None
    shared_bytes: int
    dynamic: bool
    statements: Sequence[Statement]
    labels: dict[str, int]


def read_entries(text: str, file: str) -> list[Entry]:
    """Return the kernels of a module. Raises BadInput where there is none, or one does not end."""
    if len(text) > _MOST_BYTES:
        raise BadInput(f"{file} has {len(text):,} characters; PTX is read up to {_MOST_BYTES:,}.")
    plain = _COMMENT.sub(" ", text)
    entries = []
    for header in _ENTRY.finditer(plain):
        body = _body(plain, header.end(), f"{file}: kernel {header[1]}")
        sizes = {kind: prod(int(n) for n in given.split(",") if n.strip()) for kind, given in _BLOCK.findall(header[2])}
        used = [each for each in _SHARED.finditer(plain) if each[3] in body]
        shared = sum(_bytes_of(each[2]) * _elements(each[4]) for each in used if not each[1])
        statements, labels = _statements(body)
        dynamic = any(each[1] for each in used)
        name, threads, most = header[1], sizes.get("reqntid"), sizes.get("maxntid")
        entries.append(Entry(name, threads, most, shared, dynamic, statements, labels))
    if not entries:
        raise BadInput(f"{file} is not PTX with a kernel: it has no .entry.")
    return entries


def _body(text: str, begin: int, where: str) -> str:
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, begin):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[begin : brace.start()]
    raise BadInput(f"{where} does not end: the file is cut off.")


def _elements(extents: str) -> int:
    return prod(int(size or 0) for size in re.findall(r"\[\s*(\d*)\s*\]", extents))


def _statements(body: str) -> tuple[list[Statement], dict[str, int]]:
    statements, labels = list[Statement](), dict[str, int]()
    for piece in re.split(r"[;{}]", body):
        rest = piece.strip()
        while label := _LABEL.match(rest):
            labels[label[1]] = len(statements)
            rest = rest[label.end() :].strip()
        if (parts := _STATEMENT.match(rest)) is not None:
            statements.append(Statement(parts[1] or "", tuple(parts[2].split(".")), parts[3].strip()))
    return statements, labels


def loops_of(entry: Entry) -> list[Loop]:
    """Return the loops, one for each branch back, with the iterations of those that count to a constant."""
    loops = []
    for last, (predicate, opcode, operands) in enumerate(entry.statements):
        first = entry.labels.get(operands.strip(), last + 1) if opcode[0] == "bra" else last + 1
        if first <= last:
            loops.append(Loop(first, last, _trips(entry.statements, first, last, predicate)))
    return loops


def _trips(statements: Sequence[Statement], first: int, last: int, predicate: str) -> int | None:
    """Return the iterations of `setp.. p, r, END` and `add r, r, STEP` in the loop, with `mov r, BEGIN` before it."""
    inside = statements[first : last + 1]
    for test in inside:
        names = [name.strip() for name in test.operands.split(",")]
        if test.opcode[0] != "setp" or len(names) != 3 or names[0] != predicate or not _is_number(names[2]):
            continue
        steps = [_parts(each) for each in inside if each.opcode[0] == "add"]
        step = next((int(by, 0) for to, of, by in steps if to == of == names[1] and _is_number(by)), None)
        begins = [_parts(each) for each in statements[:first] if each.opcode[0] == "mov"]
        begin = next(
            (int(each[1], 0) for each in reversed(begins) if each[0] == names[1] and _is_number(each[1])), None
        )
        if step and begin is not None:
            return max(ceil((int(names[2], 0) - begin) / step), 1)
    return None


def _parts(statement: Statement) -> tuple[str, str, str]:
    names = [name.strip() for name in statement.operands.split(",")] + ["", "", ""]
    return names[0], names[1], names[2]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text) is not None


def count(entry: Entry, trips: int | None) -> tuple[Counts, int]:
    """Return what a thread does, and how many loops have assumed iterations: `trips`, or ASSUMED_TRIPS."""
    loops, counts = loops_of(entry), Counts()
    assumed = trips or ASSUMED_TRIPS
    for k, statement in enumerate(entry.statements):
        times = prod(float(loop.trips or assumed) for loop in loops if loop.first <= k <= loop.last)
        _add(counts, statement, min(times, _MOST_TIMES))
    for loop in loops:
        around = [each for each in loops if each.first <= loop.first and loop.last <= each.last]
        counts.lane_operations += min(prod(float(each.trips or assumed) for each in around), _MOST_TIMES)
    return counts, sum(loop.trips is None for loop in loops)


def _add(counts: Counts, statement: Statement, times: float) -> None:
    opcode = statement.opcode
    name, rest = opcode[0], opcode[1:]
    if name in {"mma", "wgmma", "wmma"}:
        shape = _SHAPE.search(".".join(rest))
        if shape is not None and not {"load", "store"} & set(rest):
            lanes = _WARP_GROUP if name == "wgmma" else _WARP
            _count_flops(counts, rest, 2.0 * prod(map(int, shape.groups())) / lanes * times, of_operands=True)
    elif name in {"fma", "mad"} and _format(rest):
        _count_flops(counts, rest, 2.0 * times)
    elif name in _ADDS and _format(rest):
        _count_flops(counts, rest, times)
    elif name in {"ld", "ldu", "st"} and "param" not in rest and "const" not in rest and "local" not in rest:
        counts.lane_operations += times
        if not any(space.startswith("shared") for space in rest):
            counts.bytes += _bytes_of(rest[-1]) * _vector(rest) * times
    elif name in {"atom", "red"}:
        counts.atomics += times
        counts.lane_operations += times
        counts.bytes += 0.0 if any(space.startswith("shared") for space in rest) else _bytes_of(rest[-1]) * times
    elif name == "cp" and "bulk" not in rest and "commit_group" not in rest and "wait_group" not in rest:
        sizes = [each.strip() for each in statement.operands.split(",")]
        counts.bytes += float(sizes[2]) * times if len(sizes) > 2 and sizes[2].isdecimal() else 0.0
        counts.lane_operations += times
    elif name in {"cp", "tcgen05", "call", "tex", "suld", "sust"} and "wait_group" not in rest:
        counts.uncounted |= set() if "commit_group" in rest else {name}


def _format(parts: Sequence[str]) -> str | None:
    return next((_FORMATS[part] for part in reversed(parts) if part in _FORMATS and part not in {"s8", "u8"}), None)


def _count_flops(counts: Counts, parts: Sequence[str], flops: float, of_operands: bool = False) -> None:
    """Add FLOPs in the format of the instruction, that of its operands for products of tiles."""
    named = [part for part in parts if part in _FORMATS]
    if not named:
        return
    operands = [part for part in named if part != "f32"] if of_operands else named[-1:]
    dtype = _FORMATS[(operands or named)[0]]
    counts.flops[dtype] = counts.flops.get(dtype, 0.0) + flops * (2.0 if named[-1].endswith("x2") else 1.0)


def _bytes_of(kind: str) -> int:
    width = _WIDTH.fullmatch(kind)
    return 4 if width is None else int(width[1]) // 8 if width[1] else (2 if kind == "bf16" else 4)


def _vector(parts: Sequence[str]) -> int:
    return next((int(part[1:]) for part in parts if re.fullmatch(r"v\d", part)), 1)


def estimated_registers(entry: Entry) -> int:
    """Return the most 32-bit values alive at once, in registers as the hardware allots them."""
    first, last = dict[str, int](), dict[str, int]()
    for k, statement in enumerate(entry.statements):
        for name in _REGISTER.findall(statement.operands):
            first.setdefault(name, k)
            last[name] = k
    for loop in loops_of(entry):
        for name, begin in first.items():
            if begin < loop.first <= last[name] <= loop.last:
                last[name] = loop.last
    changes = [0] * (len(entry.statements) + 2)
    for name, begin in first.items():
        words = 0 if name.startswith("%p") else 2 if name.startswith(("%rd", "%fd")) else 1
        changes[begin] += words
        changes[last[name] + 1] -= words
    alive = most = 0
    for change in changes:
        alive += change
        most = max(most, alive)
    return min(ceil((most + 1) / _GRANULE) * _GRANULE, _MOST_REGISTERS)
