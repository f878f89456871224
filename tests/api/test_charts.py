"""Charts in SVG: of the pages (`format=svg`) and of the commands (`--plot`), with the workload as their title."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from app.cli import predict, predictors
from app.config import Settings
from app.dashboard.charts.answers import workload_title

pytestmark = pytest.mark.slow

MODEL = "kind=model&name=resnet18&mode=training&batch=16&image_size=224&dtype=fp16&gpu=nvidia-l4&gpu=h100-sxm5-80gb"
TITLE = "resnet18, training, batch 16, 224 pixels, fp16"
SERVED = (
    "name=llama-3-8b&dtype=bf16&tensor=1&software=vllm&input_tokens=512&output_tokens=128&gpu=a100-sxm4-80gb"
    "&load=concurrency&level=8"
)
SERVING = {
    "kind": "serving",
    "name": "llama-3-8b",
    "dtype": "bf16",
    "software": "vllm",
    "input_tokens": 512,
    "output_tokens": 128,
    "load": {"concurrency": 8},
}


def drawn(text: str) -> tuple[str, list[str], ElementTree.Element]:
    """The title, all texts and the tree of a chart."""
    root = ElementTree.fromstring(text)
    title = root.findtext("{*}title") or ""
    assert root.attrib["aria-label"] == title
    return title, [item.text or "" for item in root.findall("{*}text")], root


@pytest.mark.parametrize(
    ("address", "title", "words", "lines"),
    [
        (f"/?{MODEL}", TITLE, "Time (orange: Pareto set)", 0),
        (f"/?{MODEL}&rank_by=throughput", TITLE, "per second (log scale)", 0),
        (
            f"/scaling?{MODEL}&devices=1,2,4",
            TITLE.replace(" batch 16,", ""),
            "per second, grey: ideal (log scale)",
            4,
        ),
        (f"/scaling?{MODEL}&chart=batches&batches=1,8", TITLE.replace(" batch 16,", ""), "batch (log scale)", 2),
        (f"/serving?{SERVED}", "llama-3-8b, vllm, 512 to 128 tokens, bf16", "output tokens per second and GPU", 1),
        (f"/serving?{SERVED}&chart=ranking", "llama-3-8b, vllm, 512 to 128 tokens, bf16, 8 in flight", "Throughput", 0),
        ("/accuracy?predictor=auto", "auto, all GPUs, on unseen GPUs", "percent of the measured time (log scale)", 0),
    ],
)
def test_pages_as_pictures(client: TestClient, address: str, title: str, words: str, lines: int) -> None:
    answer = client.get(f"{address}&format=svg")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.headers["content-security-policy"] == "default-src 'none'"
    found, texts, root = drawn(answer.text)
    assert found == title and title in texts and any(words in text for text in texts)
    assert len(root.findall("{*}polyline")) == lines and root.findall("{*}circle")


@pytest.mark.parametrize(
    "address", ["/?kind=model&name=resnet81", "/scaling?name=gpt2&devices=x", "/serving?name=resnet18"]
)
def test_wrong_addresses_of_pictures_are_answered_as_the_api_does(client: TestClient, address: str) -> None:
    answer = client.get(f"{address}&format=svg")
    assert 400 <= answer.status_code < 500 and answer.headers["content-type"] == "application/problem+json"


def test_nothing_to_draw_is_said(client: TestClient) -> None:
    answer = client.get(f"/?{MODEL.replace('h100-sxm5-80gb', 'rtx-4090')}&rank_by=cost&format=svg")
    assert answer.status_code == 422 and "no figure to draw" in answer.json()["detail"]


def run(settings: Settings, command: Any, *words: str) -> None:
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, [*words], env=settings.environment(), catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_charts_of_commands_have_the_workload_as_title(settings: Settings, tmp_path: Path) -> None:
    workload = tmp_path / "serving.json"
    workload.write_text(json.dumps(SERVING))
    served, gpus = [str(workload)], ["--gpu=a100-sxm4-80gb", "--gpu=h100-sxm5-80gb"]
    model = ["--model=resnet18", "--mode=training", "--batch=16", "--dtype=fp16", "--image-size=224"]
    prices = ["--price=a100-sxm4-80gb=1.5", "--price=h100-sxm5-80gb=3"]
    limits = ["--ttft=1000", "--tpot=50"]
    by_rate = tmp_path / "rate.json"
    by_rate.write_text(json.dumps(SERVING | {"load": {"rate_per_s": 2}}))
    for name, command, words in (
        ("compare", predict.compare, [*model, *gpus]),
        ("predict", predict.predict, [*model, *gpus]),
        ("plan", predict.plan, [*model, *gpus, "--steps=100", "--deadline=100"]),
        ("served compare", predict.compare, [*served, *gpus]),
        ("served predict", predict.predict, [*served, *gpus]),
        ("served plan", predict.plan, [str(by_rate), *gpus, *limits, *prices]),
    ):
        file = tmp_path / f"{name}.svg"
        run(settings, command, *words, f"--plot={file}")
        title, texts, root = drawn(file.read_text("utf-8"))
        expected = "llama-3-8b, vllm, 512 to 128 tokens" if "served" in name else TITLE
        assert title.startswith(expected) and title in texts, name
        assert len(root.findall("{*}circle")) == 2, name


def test_the_chart_of_accuracy(settings: Settings, tmp_path: Path) -> None:
    run(settings, predictors.predictors, f"--plot={tmp_path / 'accuracy.svg'}")
    title, texts, _ = drawn((tmp_path / "accuracy.svg").read_text("utf-8"))
    assert title == "auto, on unseen GPUs" and "linear/bf16" in texts


@pytest.mark.parametrize(
    ("workload", "title"),
    [
        ({"kind": "kernel", "name": "stencil", "dtype": "fp32"}, "stencil, fp32"),
        (
            {"kind": "operators", "operators": [{"op": "linear", "m": 64, "n": 8, "dtype": "bf16"}, {"op": "add"}]},
            "linear, m 64, n 8, bf16, and 1 more",
        ),
        (
            {"kind": "model", "config": {"model_type": "llama"}, "batch": 1, "sequence": 2048},
            "llama, batch 1, 2,048 tokens",
        ),
        ({"kind": "graph", "batch": "many"}, "a graph"),
        ({"kind": "model", "name": "n" * 200}, f"{'n' * 81}..."),
    ],
)
def test_titles(workload: dict[str, Any], title: str) -> None:
    assert workload_title(workload) == title
