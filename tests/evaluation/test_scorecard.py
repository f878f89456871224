"""The scorecard: cases as requests, even samples, and errors of cells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from evaluation.commands import command
from evaluation.render import text_lines
from evaluation.scorecard import FOLDER, MARKER, evaluate, evenly, report
from evaluation.sources import STUDIES
from evaluation.sources.facts import config_of
from evaluation.study import Case, Errors, Goal, Part, Result, Row, Study, shipped_snapshot

RESNET = {"kind": "model", "name": "resnet18", "batch": 8, "dtype": "fp32"}
ROW = {
    "folder": "results", "file": "a.csv", "gpu": "TITAN V", "devices": 1, "dtype": "fp32", "mode": "inference",
    "model": "resnet18", "batch": 12, "image_size": 224, "latency_ms": 6.0,
}  # fmt: skip


def _cases(rows: Sequence[Row]) -> Iterator[Case]:
    yield Case("titan-v", "resnet18", "fp32", "one", 0.004, (Part(1.0, RESNET),))
    yield Case("titan-v", "resnet18", "fp32", "twice", 0.008, (Part(2.0, RESNET),))
    yield Case("titan-v", "resnet18", "fp8", "wrong", 0.008, (Part(1.0, RESNET | {"dtype": "fp31"}),))
    yield Case("abacus", "resnet18", "fp32", "unknown", 0.008, (Part(1.0, RESNET),))
    yield Case("titan-v", "lenet", "fp32", "none", 0.008, (), "lenet is not built in")


STUDY = Study("made_up", "Made up", ("nothing",), (Goal("fp32", "fp32", 10.0),), _cases)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    folder = tmp_path_factory.mktemp("data")
    (folder / FOLDER).mkdir()
    pq.write_table(pa.table({"n": [1]}), folder / FOLDER / "made_up.parquet")
    return evaluate(folder, STUDY, shipped_snapshot(), 100, lambda line: None)


def test_a_case_is_the_sum_of_its_requests_and_what_cannot_be_asked_has_a_reason(results: list[Result]) -> None:
    one, twice, wrong, unknown, none = results
    assert twice["predicted"] == pytest.approx(2.0 * one["predicted"])
    assert one["low"] < one["predicted"] < one["high"]
    assert "fp31" in wrong["reason"]
    assert "abacus" in unknown["reason"]
    assert none["reason"] == "lenet is not built in"


def test_cells_count_what_was_not_answered(results: list[Result]) -> None:
    errors = Errors.of(results)
    assert (errors.cases, errors.answered) == (5, 2)
    assert errors.median == pytest.approx(abs(results[0]["error"]))
    assert errors.bias == pytest.approx(results[0]["error"])
    done = report(results, [STUDY])
    text = "\n".join(text_lines(done.blocks))
    assert "1  made_up: lenet is not built in" in text
    assert "made_up fp32 " in text
    page = done.pages[MARKER]
    assert "**made_up**: Made up. Assumed:" in page
    assert done.record is not None and done.record["cells"][0]["asked"] == 2


def test_samples_are_even_and_keep_what_cannot_be_asked() -> None:
    some = [Case("g", "m", "x", str(k), 1.0, (Part(1.0, {}),) if k % 10 else ()) for k in range(100)]
    kept = evenly(some, 9)
    assert sum(bool(case.parts) for case in kept) == 9
    assert sum(not case.parts for case in kept) == 10
    assert evenly(some, 1000) == some


def test_sources_have_files_goals_and_assumptions() -> None:
    assert len({study.name for study in STUDIES}) == len(STUDIES)
    assert all(study.goals and study.assumptions for study in STUDIES)
    assert config_of("meta-llama/Llama-3.1-405B") is not None
    assert config_of("nobody/nothing") is None


def test_the_command_prints_and_records(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    rows = [ROW, ROW | {"devices": 2}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / FOLDER / "torchvision_convnets.parquet")
    record = tmp_path / "record.json"
    options = ["scorecard", "--data", str(tmp_path), "--source", "torchvision_convnets", "--results", str(record)]
    done = CliRunner().invoke(command, options)
    assert done.exit_code == 0, done.output
    assert "titan-v | resnet18 | fp32 inference" in done.output
    answered, split = json.loads(record.read_text("utf-8"))["cases"]
    assert answered["measured"] == 0.006
    assert "DataParallel" in split["reason"]
