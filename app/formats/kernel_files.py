"""Files that describe one kernel launch, to a workload of kind `kernel`: PTX, cubin, CUDA C++, profiles and Triton.

What a file does not say is asked for (the grid of PTX), or assumed and said so in a note. `given` are fields of the
workload that the user sets beside the file: they count where the file is silent, and replace what it says afterwards.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from app.errors import BadInput, Malformed
from app.formats import ptx
from app.formats.profile_sheets import Cells, find_table, to_si
from app.formats.profilers import ncu_reports
from app.formats.profiles import KernelLaunch, LaunchTimes, short_name

_COMPILE_S = 120
_NVCC, _CLANG = ("-ptx", "-o"), ("-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_80", "-S", "-o")
_LAUNCH = ("blocks", "threads_per_block")
_WORK = ("flops", "bytes")
# Bits of a section's `info` that hold a kernel's registers, by NVIDIA's ELF.
_REGISTER_BITS = 24
_WARP_SIZE = 32
_PER_S = 10**9  # of its time stamps


class Described(NamedTuple):
    """A workload of kind `kernel`, and notes on what was assumed."""

    workload: dict[str, Any]
    notes: tuple[str, ...]


class Chosen(NamedTuple):
    """What the user says beside a file: the kernel of several, iterations of loops, and fields of the workload."""

    kernel: str | None
    trips: int | None
    fields: Mapping[str, Any]


def is_triton(content: object) -> bool:
    """Return whether JSON is the metadata that Triton writes beside a compiled kernel."""
    return isinstance(content, dict) and {"num_warps", "shared", "target"} <= set(content)


def describe(path: Path, chosen: Chosen) -> Described:
    """Return the launch that a file describes. Raises BadInput or Malformed for one that describes none."""
    return _complete(path, READERS[path.suffix.lower()](path, chosen), chosen)


def _complete(path: Path, described: Described, chosen: Chosen) -> Described:
    """Return the launch with defaults for what neither file nor user says. Raises BadInput without its size or work."""
    workload = {"kind": "kernel", **described.workload}
    known = workload | dict(chosen.fields)
    _ask_for([name for name in (*_LAUNCH, *_WORK) if name not in known], path)
    defaults = {"working_set_bytes": known["bytes"], "access_pattern": "coalesced", "dtype": "fp32"}
    absent = [name for name in ("registers_per_thread", "shared_memory_per_block") if name not in known]
    notes = tuple(f"{name} is not in the file: taken as 0" for name in absent)
    return Described({**defaults, **dict.fromkeys(absent, 0), **workload}, (*described.notes, *notes))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def _ask_for(missing: Sequence[str], path: Path) -> None:
    """Raise BadInput that asks for what a file does not say of its launch, if that is anything."""
    if missing:
        options = " ".join(f"--set {name}=N" for name in missing)
        raise BadInput(f"{path.name} does not say {' and '.join(missing)} of the launch: add {options}")


def _ptx(path: Path, chosen: Chosen) -> Described:
    return _of_ptx(path.read_bytes().decode("utf-8", "replace"), path, chosen)


def _of_ptx(text: str, path: Path, chosen: Chosen) -> Described:
    entry = _pick(ptx.read_entries(text, path.name), lambda each: each.name, path.name, chosen.kernel)
    counts, assumed = ptx.count(entry, chosen.trips)
    threads = chosen.fields.get("threads_per_block", entry.threads or entry.most_threads)
    notes = ["counted from PTX: each thread takes every branch, and bytes are those of all loads and stores, also of "
             "what caches keep; neighbouring lanes are taken to touch neighbouring words"]  # fmt: skip
    if assumed:
        taken = chosen.trips or ptx.ASSUMED_TRIPS
        notes.append(f"{assumed} loops do not say how often they run: taken as {taken} times, --set launch.trips=N")
    if counts.uncounted:
        notes.append(f"not counted: {', '.join(sorted(counts.uncounted))}")
    if entry.dynamic:
        notes.append("shared memory of a size that the launch gives is not in: --set shared_memory_per_block=BYTES")
    if entry.threads is None and entry.most_threads and "threads_per_block" not in chosen.fields:
        notes.append(f"threads of a block are taken as the most that it allows, {entry.most_threads}")
    registers = ptx.estimated_registers(entry)
    notes.append(f"{registers} registers are an estimate; ptxas -v prints them: --set registers_per_thread=N")
    workload: dict[str, Any] = {"name": short_name(entry.name), "shared_memory_per_block": entry.shared_bytes}
    workload |= {"registers_per_thread": registers}
    if threads:
        workload["threads_per_block"] = threads
    launch: dict[str, Any] = {"blocks": chosen.fields.get("blocks"), "threads_per_block": threads}
    _ask_for([name for name, value in launch.items() if not _is_number(value)], path)
    lanes = float(prod(launch.values()))
    workload["flops"] = sum(counts.flops.values()) * lanes
    workload["bytes"] = counts.bytes * lanes
    workload["lane_operations"] = counts.lane_operations * lanes
    if counts.atomics:
        workload["atomic_operations"] = counts.atomics * lanes
    if counts.flops:
        workload["dtype"] = max(counts.flops, key=lambda name: counts.flops[name])
    return Described(workload, tuple(notes))


def _pick(items: list[Any], name: Callable[[Any], str], file: str, named: str | None) -> Any:
    """Return the item `named` so, or the only one. Raises BadInput where that is not one."""
    matching = [item for item in items if named is None or name(item) == named]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(name(item) for item in items[:20])
    problem = f"has no kernel {named!r}" if named and not matching else f"has {len(items)} kernels"
    raise BadInput(f"{file} {problem}: name one by --set launch.kernel=NAME, of {names}")


def _cuda(path: Path, chosen: Chosen) -> Described:
    """Compile to PTX by the compiler of this machine."""
    nvcc, clang = shutil.which("nvcc"), shutil.which("clang++") or shutil.which("clang")
    compiler, options = (nvcc, _NVCC) if nvcc else (clang, _CLANG)
    if compiler is None:
        raise BadInput(
            f"{path.name} needs a compiler, and this machine has neither nvcc nor clang: where one is, run "
            f"`nvcc -ptx {path.name}` and predict {path.with_suffix('.ptx').name}."
        )
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "kernel.ptx")
        command = [compiler, *options, str(target), str(path.resolve())]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
        except subprocess.TimeoutExpired:
            raise BadInput(f"{path.name}: {Path(compiler).name} took over {_COMPILE_S} s.") from None
        if done.returncode != 0 or not target.is_file():
            message = (done.stderr or done.stdout).strip()[-500:]
            raise BadInput(f"{path.name} does not compile with {Path(compiler).name}: {message}")
        return _of_ptx(target.read_text("utf-8"), path, chosen)


def _cubin(path: Path, chosen: Chosen) -> Described:
    """Return registers and shared memory of a cubin; what its machine code computes is not counted."""
    sections = _sections(path)
    kernels = [name.removeprefix(".text.") for name in sections if name.startswith(".text.")]
    name = _pick(kernels, str, path.name, chosen.kernel)
    registers = sections[f".text.{name}"][0] >> _REGISTER_BITS
    shared = sections.get(f".nv.shared.{name}", (0, 0))[1]
    notes = ("a cubin is machine code, which is not counted: flops and bytes are those of --set",)
    workload = {"name": short_name(name), "registers_per_thread": registers, "shared_memory_per_block": shared}
    return Described(workload, notes)


def _sections(path: Path) -> dict[str, tuple[int, int]]:
    """Return `info` and size of the sections of an ELF file by name. Raises Malformed for another file."""
    body = path.read_bytes()
    try:
        if body[:6] != b"\x7fELF\x02\x01":
            raise ValueError("it is no 64-bit ELF file")
        offset, size, count, names = (
            struct.unpack_from("<Q", body, 0x28)[0],
            *struct.unpack_from("<HHH", body, 0x3A),
        )
        headers = [struct.unpack_from("<IIQQQQIIQQ", body, offset + k * size) for k in range(count)]
        table = headers[names][4]
        return {_text_at(body, table + header[0]): (header[7], header[5]) for header in headers}
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise Malformed(f"{path.name} is no cubin: {error}") from None


def _text_at(body: bytes, begin: int) -> str:
    end = body.find(b"\0", begin)
    if not 0 <= begin < len(body) or end < 0:
        raise ValueError("a section's name lies outside of the file")
    return body[begin:end].decode("utf-8", "replace")


def _profile(path: Path, chosen: Chosen) -> Described:
    """Return the launch of Nsight Compute's or rocprof-compute's CSV that took longest."""
    launches = [pair for report in ncu_reports(path) for pair in report.launches.items()] or _rocprof(path)
    if not launches:
        raise BadInput(
            f"{path.name} is no export of Nsight Compute (`ncu --csv --page raw`) or of rocprof-compute (pmc_perf.csv)."
        )
    launched = [pair for pair in launches if chosen.kernel in (None, pair[0].kernel, short_name(pair[0].kernel))]
    if not launched:
        names = ", ".join(dict.fromkeys(short_name(launch.kernel) for launch, _ in launches))
        raise BadInput(f"{path.name} has no kernel {chosen.kernel!r}: it has {names[:1000]}")
    launch, times = max(launched, key=lambda pair: pair[1].total_s)
    notes = []
    if len(launched) > 1:
        notes.append(f"{len(launched)} launches differ: that of {short_name(launch.kernel)} that took longest is asked")
    workload = {"name": short_name(launch.kernel), **launch.fields, **times.counted}
    if launch.device and times.seconds:
        workload["measured"] = [{"gpu": launch.device, "latency_ms": 1e3 * sum(times.seconds) / len(times.seconds)}]
        notes.append(f"the profiled time on {launch.device} is evidence")
    return Described(workload, tuple(notes))


_ROCPROF = {"Kernel_Name", "Grid_Size", "Workgroup_Size"}
_LANES = 64  # of a wavefront
_MATRIX_OPERATIONS = 512  # that a count of matrix cores stands for


def _rocprof(path: Path) -> list[tuple[KernelLaunch, LaunchTimes]]:
    """Return the launches of rocprof-compute's counters, by its own formulas for operations and traffic."""
    rows = find_table(path, lambda names: set(names) >= _ROCPROF)
    launches = []
    for row in rows or ():
        threads, grid = to_si(row["Workgroup_Size"]), to_si(row["Grid_Size"])
        if not threads or not grid:
            continue
        launch = KernelLaunch(
            row["Kernel_Name"].strip(),
            row.get("GPU_Name") or None,
            (max(round(grid / threads), 1),),
            (round(threads),),
            sum(to_si(row.get(name, "")) or 0.0 for name in ("Arch_VGPR", "Accum_VGPR")) or None,
            to_si(row.get("LDS_Per_Workgroup", "")),
        )
        times = LaunchTimes(counted=_counters(row))
        ends = [to_si(row.get(name, "")) for name in ("Start_Timestamp", "End_Timestamp")]
        if ends[0] is not None and ends[1] is not None:
            times.add((ends[1] - ends[0]) / _PER_S)
        launches.append((launch, times))
    return launches


