"""`gpucast compare`, and options shared with `gpucast predict`: results of the route, CSV, charts in SVG and PNG."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
from fastapi.testclient import TestClient
from PIL import Image
from typer.testing import CliRunner

from app.cli import predict
from app.config import Settings
from app.errors import BadInput
from app.wire.operator_forms import OPERATORS_EXAMPLE

pytestmark = pytest.mark.slow

GPUS = ["nvidia-l4", "h100-sxm5-80gb"]
OPTIONS = [f"--gpu={gpu}" for gpu in GPUS]


def run(settings: Settings, command: Any, *words: str) -> str:
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, [*words], env=settings.environment(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def workload(tmp_path: Path) -> str:
    file = tmp_path / "workload.json"
    file.write_text(json.dumps(OPERATORS_EXAMPLE["workload"]))
    return str(file)


def test_the_command_equals_the_route(client: TestClient, settings: Settings, workload: str) -> None:
    words = ("--by=cost", "--price=nvidia-l4=0.8", "--power=nvidia-l4=60", "--json")
    answer = json.loads(run(settings, predict.compare, workload, *OPTIONS, *words))
    request = {
        "workload": OPERATORS_EXAMPLE["workload"],
        "gpus": GPUS,
        "rank_by": "cost",
        "prices": {"nvidia-l4": 0.8},
        "powers_w": {"nvidia-l4": 60},
    }
    assert answer == client.post("/compare", json=request).json()


def test_a_table_for_people(settings: Settings) -> None:
    how = ("--model=gpt2", "--batch=2", "--sequence=128", "--mode=training", "--search", "--max-devices=2")
    lines = run(settings, predict.compare, *OPTIONS, *how, "--by=throughput").splitlines()
    assert lines[1].split()[:2] == ["1", "h100-sxm5-80gb"]
    assert any(line.startswith("note: ") for line in lines)


def test_missing_figures_keep_the_columns_of_the_table(settings: Settings, workload: str) -> None:
    gpus = ["--gpu=nvidia-l4", "--gpu=rtx-4090"]  # no list price ships of these
    text = run(settings, predict.compare, workload, *gpus, "--price=nvidia-l4=0.8", "--by=energy", "--csv")
    head, *rows = csv.reader(io.StringIO(text))
    at = head.index("cost_usd")
    assert head[at + 1 : at + 4] == [f"cost_interval_usd.{end}" for end in ("low", "high", "coverage")]
    assert "cost_interval_usd" not in head and len(set(head)) == len(head)
    assert {bool(row[at + 1]) for row in rows} == {True, False}


@pytest.mark.parametrize(("command", "first"), [(predict.compare, "rank"), (predict.predict, "gpu")])
def test_as_csv(settings: Settings, workload: str, command: Any, first: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run(settings, command, workload, *OPTIONS, "--csv"))))
    assert next(iter(rows[0])) == first and {row["gpu"] for row in rows} == set(GPUS)
    assert all(float(row["interval_ms.low"]) <= float(row["latency_ms"]) for row in rows)


@pytest.mark.parametrize("command", [predict.compare, predict.predict])
def test_charts(settings: Settings, workload: str, command: Any, tmp_path: Path) -> None:
    for name in ("chart.svg", "chart.png"):
        run(settings, command, workload, *OPTIONS, "--plot", str(tmp_path / name))
    drawn = ElementTree.fromstring((tmp_path / "chart.svg").read_text("utf-8"))
    words = [text.text for text in drawn.findall("{*}text")]
    assert set(GPUS) <= set(words) and len(drawn.findall("{*}circle")) == 2
    with Image.open(tmp_path / "chart.png") as image:
        size = tuple(2 * int(drawn.attrib[side]) for side in ("width", "height"))
        assert image.format == "PNG" and image.size == size
        assert len(image.getcolors(1 << 20) or []) > 10


def test_undrawable_charts_are_rejected(settings: Settings, workload: str) -> None:
    with pytest.raises(BadInput, match=r"\.svg or \.png"):
        run(settings, predict.compare, workload, "--plot=chart.pdf")
    with pytest.raises(BadInput, match="no figure"):
        run(settings, predict.compare, workload, "--gpu=rtx-4090", "--by=cost", "--plot=chart.svg")
