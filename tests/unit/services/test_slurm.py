"""Slurm's partitions and times, and the proposal of `gpucast sbatch` with a real command behind it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from app.config import Settings
from app.engine.curated import load_seed_specs
from app.errors import BadInput
from app.services.scheduling.slurm import Partition, parse_partitions, slurm_time
from app.tables.catalog import Catalog

pytestmark = pytest.mark.slow

LINES = """\
debug* 30:00 gpu:l4:1
batch 2-00:00:00 gpu:a100:4(S:0-1)
long infinite gpu:a100:8,gpu:h100:2
odd infinite gpu:k9000:8
cpu infinite (null)
"""
NAMES = {"a100": "a100-sxm4-80gb", "h100": "h100-sxm5-80gb", "l4": "nvidia-l4"}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog(load_seed_specs())


def test_partitions(catalog: Catalog) -> None:
    found = parse_partitions(LINES.splitlines(), NAMES, catalog)
    assert [words.startswith("Left out of odd: ") for words in found.without] == [True]
    assert found.known == [
        Partition("debug", 1800.0, "nvidia-l4", 1),
        Partition("batch", 2 * 86_400.0, "a100-sxm4-80gb", 4),
        Partition("long", inf, "a100-sxm4-80gb", 8),
        Partition("long", inf, "h100-sxm5-80gb", 2),
    ]


@pytest.mark.parametrize(
    ("words", "seconds"), [("90", 5400), ("90:30", 5430), ("1:02:03", 3723), ("1-2", 93_600), ("1-02:03", 93_780)]
)
def test_times(catalog: Catalog, words: str, seconds: float) -> None:
    (found,) = parse_partitions([f"p {words} gpu:l4:1"], NAMES, catalog).known
    assert found.most_s == seconds


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("p", "expected a name"),
        ("p soon gpu:l4:1", "not a time"),
        ("p 10 gpu:a100x9:1", "Left out of p: .*a100x9.* --name a100x9=GPU"),
        ("p 10 gpu:4(S:0-1)", "Left out of p: .*gpu:TYPE:COUNT"),
        ("p 10 (null)", "known type.$"),
    ],
)
def test_unreadable_lines_are_rejected(catalog: Catalog, line: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        parse_partitions([line], {}, catalog)


def test_unknown_partitions_are_omitted_and_reported(catalog: Catalog) -> None:
    lines = [
        "old 10 gpu:k9000:2",
        "mixed 10 gpu:k9000:2,gpu:l4:4(S:0,2-3)",
        "plain 10 gpu:8,gpu:l4:1",
        "old 20 gpu:k9000:8",
    ]
    found = parse_partitions(lines, NAMES, catalog)
    assert found.known == [Partition("mixed", 600.0, "nvidia-l4", 4), Partition("plain", 600.0, "nvidia-l4", 1)]
    unknown, untyped = found.without
    assert unknown.startswith("Left out of old, mixed: ") and unknown.endswith("Name it with --name k9000=GPU")
    assert untyped.startswith("Left out of plain: ")


def test_a_name_of_no_gpu_is_rejected(catalog: Catalog) -> None:
    with pytest.raises(BadInput, match="--name l4=k9000"):
        parse_partitions(LINES.splitlines(), NAMES | {"l4": "k9000"}, catalog)


def test_times_are_rounded_up_to_a_minute() -> None:
    assert [slurm_time(s) for s in (1, 60, 3601, 90_000)] == ["0-00:01:00", "0-00:01:00", "0-01:01:00", "1-01:00:00"]


@pytest.fixture
def cluster(settings: Settings, tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment with a `sinfo` that prints LINES and a `sbatch` that prints its arguments."""
    for name, line in {"sinfo": f"cat <<'EOF'\n{LINES}EOF", "sbatch": 'printf "%s\\n" "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    yield os.environ | {"PATH": path, "DATABASE_URL": settings.database_url or "", "GPUCAST_DATA_DIR": str(tmp_path)}


def sbatch(cluster: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    names = [word for pair in NAMES.items() for word in ("--name", "=".join(pair))]
    command = [sys.executable, "-m", "app.cli", "sbatch", *names, *options, "--", "job.sh", "--epochs=3"]
    return subprocess.run(command, env=cluster, capture_output=True, text=True, check=False)


def test_a_job_is_submitted_to_a_partition_with_enough_time(cluster: dict[str, str]) -> None:
    job = ["--model", "gpt2", "--mode", "training", "--batch", "16", "--dtype", "bf16", "--sequence", "512"]
    price = ["--price", "nvidia-l4=0.8", "--price", "a100-sxm4-80gb=3", "--price", "h100-sxm5-80gb=9"]
    done = sbatch(cluster, *job, *price, "--steps", "20000", "--max-devices", "4", "--submit")
    assert done.returncode == 0, done.stderr
    assert "gpucast: Left out of odd: " in done.stderr and "--name k9000=GPU" in done.stderr
    partition, nodes, gpus, limit, *script = done.stdout.split()
    assert script == ["job.sh", "--epochs=3"]
    assert partition == "--partition=batch" and nodes == "--nodes=1"  # debug is too short for so many steps
    assert gpus.startswith("--gpus-per-node=") and limit.startswith("--time=0-")


def test_jobs_that_no_partition_can_take_are_reported(cluster: dict[str, str]) -> None:
    job = ["--model", "gpt2", "--mode", "training", "--batch", "16", "--sequence", "512"]
    done = sbatch(cluster, *job, "--deadline", "1e-6")
    assert done.returncode == 1 and "too long" in done.stderr