def _counters(row: Cells) -> dict[str, Any]:
    """Return FLOPs by their most frequent format, and bytes to and from DRAM."""

    def read(*names: str) -> float:
        return sum(to_si(row.get(name, "")) or 0.0 for name in names)

    flops = {}
    for bits, dtype in (("F16", "fp16"), ("F32", "fp32"), ("F64", "fp64")):
        single = read(*(f"SQ_INSTS_VALU_{kind}_{bits}" for kind in ("ADD", "MUL", "TRANS")))
        vector = _LANES * (single + 2.0 * read(f"SQ_INSTS_VALU_FMA_{bits}"))
        flops[dtype] = vector + _MATRIX_OPERATIONS * read(f"SQ_INSTS_VALU_MFMA_MOPS_{bits}")
    flops["bf16"] = _MATRIX_OPERATIONS * read("SQ_INSTS_VALU_MFMA_MOPS_BF16")
    counted: dict[str, Any] = {}
    if any(name.startswith("SQ_INSTS_VALU") for name in row):
        counted = {"flops": sum(flops.values()), "dtype": max(flops, key=lambda name: flops[name])}
    for channel in ("TCC_EA0", "TCC_EA"):
        if f"{channel}_RDREQ_sum" in row:
            reads, short = read(f"{channel}_RDREQ_sum"), read(f"{channel}_RDREQ_32B_sum")
            writes, long = read(f"{channel}_WRREQ_sum"), read(f"{channel}_WRREQ_64B_sum")
            counted["bytes"] = 64 * (reads - short + long) + 32 * (short + writes - long)
            break
    return counted


