"""`gpucast sbatch`: with lists of partitions, and on a real Slurm."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config import Settings
from tests.forked import run_command
from tests.slurm_cluster import slurm_cluster

pytestmark = pytest.mark.slow

JOB = ["--model", "gpt2", "--mode", "training", "--batch", "16", "--dtype", "bf16", "--sequence", "512"]
PRICES = ["--price", "nvidia-l4=0.8", "--price", "a100-sxm4-40gb=3", "--price", "h100-sxm5-80gb=9"]
LINES = """\
debug* up 30:00 2 gpu:l4:1
batch up 2-00:00:00 4 gpu:a100:4(S:0-1),gpu:l4:2
odd up infinite 1 gpu:k9000:8
cpu up infinite 12 (null)
"""


@pytest.fixture
def environment(settings: Settings, tmp_path: Path) -> dict[str, str]:
    return os.environ | {"DATABASE_URL": settings.database_url or "", "GPUCAST_DATA_DIR": str(tmp_path)}


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    # The path of a socket has at most 107 letters.
    with tempfile.TemporaryDirectory(prefix="slurm") as folder, slurm_cluster(Path(folder)) as environment:
        yield environment


def sbatch(environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return run_command("sbatch", *JOB, *options, env=environment)


def test_the_type_that_was_planned_is_requested(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "partitions").write_text(LINES)
    steps = ["--steps", "20000", "--max-devices", "1", "--partitions", str(tmp_path / "partitions")]
    done = sbatch(environment, *PRICES, *steps, "--deadline", "5400", "--", "job.sh", "--epochs=3")
    assert done.returncode == 0, done.stderr
    program, partition, nodes, gpus, limit, *script = done.stdout.split()
    assert program == "sbatch" and script == ["job.sh", "--epochs=3"]
    assert (partition, nodes, gpus) == ("--partition=batch", "--nodes=1", "--gpus-per-node=a100:1")
    assert limit.startswith("--time=0-")
    for reason in (
        "gpu:a100 is planned as a100-sxm4-40gb, the usual product; --name a100=GPU names another: ",
        "Left out of odd: gpu:k9000 is no known GPU. Name it with --name k9000=GPU",
        "Left out of cpu: it has no GPUs.",
        "debug (gpu:l4) not chosen: nvidia-l4 misses the goals: deadline_s",
        "batch (gpu:l4) not chosen: nvidia-l4 misses the goals: deadline_s",
    ):
        assert f"gpucast: {reason}" in done.stderr


def test_jobs_that_no_partition_can_take_are_reported(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "partitions").write_text("tiny up 1 1 gpu:a100:1\nsmall up infinite 1 gpu:l4:1\n")
    done = sbatch(environment, "--partitions", str(tmp_path / "partitions"), "--steps", "20000", "--", "job.sh")
    assert done.returncode == 0 and "--partition=small" in done.stdout
    assert "tiny (gpu:a100) not chosen: its time limit is 0-00:01:00, and the job takes up to " in done.stderr
    done = sbatch(environment, "--partitions", str(tmp_path / "partitions"), "--deadline", "1e-6", "--", "job.sh")
    assert done.returncode == 1
    assert "No partition has the GPUs and the time" in done.stderr and done.stderr.count("too long") == 2
    assert "At most 8 GPUs were tried: --max-devices allows more." in done.stderr


def test_a_real_slurm_starts_the_job_on_the_planned_type(
    environment: dict[str, str], slurm: dict[str, str], tmp_path: Path
) -> None:
    environment |= {name: slurm[name] for name in ("PATH", "SLURM_CONF")}
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\nscontrol show job $SLURM_JOB_ID > {tmp_path}/shown\n")
    goals = ["--steps", "20000", "--deadline", "5400", "--max-devices", "1", "--submit"]
    done = sbatch(environment, *PRICES, *goals, "--", f"--output={tmp_path}/output", str(script))
    assert done.returncode == 0 and done.stdout.startswith("Submitted batch job"), done.stderr
    for reason in (
        "Left out of closed: the partition is down.",
        "Left out of old: GPUs whose type Slurm does not name",
        "Left out of cpu: it has no GPUs.",
        "short (gpu:a100) not chosen: its time limit is 0-00:05:00",
        "mixed (gpu:l4) not chosen: nvidia-l4 misses the goals",
    ):
        assert reason in done.stderr
    shown = read_when_there(tmp_path / "shown")
    assert "Partition=mixed" in shown and "TresPerNode=gres:gpu:a100:1" in shown and "TimeLimit=0" in shown


def read_when_there(file: Path) -> str:
    """Return the text of a file that another process writes, within 30 s."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if file.exists() and "TimeLimit" in file.read_text():
            break
        time.sleep(0.2)
    return file.read_text()
