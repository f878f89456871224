"""`gpucast measure` stopped by a signal and resumed in a new process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from app.config import CHECKOUT
from app.errors import BadInput, GpucastError

pytest.importorskip("torch")

from measure.commands import command

pytestmark = pytest.mark.slow


def test_sigterm_keeps_the_measurements(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    asked = ["--suite", "operators", "--only", "tanh", "--dtype", "fp32", "--threads", "1", "--minutes", "5"]
    words = [sys.executable, "-m", "app.cli", "measure", *asked, "--out", str(out)]
    with subprocess.Popen(words, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 300
        while not out.with_name("out.parquet.part").exists() and time.monotonic() < until:
            time.sleep(0.1)
        with pytest.raises(BadInput, match="Another gpucast measure writes"):
            command(out=out, suite=["operators"], threads=1, minutes=0.0)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert "stopped" in said
    assert not out.with_name("out.parquet.lock").exists()
    assert len(pq.read_table(out)) >= 1
    assert not out.with_name("out.parquet.part").exists()


def test_a_restarted_process_gets_the_options_and_the_remaining_time(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    words = ["gpucast", "measure", "--suite", "operators", "--threads", "1", "--minutes", "60", "--out", str(out)]
    code = f"import sys; sys.argv = {words}; from measure.commands import _again; _again(0.0)"
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, timeout=300, check=True, stderr=subprocess.PIPE)
    assert len(pq.read_table(out)) == 0


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"only": ["nope"], "suite": ["operators"]}, "'nope' is not measured here; .*linear"),
        ({"suite": ["nope"]}, "'nope' is not a suite"),
        ({"dtype": ["fp8"]}, "has no fp8 here"),
        ({"workload": Path("mine.json")}, "needs --plan"),
        ({"plan": True}, "--server URL"),
        ({"server": "http://127.0.0.1:9"}, "127.0.0.1:9 does not answer"),
        ({"server": "nonsense"}, "does not answer"),
    ],
)
def test_invalid_options_are_reported_before_measuring(tmp_path: Path, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(GpucastError, match=words):
        command(out=tmp_path / "out.parquet", threads=1, minutes=5.0, **asked)
    assert not (tmp_path / "out.parquet").exists()