def describe_triton(path: Path, content: Mapping[str, Any], chosen: Chosen) -> Described:
    """Return the launch of Triton's metadata, with the work of the PTX, or the registers of the cubin, beside it."""
    target = content["target"]
    warp = target.get("warp_size", _WARP_SIZE) if isinstance(target, dict) else _WARP_SIZE
    warps, shared = content["num_warps"], content["shared"]
    if not all(isinstance(value, int) and 0 <= value < 1 << 30 for value in (warp, warps, shared)):
        raise BadInput(f"{path.name}: num_warps, shared and target.warp_size must be whole numbers.")
    name = str(content.get("name", path.stem))
    own = {"threads_per_block": warps * warp, "shared_memory_per_block": shared}
    beside = next((path.with_suffix(kind) for kind in (".ptx", ".cubin") if path.with_suffix(kind).is_file()), None)
    fields = {**own, **chosen.fields}
    if beside is None:
        described = Described({"name": short_name(name)}, ("no .ptx or .cubin lies beside it: its work is --set's",))
    else:
        inner = chosen._replace(kernel=chosen.kernel or name, fields=fields)
        described = READERS[beside.suffix](beside, inner)
    workload = {"kind": "kernel", **described.workload, **own}
    notes = tuple(note for note in described.notes if "shared memory of a size" not in note)
    return _complete(path, Described(workload, notes), chosen)


READERS: dict[str, Callable[[Path, Chosen], Described]] = {
    ".ptx": _ptx,
    ".cubin": _cubin,
    ".cu": _cuda,
    ".csv": _profile,
}
