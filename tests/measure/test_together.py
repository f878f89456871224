"""Training steps of several processes: timed, written, and read as passes of several devices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("torch")

from app.errors import BadInput
from evaluation.data import read_own
from measure.commands import command
from measure.data_parallel import Peers
from measure.device import Device
from measure.models_suite import CONVNETS, point, points
from measure.output import Output
from measure.point import Point
from measure.runner import Runner

pytestmark = pytest.mark.slow

CPU = Device("cpu", "epyc-zen3-1-core", ("fp32",), 16e9, 1, "pytorch-2", "pytorch-2")
STEP: dict[str, Any] = {"kind": "model", "name": "squeezenet1_1", "mode": "training", "optimizer": "sgd"}
STEP |= {"image_size": 64, "batch": 4, "dtype": "fp32", "parallelism": {"data": 2}}


@pytest.fixture
def pair() -> Iterator[Device]:
    peers = Peers(2, 1)
    yield replace(CPU, peers=peers)
    peers.close()


def test_points_cover_training_of_every_convnet(pair: Device) -> None:
    found = points(pair)
    names = [one.workload["name"] for one in found]
    assert len({*names[: len(CONVNETS)]}) >= len(CONVNETS) - 1
    assert {*names} <= {*CONVNETS}
    for one in found:
        assert (one.workload["mode"], one.workload["parallelism"]) == ("training", {"data": 2})
        assert one.workload["batch"] in (4, 8, 16, 32)  # of both together


def test_a_joint_step_is_timed_and_read_as_two_devices(pair: Device, tmp_path: Path) -> None:
    """A process that goes takes its point with it, and no other."""
    runner, asked = Runner(pair, most_spread=math.inf), point(STEP, pair)
    row = runner.run(asked)
    assert row["outcome"] == "measured", row
    phases = [row[f"phases_ms.{name}"] for name in ("forward", "backward", "update")]
    assert min(phases) > 0
    output = Output(tmp_path / "a.parquet", {"name": CPU.name}, {})
    output.add(asked.digest, row | {"gpu": CPU.name, "source": "this test", "latency_ms": 1e3})
    output.write()
    (read,) = read_own(tmp_path)
    passes = {run.rpartition(" ")[2]: k for k, run in enumerate(read.batch_of.tolist())}
    assert passes.keys() == {"step_many", "training_forward_many", "training_backward_update_many"}
    seconds, ops = read.runs.rows.latency_s, read.runs.rows.ops
    assert seconds[passes["training_backward_update_many"]] == pytest.approx(1e-3 * (phases[1] + phases[2]))
    assert (ops.column("devices").tolist(), ops.column("batch").tolist()) == ([2.0] * 3, [2.0] * 3)

    prepared = asked.prepare()
    for process in psutil.Process().children():
        if "measure.peer" in process.cmdline():
            process.kill()
    lost = runner.run(Point("models", STEP, lambda: prepared, CPU.software))
    assert lost["outcome"].startswith("failed: ")
    assert runner.run(asked)["outcome"] == "measured"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"suite": ["operators"], "devices": 2}, "only the suite models"),
        ({"devices": 2}, "only the suite models"),
        ({"suite": ["models"], "devices": 10_000}, "10000 threads of"),
    ],
)
def test_invalid_joint_runs_are_rejected(tmp_path: Path, asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        command(out=tmp_path / "a.parquet", threads=1, **asked)
