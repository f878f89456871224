"""`gpucast doctor`, `gpucast predictors`, and starts that cannot succeed: a sentence with what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config import Settings
from app.runtime.start_checks import folder_problem, port_problem
from tests.forked import run_command


def gpucast(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, env=os.environ | environment)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that something listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def test_a_port_in_use_is_named_with_another_one(taken: int, tmp_path: Path) -> None:
    done = gpucast("serve", PORT=str(taken), GPUCAST_DATA_DIR=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"gpucast: Port {taken} is in use: stop what listens there, or set another one, like PORT={taken + 1}."
    ]
    assert not port_problem(Settings(port=0))
    assert "HOST=203.0.113.1" in port_problem(Settings(port=taken, host="203.0.113.1"))


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    assert folder_problem(tmp_path / "new" / "folder") == ""
    (tmp_path / "file").touch()
    assert "is a file; set GPUCAST_DATA_DIR" in folder_problem(tmp_path / "file" / "data")
    done = gpucast("serve", PORT="0", GPUCAST_DATA_DIR=str(tmp_path / "file" / "data"))
    assert done.returncode == 1 and "set GPUCAST_DATA_DIR" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_another_user_is_named(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    assert "is not writable for user" in folder_problem(tmp_path / "closed" / "data")


@pytest.mark.slow
def test_doctor_reports_each_part(taken: int, tmp_path: Path) -> None:
    environment = {"GPUCAST_DATA_DIR": str(tmp_path), "DATABASE_URL": ""}
    well = gpucast("doctor", PORT="0", **environment)
    assert well.returncode == 0, well.stdout + well.stderr
    parts = [line.split()[:2] for line in well.stdout.splitlines()]
    for part in ("versions", "packages", "data", "database", "port", "artefacts"):
        assert ["ok", part] in parts, well.stdout
    ill = gpucast("doctor", PORT=str(taken), **environment | {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"},
                  GPUCAST_DATABASE_WAIT_S="0.1")  # fmt: skip
    assert ill.returncode == 1
    problems = [line for line in ill.stdout.splitlines() if line.startswith("problem")]
    assert [line.split()[1] for line in problems] == ["database", "port"], ill.stdout


@pytest.mark.slow
def test_predictors_are_listed_with_their_versions(tmp_path: Path) -> None:
    done = gpucast("predictors", "--json", GPUCAST_DATA_DIR=str(tmp_path), DATABASE_URL="")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["auto"]["answering"]["*"].startswith("shipped-") and rows["auto"]["shipped_rows"] > 1e6
    assert rows["forest"]["answering"] == {} and rows["forest"]["predicts"] == ["launches"]


@pytest.mark.slow
def test_the_accuracy_of_a_shipped_version_is_printed_by_family(tmp_path: Path) -> None:
    environment = {"GPUCAST_DATA_DIR": str(tmp_path), "DATABASE_URL": ""}
    done = gpucast("predictors", "--accuracy", "--predictor", "tilewave", **environment)
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["held", "out", "family", "MAPE,", "%", "in", "the", "80", "%", "interval,", "%", "rows"]
    splits = {"configuration_held_out", "gpu_held_out"}
    assert {line.split()[0] for line in lines if line.split()[1] == "linear"} == splits, done.stdout
    none = gpucast("predictors", "--accuracy", "--predictor", "roofline", **environment)
    assert none.returncode != 0 and "roofline ships no trained version" in none.stderr
