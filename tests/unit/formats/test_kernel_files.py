"""Files of one kernel become a launch: what they say is counted, what they do not is asked for or noted."""

import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.errors import BadInput, Malformed
from app.formats import ptx
from app.formats.kernel_files import Chosen, Described, describe, describe_triton, is_triton
from app.wire.kernel_workload import KernelWorkload

SAXPY = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry saxpy(.param .u64 x, .param .u64 y, .param .f32 a) // y = a x + y
{
  .reg .pred %p<2>; .reg .f32 %f<5>; .reg .b32 %r<6>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  ld.param.f32 %f1, [a];
  mov.u32 %r1, %ctaid.x;
  ld.global.f32 %f2, [%rd1];
  ld.global.f32 %f3, [%rd2];
  fma.rn.f32 %f4, %f1, %f2, %f3;
  st.global.f32 [%rd2], %f4;
  ret;
}
"""
LOOP = """
.version 8.0
.shared .align 4 .b8 tile[2048];
.visible .entry tiled(.param .u64 a) .reqntid 256, 1, 1
{
  mov.u32 %r1, 0;
$L__BB0_1:
  ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];
  st.shared.f32 [tile], %f1;
  bar.sync 0;
  mov.u32 %r2, 0;
$L__BB0_2:
  ld.shared.f32 %f5, [tile];
  fma.rn.f32 %f6, %f5, %f5, %f6;
  add.s32 %r2, %r2, 1;
  setp.lt.s32 %p1, %r2, 16;
  @%p1 bra $L__BB0_2;
  add.s32 %r1, %r1, 2;
  setp.lt.s32 %p2, %r1, END;
  @%p2 bra $L__BB0_1;
  ret;
}
"""
LAUNCH = {"blocks": 1000, "threads_per_block": 256}


def asked(path: Path, text: str | bytes, **fields: Any) -> Described:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    kernel, trips = fields.pop("kernel", None), fields.pop("trips", None)
    described = describe(path, Chosen(kernel, trips, fields))
    msgspec.convert(described.workload | fields, KernelWorkload)  # is a workload of the API
    return described


def test_instructions_of_ptx_are_counted(tmp_path: Path) -> None:
    found = asked(tmp_path / "saxpy.ptx", SAXPY, **LAUNCH).workload
    assert found["name"] == "saxpy" and found["dtype"] == "fp32"
    assert found["flops"] == 2 * 256_000 and found["bytes"] == 12 * 256_000
    assert found["lane_operations"] == 3 * 256_000 and found["registers_per_thread"] == 8


def test_loops_multiply_what_they_hold(tmp_path: Path) -> None:
    found = asked(tmp_path / "a.ptx", LOOP.replace("END", "8"), blocks=10)
    assert found.workload["threads_per_block"] == 256 and found.workload["shared_memory_per_block"] == 2048
    assert found.workload["flops"] == 2 * 16 * 4 * 2560 and found.workload["bytes"] == 16 * 4 * 2560
    assert not any("loops" in note for note in found.notes)


@pytest.mark.parametrize(("trips", "taken"), [(None, ptx.ASSUMED_TRIPS), (100, 100)])
def test_loops_to_an_unknown_end_are_assumed_and_noted(tmp_path: Path, trips: int | None, taken: int) -> None:
    found = asked(tmp_path / "a.ptx", LOOP.replace("END", "%r9"), blocks=10, trips=trips)
    assert found.workload["flops"] == 2 * 16 * taken * 2560
    assert any(f"1 loops do not say how often they run: taken as {taken}" in note for note in found.notes)


def test_products_of_tiles_count_for_all_lanes(tmp_path: Path) -> None:
    text = SAXPY.replace(
        "fma.rn.f32 %f4, %f1, %f2, %f3;",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f2};",
    )
    found = asked(tmp_path / "a.ptx", text, **LAUNCH).workload
    assert found["dtype"] == "fp16" and found["flops"] == 2 * 16 * 8 * 16 * 256_000 / 32


@pytest.mark.parametrize(
    ("text", "fields", "said"),
    [
        (SAXPY, {}, "--set blocks=N --set threads_per_block=N"),
        (SAXPY + LOOP, LAUNCH, "has 2 kernels: name one by --set launch.kernel=NAME, of saxpy, tiled"),
        (SAXPY, {**LAUNCH, "kernel": "other"}, "has no kernel 'other'"),
        (SAXPY.replace("}", ""), LAUNCH, "cut off"),
        ("\0" * 99, LAUNCH, "no .entry"),
        ("", LAUNCH, "no .entry"),
    ],
)
def test_ptx_without_a_launch_says_what_to_send(tmp_path: Path, text: str, fields: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said.replace("(", "\\(")):
        asked(tmp_path / "a.ptx", text, **fields)


def cubin(registers: int = 40, shared: int = 4096) -> bytes:
    """A cubin of one kernel: the ELF header, names, and two sections' headers."""
    names = b"\0.text.saxpy\0.nv.shared.saxpy\0"
    table = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    text = struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, 64, 0, 0, registers << 24, 1, 0)
    own = struct.pack("<IIQQQQIIQQ", 13, 8, 0, 0, 64, shared, 0, 0, 1, 0)
    begin = 64 + len(names)
    head = b"\x7fELF\x02\x01" + bytes(10) + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, begin, 0, 64, 0, 0, 64, 3, 0)
    return head + names + table + text + own


