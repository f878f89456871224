"""`gpucast kueue` and `gpucast dra`: a job on the GPUs of a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from app.cli import cluster
from app.config import Settings
from app.errors import BadInput
from app.services.scheduling.kueue import MAX_EXEC_TIME
from tests.unit.services.test_kueue import FLAVORS, JOB

pytestmark = pytest.mark.slow

MODEL = ["--model=gpt2", "--mode=training", "--batch=16", "--sequence=512", "--dtype=bf16", "--steps=20000"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flavors.yaml").write_text(FLAVORS)
    Path("job.yaml").write_text(JOB)


def run(settings: Settings, command: Any, *words: str) -> tuple[str, str]:
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, [*words, *MODEL], env=settings.environment(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def test_a_job_for_kueue(settings: Settings) -> None:
    prices = ["--price=a100-sxm4-80gb=1.5", "--price=nvidia-l4=0.8"]
    out, shown = run(settings, cluster.kueue, "job.yaml", "--flavors=flavors.yaml", "--deadline=5400", *prices)
    job = json.loads(out)
    (term,) = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["NVIDIA-A100-SXM4-80GB"]
    assert 0 < int(job["metadata"]["labels"][MAX_EXEC_TIME]) < 2 * 5400
    assert [line.split()[1] for line in shown.splitlines()[1:6]] == ["a100", "l4", "v100", "slice", "default"]
    assert "l4: takes " in shown and "v100: The network cannot run" in shown
    rows = json.loads(run(settings, cluster.kueue, "--flavors=flavors.yaml", "--json")[0])
    best = rows[0]["time"]
    assert best["low_s"] < best["job_s"] < best["high_s"] < best["limit_s"] and best["cost_usd"] is None


def test_a_claim_of_the_gpus_that_meet_a_deadline(settings: Settings) -> None:
    out, shown = run(
        settings, cluster.dra, "--deadline=3000", "--gpu=nvidia-l4", "--gpu=h100-sxm5-80gb", "--gpu=mi300x"
    )
    (request,) = json.loads(out)["spec"]["spec"]["devices"]["requests"]
    (chosen,) = request["exactly"]["selectors"]
    assert "NVIDIA H100 80GB HBM3" in chosen["cel"]["expression"] and "L4" not in chosen["cel"]["expression"]
    assert "nvidia-l4 is left out: takes " in shown


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        (cluster.kueue, ["job.yaml", "--flavors=flavors.yaml", "--deadline=1"], "No flavour meets the goal"),
        (cluster.kueue, ["--flavors=none.yaml"], "none.yaml cannot be read"),
        (cluster.kueue, ["--flavors=job.yaml"], "No ResourceFlavor"),
        (cluster.dra, ["--deadline=1", "--gpu=nvidia-l4"], "No GPU meets the goal"),
        (cluster.dra, ["--gpu=mi300x"], "NVIDIA's driver knows none"),
        (cluster.dra, ["--deadline=-1"], "--deadline must be more than 0, got -1"),
        (cluster.dra, ["--probability=2"], "--probability must be more than 0 and less than 1, got 2"),
    ],
)
def test_what_cannot_be_planned_is_said(settings: Settings, command: Any, words: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        run(settings, command, *words)
