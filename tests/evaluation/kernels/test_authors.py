"""The authors' pairing of rows on a small folder, by hand."""

import json
from pathlib import Path

import pytest

from app.errors import BadInput, NotFound
from evaluation.kernels.authors import RUN_FILES, evaluate, read_pairs

FIGURES = {
    "max_threads_per_sm": 1024,
    "max_blocks_per_sm": 16,
    "warp_size": 32,
    "registers_per_sm": 65536,
    "shared_mem_per_sm": 65536,
    "peak_mem_bandwidth_gbps": 616.0,
    "peak_fp32_gflops": 14000.0,
    "sustained_compute_gflops": 10000.0,
    "sustained_bandwidth_gbps": 267.0,
}
HEADER = "kernel,gpu_device_name,regs,shmem,block,N,iters,FLOPs,BYTES,working_set_bytes,mean_ms"


def folder(path: Path, runs: dict[str, list[str]]) -> Path:
    """A folder of the authors' form; `runs` maps a GPU letter to lines without their GPU."""
    for letter, name in zip("ABCD", RUN_FILES, strict=True):
        lines = [line.replace(",", f",{letter},", 1) for line in runs.get(letter, [])]
        (path / name).write_text("\n".join([HEADER, *lines]) + "\n")
    (path / "gpu_metrics.json").write_text(json.dumps([{"device_name": letter, **FIGURES} for letter in "ABCD"]))
    return path


def add(n: int, ms: float, iters: str = "") -> str:
    return f"add,12,0,256,{n},{iters},{n},{12 * n},{12 * n},{ms}"


def test_pairs_roles_and_order(tmp_path: Path) -> None:
    pairs = read_pairs(
        folder(
            tmp_path,
            {
                "A": [add(100, 1), add(200, 2), add(900, 9), add(200, 99)],
                "B": [add(100, 4), add(1000, 10)],
                "C": [add(200, 6), add(1000, 12), add(900, 8)],
            },
        )
    )
    # Configurations as text, where "N=1000|" comes before "N=100|"; first rows only; both orders of a pair of GPUs.
    rows = list(
        zip(pairs.launches.column("n"), pairs.source, pairs.target, pairs.source_ms, pairs.target_ms, strict=True)
    )
    assert rows == [
        (1000, 1, 2, 10, 12), (1000, 2, 1, 12, 10),
        (100, 0, 1, 1, 4), (100, 1, 0, 4, 1),
        (200, 0, 2, 2, 6), (200, 2, 0, 6, 2),
        (900, 0, 2, 9, 8), (900, 2, 0, 8, 9),
    ]  # fmt: skip
    # By working set: 100 is first, 200 second, 1000 last.
    assert pairs.role[::2].tolist() == ["test_extra", "baseline", "train_extra", "other"]
    assert pairs.gpu_features[0].tolist() == [14000, 10000, 0, 616, 267, 0, 0, 1024, 16, 65536, 65536, 32]


def test_iterations_are_part_of_a_configuration(tmp_path: Path) -> None:
    pairs = read_pairs(folder(tmp_path, {"A": [add(100, 1, "50")], "B": [add(100, 4)], "C": [add(100, 3, "50")]}))
    assert list(zip(pairs.source, pairs.target, strict=True)) == [(0, 2), (2, 0)]


def test_errors_name_file_and_row(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no readable gpu_metrics\.json\. Pass --data"):
        read_pairs(tmp_path)
    with pytest.raises(BadInput, match=r"runs_4070_final\.csv, line 3"):
        read_pairs(folder(tmp_path, {"B": [add(100, 1), add(100, 1).replace("12,0,256", "12,0,wide")]}))
    with pytest.raises(BadInput, match="line 2: missing or unreadable mean_ms"):
        read_pairs(folder(tmp_path, {"A": ["add,12"]}))
    with pytest.raises(BadInput, match="no pairs of GPUs to train or test experiment 1"):
        evaluate(folder(tmp_path, {"A": [add(100, 1)], "B": [add(100, 2)]}))
    folder(tmp_path, {})
    (tmp_path / "gpu_metrics.json").write_text("[1]")
    with pytest.raises(BadInput, match="not the authors' list of GPUs"):
        read_pairs(tmp_path)
