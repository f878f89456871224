"""The CUDA kernels of `gpucast measure`: correct, compiled for several GPUs, with the work that the service counts."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from app.config import CHECKOUT
from app.engine.catalogue import load_seed_specs
from app.predictors.launches import resident_blocks
from app.services.kernels.launch import check_launch
from app.tables.complete import complete
from app.tables.gpus import GpuTable
from app.wire.kernel_tables import kernel_table
from app.wire.kernel_workload import KernelWorkload
from measure.kernel_definitions import CHECKS, STEPS, Case, cases
from tests.unit.kernels import kernels

pytestmark = pytest.mark.slow

SOURCES = CHECKOUT / "measure" / "cuda"
HERE = Path(__file__).parent
CASES = list(cases())
# Turing, Hopper and Blackwell, and a product of each.
TARGETS = {"75": "tesla-t4", "90": "h200-sxm-141gb", "100": "b200"}


def everything(folder: Path, name: str, before: str = "", after: str = "") -> Path:
    """One file that includes all sources."""
    lines = [f'#include "{path}"' for path in sorted(SOURCES.glob("*.cu"))]
    (folder / name).write_text("\n".join([before, *lines, after]))
    return folder / name


def library(folder: Path, code: Path, *options: str) -> ctypes.CDLL:
    """Compiled by g++ and loaded."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    made = folder / f"{code.stem}.so"
    words = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", *options, str(code), "-o", str(made)]
    subprocess.run(words, check=True)
    return ctypes.CDLL(str(made))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The sources compiled for threads of the host."""
    folder = tmp_path_factory.mktemp("on_host")
    launchers = "\n".join(f"LAUNCHER({name})" for name in CHECKS)
    code = everything(folder, "on_host.cpp", '#include "cuda_on_host.h"', launchers)
    return library(folder, code, f"-I{HERE}", "-ffp-contract=off", "-pthread")


@pytest.fixture(scope="module")
def toolkit() -> Path:
    """Folder of the CUDA toolkit."""
    found = shutil.which("nvcc")
    if found is None:
        pytest.skip("no nvcc")
    said = subprocess.run([found, "--dryrun", "-x", "cu", "/dev/null"], capture_output=True, text=True, check=True)
    return Path(re.search(r"_HERE_=(\S+)", said.stderr)[1]).parent  # type: ignore[index]


@pytest.fixture(scope="module")
def figures(toolkit: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, str], tuple[int, int]]:
    """Target and kernel -> registers per thread and bytes of static shared memory per block, by ptxas."""
    folder = tmp_path_factory.mktemp("nvcc")
    targets = [f"-gencode=arch=compute_{target},code=sm_{target}" for target in TARGETS]
    words = [str(toolkit / "bin" / "nvcc"), "-std=c++17", "-fatbin", "-Xptxas", "-v", *targets]
    code = everything(folder, "all.cu")
    said = subprocess.run([*words, code, "-o", folder / "all.fatbin"], capture_output=True, text=True, check=True)
    assert "spill stores" not in said.stderr or set(re.findall(r"(\d+) bytes spill", said.stderr)) == {"0"}
    assert "warning" not in said.stderr
    entry = r"Compiling entry function '(\w+)' for 'sm_(\d+)'(.*?)Used (\d+) registers([^\n]*)"
    return {
        (target, name): (int(registers), int((re.search(r"(\d+) bytes smem", rest) or [0, 0])[1]))
        for name, target, _, registers, rest in re.findall(entry, said.stderr, re.DOTALL)
    }


def run(library: ctypes.CDLL, case: Case, arguments: Sequence[Any]) -> None:
    """Launch; an array is passed as the address of its data, as the driver takes it."""
    held = [np.array([one.ctypes.data if isinstance(one, np.ndarray) else one]) for one in arguments]
    passed = (ctypes.c_void_p * len(held))(*(one.ctypes.data for one in held))
    getattr(library, f"launch_{case.kernel}")((ctypes.c_int * 4)(*case.grid, *case.block), passed)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_kernels_compute_the_results_of_numpy(host: ctypes.CDLL, name: str) -> None:
    case = CHECKS[name]
    arguments = case.draw(np.random.default_rng(1))
    expected = np.array(case.expected(*arguments))
    run(host, case, arguments)
    np.testing.assert_allclose(arguments[case.result], expected, rtol=1e-4, atol=1e-4)


def test_the_suite_has_the_launches_of_the_paper() -> None:
    assert len({case.kernel for case in CASES}) == 17  # its sixteen, and one that only stores
    table = kernel_table([workload(case, 16, 0) for case in CASES])
    launches = set(zip(table.label.tolist(), table.column("launch").tolist(), strict=True))
    assert len(launches) == len(CASES) >= 71  # each of its own to the service
    assert {case.kernel for case in CASES} == set(CHECKS)


def workload(case: Case, registers: int, shared: int) -> KernelWorkload:
    launch = {"threads_per_block": prod(case.block), "blocks": prod(case.grid)}
    compiled = {"registers_per_thread": registers, "shared_memory_per_block": shared}
    return msgspec.convert({"kind": "kernel", "name": case.kernel, **case.counts, **launch, **compiled}, KernelWorkload)


def test_every_launch_fits_the_gpu_that_it_is_compiled_for(figures: Mapping[tuple[str, str], tuple[int, int]]) -> None:
    specs = {spec.id: spec for spec in load_seed_specs()}
    for target, gpu in TARGETS.items():
        table = kernel_table([workload(case, *figures[target, case.kernel]) for case in CASES])
        rows = np.arange(len(CASES))
        assert not any(check_launch(table, GpuTable.from_specs([specs[gpu]]), rows, 0 * rows))


def test_both_branches_of_the_divergent_kernel_run(toolkit: Path, tmp_path: Path) -> None:
    """A compiler folds a product with an addition, 64 times over, into one."""
    words = [str(toolkit / "bin" / "nvcc"), "-std=c++17", "-ptx", "-arch=compute_90", str(SOURCES / "stream.cu")]
    subprocess.run([*words, "-o", str(tmp_path / "stream.ptx")], check=True)
    (body,) = re.findall(r"entry vector_add_divergent\(.*?\n}", (tmp_path / "stream.ptx").read_text(), re.DOTALL)
    assert len(re.findall(r"mul\.lo", body)) >= STEPS
    assert len(re.findall(r"xor\.b32", body)) >= 4 * STEPS  # one of the products', three of the other branch


# Threads of a block, registers of a thread, bytes of static shared memory: what any kernel may ask for.
LAUNCHES = [
    (threads, registers, shared)
    for threads in (32, 96, 256, 1000, 1024)
    for registers in (16, 33, 64, 200)
    for shared in (0, 1024, 4224, 8192, 20_000, 48_000)
]
OCCUPANCY = """
#include <cuda_occupancy.h>
extern "C" int blocks(const int* limits, int threads, int registers, int shared) {
    cudaOccDeviceProp gpu;
    gpu.computeMajor = limits[0], gpu.computeMinor = limits[1];
    gpu.maxThreadsPerBlock = limits[2], gpu.maxThreadsPerMultiprocessor = limits[3];
    gpu.regsPerBlock = gpu.regsPerMultiprocessor = limits[4], gpu.warpSize = 32, gpu.numSms = 1;
    gpu.sharedMemPerMultiprocessor = limits[5], gpu.sharedMemPerBlock = 49152, gpu.sharedMemPerBlockOptin = limits[6];
    gpu.reservedSharedMemPerBlock = limits[0] >= 8 ? 1024 : 0;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers, kernel.sharedSizeBytes = shared;
    kernel.numBlockBarriers = 1;
    cudaOccDeviceState state;
    cudaOccResult result;
    return cudaOccMaxActiveBlocksPerMultiprocessor(&result, &gpu, &kernel, &state, threads, 0)
        ? -1 : result.activeBlocksPerMultiprocessor;
}
"""


@pytest.mark.parametrize(("target", "gpu"), TARGETS.items())
def test_occupancy_equals_that_of_nvidias_runtime(
    figures: Mapping[tuple[str, str], tuple[int, int]], toolkit: Path, tmp_path: Path, target: str, gpu: str
) -> None:
    spec = next(spec for spec in load_seed_specs() if spec.id == gpu)
    code = tmp_path / "occupancy.cpp"
    code.write_text(OCCUPANCY)
    nvidias = library(tmp_path, code, f"-I{toolkit / 'include'}").blocks
    figured = ("max_threads_per_block", "max_threads_per_sm", "registers_per_sm", "shared_memory_per_sm_bytes")
    limits = [*divmod(int(target), 10), *(getattr(spec, name) for name in figured), spec.shared_memory_per_block_bytes]
    launches = LAUNCHES + [(prod(case.block), *figures[target, case.kernel]) for case in CHECKS.values()]
    names = ("threads_per_block", "registers_per_thread", "shared_memory_per_block")
    table = kernels([dict(zip(names, launch, strict=True)) for launch in launches])
    rows = np.arange(len(launches))
    ours = resident_blocks(table, GpuTable.from_specs([spec]), rows, 0 * rows).blocks
    held = (ctypes.c_int * 7)(*(int(limit) for limit in limits))
    assert dict(zip(launches, ours.tolist(), strict=True)) == {launch: nvidias(held, *launch) for launch in launches}


def test_kernels_on_a_gpu_are_correct_and_have_the_predicted_occupancy() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or find_spec("cupy") is None:
        pytest.skip("no GPU, or no CuPy")
    from measure.device import find
    from measure.kernels_suite import points
    from measure.runner import Runner

    device = find()
    chosen = {point.workload["name"]: point for point in reversed(points(device))}  # each kernel's first size
    runner = Runner(device, most_spread=np.inf)
    rows = [runner.run(point) for point in chosen.values()]
    assert {row["outcome"] for row in rows} == {"measured"}
    gpus = GpuTable.from_specs([complete(device.description)])
    names = ("threads_per_block", "registers_per_thread", "shared_memory_per_block")
    table, every = kernels([{name: row[name] for name in names} for row in rows]), np.arange(len(rows))
    assert resident_blocks(table, gpus, every, 0 * every).blocks.tolist() == [row["blocks_per_sm"] for row in rows]
