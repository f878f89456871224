"""`gpucast evaluate` from a terminal: output, files and errors."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from app import cli
from evaluation.commands import command as studies
from tests.accuracy.test_cross_gpu_kernels import DATA
from tests.forked import run_command

pytestmark = pytest.mark.slow


def evaluate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("evaluate", "cross-gpu-kernels", *arguments, env=os.environ, timeout=250)


@pytest.mark.parametrize("study", [item.name for item in studies.registered_commands])
def test_the_data_folder_is_required(study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUCAST_SHARED_DATA", raising=False)
    refused = CliRunner().invoke(studies, [study])
    assert refused.exit_code != 0
    message = refused.output + str(refused.exception)
    assert "--data" in message and "GPUCAST_SHARED_DATA" in message
    again = CliRunner().invoke(studies, [study, "--data", __file__])
    assert again.exit_code == 2 and "is a file" in again.output


@pytest.mark.parametrize(("called", "package"), [("evaluate", "evaluation"), ("measure", "measure")])
def test_an_installation_without_the_package_says_so(
    called: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> ModuleType:
        raise ModuleNotFoundError(name, name=name.partition(".")[0])

    monkeypatch.setattr(cli, "import_module", absent)
    monkeypatch.setattr(sys, "argv", ["gpucast", called, "--help"])
    with pytest.raises(SystemExit, match=f"gpucast {called} needs the folder {package}/"):
        cli.main()


def test_unknown_folder_and_missing_file(tmp_path: Path) -> None:
    absent = evaluate("--data", str(tmp_path / "nowhere"))
    assert absent.returncode == 1
    assert "nowhere is not a folder. Pass --data" in absent.stderr
    empty = evaluate("--data", str(tmp_path))
    assert empty.returncode == 1
    assert "has no readable gpu_metrics.json. Pass --data the folder that holds" in empty.stderr
    assert "Traceback" not in absent.stderr + empty.stderr


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no data in {DATA}")
def test_the_papers_tables_without_the_clean_rows(tmp_path: Path) -> None:
    (tmp_path / "cuda_kernels").mkdir()
    for path in (*DATA.glob("runs_*_final.csv"), DATA / "gpu_metrics.json"):
        (tmp_path / "cuda_kernels" / path.name).symlink_to(path)
    done = evaluate("--data", str(tmp_path), "--json", str(tmp_path / "cells.json"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert ["efficiency", "1", "mape", "86.62", "86.62", "135"] in [line.split() for line in lines]
    assert "no clean protocol" in lines[-1]
    written = json.loads((tmp_path / "cells.json").read_text())
    assert written["study"] == "cross-gpu-kernels"
    assert written["cells"][0] == {
        "table": "3", "experiment": "1", "predictor": "efficiency", "metric": "mape",
        "paper": 86.62, "measured": 86.62, "n": 135,
    }  # fmt: skip
    refused = evaluate("--data", str(tmp_path), "--json", str(tmp_path / "none" / "cells.json"))
    assert (refused.returncode, "Pass --json a file that can be written" in refused.stderr) == (1, True)