def test_a_cubin_has_registers_and_shared_memory(tmp_path: Path) -> None:
    found = asked(tmp_path / "a.cubin", cubin(), **LAUNCH, flops=1e9, bytes=1e6)
    assert found.workload["registers_per_thread"] == 40 and found.workload["shared_memory_per_block"] == 4096
    with pytest.raises(BadInput, match="--set flops=N --set bytes=N"):
        asked(tmp_path / "a.cubin", cubin(), **LAUNCH)


@pytest.mark.parametrize(
    "body", [b"", b"MZ\x90", cubin()[:80], cubin()[:64] + b"\xff" * 300, b"\x7fELF\x02\x01" + b"\xff" * 80]
)
def test_damaged_cubins_are_refused(tmp_path: Path, body: bytes) -> None:
    with pytest.raises((Malformed, BadInput)):
        asked(tmp_path / "a.cubin", body, **LAUNCH, flops=1e9, bytes=1e6)


def test_cuda_needs_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match=r"nvcc -ptx a\.cu"):
        asked(tmp_path / "a.cu", "__global__ void f() {}", **LAUNCH)


def test_cuda_is_compiled_to_ptx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saxpy.txt").write_text(SAXPY)
    tool = tmp_path / "nvcc"
    tool.write_text(f'#!/bin/sh\n[ "$1" = -ptx ] && /bin/cp {tmp_path}/saxpy.txt "$3"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert asked(tmp_path / "a.cu", "", **LAUNCH).workload["flops"] == 2 * 256_000


NCU = """==PROF== Disconnected
"ID","Kernel Name","Block Size","Grid Size","Device","device__attribute_display_name","gpu__time_duration.sum",\
"launch__registers_per_thread","launch__shared_mem_per_block_static","dram__bytes.sum"
"","","","","","","us","register/thread","byte/block","Mbyte"
"0","saxpy(float *)","(256, 1, 1)","(4096, 1, 1)","0","NVIDIA L4","90.0","16","0","12.0"
"1","copy(float *)","(128, 1, 1)","(8192, 1, 1)","0","NVIDIA L4","40.0","12","1024","8.0"
"""


def test_a_profile_of_nsight_compute_is_a_launch_with_evidence(tmp_path: Path) -> None:
    found = asked(tmp_path / "run.csv", NCU, flops=2e6)
    assert found.workload["name"] == "saxpy" and found.workload["blocks"] == 4096
    assert found.workload["bytes"] == 12_000_000 and found.workload["registers_per_thread"] == 16
    assert found.workload["measured"] == [{"gpu": "NVIDIA L4", "latency_ms": pytest.approx(0.09)}]
    assert asked(tmp_path / "run.csv", NCU, flops=2e6, kernel="copy").workload["blocks"] == 8192
    with pytest.raises(BadInput, match="no kernel 'scan': it has saxpy, copy"):
        asked(tmp_path / "run.csv", NCU, flops=2e6, kernel="scan")


ROCPROF = """Kernel_Name,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Arch_VGPR,Accum_VGPR,SQ_INSTS_VALU_FMA_F32,\
SQ_INSTS_VALU_MFMA_MOPS_F16,TCC_EA_RDREQ_sum,TCC_EA_RDREQ_32B_sum,TCC_EA_WRREQ_sum,TCC_EA_WRREQ_64B_sum,\
Start_Timestamp,End_Timestamp
saxpy.kd,1048576,256,512,24,8,16384,0,131072,0,65536,65536,1000,51000
"""


def test_counters_of_rocprof_compute_are_work(tmp_path: Path) -> None:
    found = asked(tmp_path / "pmc_perf.csv", ROCPROF).workload
    assert found["blocks"] == 4096 and found["threads_per_block"] == 256 and found["registers_per_thread"] == 32
    assert found["flops"] == 2 * 64 * 16384 and found["bytes"] == 64 * (131072 + 65536) and found["dtype"] == "fp32"


def test_other_csv_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="ncu --csv --page raw"):
        asked(tmp_path / "run.csv", "a,b\n1,2\n", **LAUNCH)


TRITON = {"name": "saxpy", "num_warps": 8, "shared": 1024, "target": {"backend": "cuda", "arch": 80, "warp_size": 32}}


def test_metadata_of_triton_describes_the_launch_of_its_ptx(tmp_path: Path) -> None:
    (tmp_path / "saxpy.ptx").write_text(SAXPY)
    path = tmp_path / "saxpy.json"
    assert is_triton(TRITON)
    found = describe_triton(path, TRITON, Chosen(None, None, {"blocks": 1000})).workload
    assert found["threads_per_block"] == 256 and found["shared_memory_per_block"] == 1024
    assert found["flops"] == 2 * 256_000


@pytest.mark.parametrize("wrong", [{"num_warps": "8"}, {"shared": -1}, {"num_warps": 1 << 40}])
def test_wrong_metadata_of_triton_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(BadInput, match="whole numbers"):
        describe_triton(tmp_path / "a.json", TRITON | wrong, Chosen(None, None, {"blocks": 1}))
