"""Results of serving benchmarks, written by hand with the field names of their tools; their figures are invented."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.errors import BadInput, NotFound
from app.formats.serving.files import IMPORTERS, DeploymentOptions, read_files, reader_of, to_row
from app.formats.serving.reader import BenchmarkPoint, LeftOut, lengths_of, load_of
from app.services.measurements.importing import import_folder
from app.store import measurements
from app.store.session import Database

DATA = Path(__file__).parent / "data" / "serving"
LLAMA = DeploymentOptions(gpu="h100-sxm5-80gb", software="vllm-0.19.0", model="llama-3-8b", tensor=1)


def points(name: str) -> list[BenchmarkPoint]:
    placed, _ = read_files([DATA / name])
    return [one.point for one in placed]


def left_out(name: str) -> dict[str, str]:
    return {skip.where: skip.reason for skip in read_files([DATA / name])[1]}


def document(name: str, **changes: Any) -> dict[str, Any]:
    return {
        **json.loads((DATA / name).read_text("utf-8").splitlines()[0] if name.endswith("l") else _text(name)),
        **changes,
    }


def _text(name: str) -> str:
    return (DATA / name).read_text("utf-8")


def written(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "result.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "load", "tokens", "times_ms", "requests", "tokens_per_s"),
    [
        ("vllm.json", {"concurrency": 16}, (1024, 256, None), (121.0, 15.0, 121.0 + 255 * 15.0), 160, 987.0),
        ("sglang.jsonl", {"concurrency": 32}, (1024, 512, 0.2), (210.0, 11.7, 5600.0), 320, 2456.7),
        ("profile_export_aiperf.json", {"concurrency": 4}, (512, 128, None), (44.0, 9.5, 1250.5), 40, 409.0),
        ("profile_export_genai_perf.json", {"concurrency": 2}, (300, 128, None), (42.0, 7.0, 931.0), 20, 269.0),
        ("benchmarks.json", {"concurrency": 8}, (256, 128, None), (51.0, 8.0, 1067.0), 200, 950.0),
        ("stage_0_lifecycle_metrics.json", {"rate_per_s": 5}, (500, 128, None), (108.5, 14.5, 1950.0), 300, 638.0),
        ("agg_bmk.json", {"concurrency": 16}, (1024, 1024, 0.2), (280.0, 16.6, 15500.0), 160, 840.0),
    ],
)
def test_each_tools_results_become_the_same_table(
    name: str,
    load: dict[str, float],
    tokens: tuple[float, float, float | None],
    times_ms: tuple[float, float, float],
    requests: int,
    tokens_per_s: float,
) -> None:
    point = points(name)[0]
    assert point.load == load
    assert (point.input_tokens, point.output_tokens) == tokens[:2]
    assert point.length_spread == (tokens[2] if tokens[2] is None else pytest.approx(tokens[2]))
    assert (point.ttft_s * 1e3, point.tpot_s * 1e3, point.e2e_s * 1e3) == pytest.approx(times_ms)
    assert (point.requests, point.output_tokens_per_s) == (requests, pytest.approx(tokens_per_s))


def test_what_files_say_of_the_deployment_is_used() -> None:
    (vllm,), sglang, (aiperf,) = points("vllm.json"), points("sglang.jsonl"), points("profile_export_aiperf.json")
    assert (vllm.engine, vllm.model) == ("vllm", "meta-llama/Meta-Llama-3-8B-Instruct")
    assert vllm.measured_at is not None
    assert vllm.measured_at.isoformat() == "2026-03-12T10:15:00+00:00"
    assert (sglang[0].engine, sglang[0].version, sglang[0].parallelism) == ("sglang", "0.5.9", {"tensor": 2})
    assert sglang[1].load == {"rate_per_s": 4.0}
    assert (sglang[1].input_tokens, sglang[1].output_tokens, sglang[1].length_spread) == (300, 200, None)
    assert aiperf.measured_at is not None
    (row,) = points("agg_bmk.json")
    filled = to_row(row, "InferenceX", DeploymentOptions())
    assert (filled["gpu"], filled["software"]) == ("h200", "sglang-0.5.9")
    assert filled["source"] == "InferenceX, lmsysorg/sglang:v0.5.9-cu130"
    assert filled["workload"]["parallelism"] == {"tensor": 8}
    assert (filled["workload"]["name"], filled["workload"]["dtype"]) == ("deepseek-v3", "fp8")


def test_unusable_results_are_left_out_with_their_reason() -> None:
    assert left_out("sglang.jsonl") == {"sglang.jsonl:3": "accept_length is 2.4: speculative decoding"}
    assert "constant" in left_out("benchmarks.json")["benchmarks.json:2"]
    assert left_out("benchmarks.json")["benchmarks.json:3"] == "10 of 100 requests failed"
    assert "speculative" in left_out("agg_bmk.json")["agg_bmk.json:2"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"failed": 20}, "20 of 180 requests failed"),
        ({"completed": 0}, "no request succeeded"),
        ({"ramp_up_strategy": "linear"}, "ramp_up_strategy"),
        ({"mean_tpot_ms": 0.0}, "mean_tpot_ms is '0.0'"),
        ({"mean_e2el_ms": -1.0}, "mean_e2el_ms is '-1.0'"),
        ({"mean_ttft_ms": float("nan")}, "mean_ttft_ms is 'nan'"),
    ],
)
def test_other_loads_of_vllm_are_left_out(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    placed, skipped = read_files([written(tmp_path, document("vllm.json", **changes))])
    assert not placed
    assert reason in skipped[0].reason


def test_a_rate_has_its_cap_and_its_burstiness(tmp_path: Path) -> None:
    changed = document("vllm.json", request_rate=4.0, burstiness=0.5)
    (placed,) = read_files([written(tmp_path, changed)])[0]
    assert placed.point.load == {"rate_per_s": 4.0, "max_concurrency": 16.0, "burstiness": 0.5}


def test_a_cap_that_no_request_waits_for_is_a_burst() -> None:
    assert load_of(16, 16.0, None) == load_of(16, None, None) == {"burst": 16.0}
    assert load_of(17, 16.0, None) == {"concurrency": 16.0}
    assert load_of(1, 1.0, None) == {"concurrency": 1.0}


def test_lengths_of_each_request_tell_the_spread() -> None:
    uniform = range(801, 1001)
    assert lengths_of(uniform, [length // 2 for length in uniform]) == (1000.0, 500.0, 0.2)
    assert lengths_of([512] * 4, [128] * 4) == (512.0, 128.0, 0.0)
    assert lengths_of([1, 1, 1, 1000], [128] * 4) == (250.75, 128.0, None)
    with pytest.raises(LeftOut):
        lengths_of([0], [0])


def test_detailed_results_and_appended_ones_are_read(tmp_path: Path) -> None:
    detailed = document("vllm.json", input_lens=[1000] * 160, output_lens=[200] * 160)
    placed, _ = read_files([written(tmp_path, json.dumps(detailed) + "\n" + _text("vllm.json").replace("\n", ""))])
    assert [one.where for one in placed] == ["result.json:1", "result.json:2"]
    assert (placed[0].point.input_tokens, placed[0].point.output_tokens, placed[0].point.length_spread) == (
        1000,
        200,
        0,
    )


@pytest.mark.parametrize(
    ("missing", "option"),
    [
        ({"gpu": None}, "--gpu"),
        ({"software": None}, "--software"),
        ({"software": "vllm"}, "--software"),
        ({"model": None}, "--model"),
        ({"tensor": None}, "--tensor"),
    ],
)
def test_what_neither_file_nor_user_say_names_the_option(missing: dict[str, Any], option: str) -> None:
    (point,) = points("stage_0_lifecycle_metrics.json")
    given = {"gpu": "h100", "software": "vllm-0.19.0", "model": "llama-3-8b", "tensor": 1, **missing}
    with pytest.raises(BadInput, match=f"unknown.*{option}"):
        to_row(point, "inference-perf", DeploymentOptions(**given))
    (summary,) = points("summary_lifecycle_metrics.json")
    with pytest.raises(BadInput, match=r"--set load\.concurrency"):
        to_row(summary, "inference-perf", LLAMA)
    options = replace(LLAMA, fields={"load": {"rate_per_s": 5}})
    assert to_row(summary, "inference-perf", options)["workload"]["load"] == {"rate_per_s": 5}


def test_options_replace_what_files_say() -> None:
    (point,) = points("vllm.json")
    options = DeploymentOptions(
        gpu="l40s",
        image="vllm/vllm-openai:v0.11.0",
        tensor=2,
        dtype="fp8",
        fields={"kv_dtype": "fp8", "length_spread": 0.2, "parallelism": {"replicas": 2}},
    )
    row = to_row(point, "vllm bench serve", options)
    assert (row["software"], row["source"]) == ("vllm-0.11.0", "vllm bench serve, vllm/vllm-openai:v0.11.0")
    workload = row["workload"]
    assert workload["parallelism"] == {"tensor": 2, "replicas": 2}
    assert (workload["name"], workload["dtype"], workload["kv_dtype"]) == ("llama-3-8b", "fp8", "fp8")
    assert (workload["input_tokens"], workload["output_tokens"]) == (round(1024 / 0.9), round(256 / 0.9))


def test_files_of_no_known_format_are_named(tmp_path: Path) -> None:
    _, skipped = read_files([written(tmp_path, {"mean": 3})])
    assert "guidellm" in skipped[0].reason
    with pytest.raises(BadInput, match=r"result\.json: line 2 is not JSON"):
        read_files([written(tmp_path, "{}\n{")])
    with pytest.raises(BadInput, match="each is left out"):
        IMPORTERS["serving"].with_options([written(tmp_path, {})], LLAMA).read(tmp_path)
    (tmp_path / "result.json").unlink()
    with pytest.raises(NotFound, match="holds no results"):
        read_files([tmp_path])


def _damaged(value: Any) -> Iterator[Any]:
    """Yield the value with each part of it replaced by what tools do not write."""
    yield from (None, "x", -1, [], {}, True, [None], 1e400)
    if isinstance(value, dict):
        for name, inner in value.items():
            for changed in _damaged(inner):
                yield {**value, name: changed}
    if isinstance(value, list) and value:
        for changed in _damaged(value[0]):
            yield [changed, *value[1:]]


@pytest.mark.parametrize("path", sorted(DATA.iterdir()), ids=lambda path: path.name)
def test_damaged_results_are_left_out_and_never_break(path: Path) -> None:
    content = path.read_text("utf-8")
    whole = json.loads(content.splitlines()[0]) if path.suffix == ".jsonl" else json.loads(content)
    for damaged in _damaged(whole[0] if isinstance(whole, list) else whole):
        reader = reader_of(damaged)
        for record in [] if reader is None else reader.records(damaged):
            try:
                assert reader is not None
                point = reader.read(record)
            except LeftOut:
                continue
            assert min(point.ttft_s, point.tpot_s, point.e2e_s, point.input_tokens, point.output_tokens) > 0.0


def test_a_folder_is_stored_once_and_with_its_image(database: Database) -> None:
    options = DeploymentOptions(
        gpu="h100-sxm5-80gb", model="llama-3-8b", tensor=1, image="vllm/vllm-openai:v0.19.0", fields={"load": {}}
    )
    paths = [DATA / "vllm.json", DATA / "benchmarks.json"]
    importer = IMPORTERS["serving"].with_options(paths, options)
    tried = import_folder(database, importer, paths[0], dry_run=True)
    assert (tried.received, tried.inserted, len(tried.skipped)) == (4, 2, 2)
    first, again = import_folder(database, importer, paths[0]), import_folder(database, importer, paths[0])
    assert (first.inserted, again.inserted, again.unchanged) == (2, 0, 2)
    assert first.notes[0].startswith("vllm.json, vllm bench serve: concurrency 16, 1024 + 256 tokens: TTFT 121 ms")
    with database.begin() as connection:
        rows = measurements.load(connection, kind="serving")
    assert {row.source for row in rows} == {
        f"{tool}, vllm/vllm-openai:v0.19.0" for tool in ("guidellm", "vllm bench serve")
    }
    assert {row.software for row in rows} == {"vllm-0.19.0"}
    assert {row.runs for row in rows} == {160, 200}


def test_results_that_lack_something_leave_others_be() -> None:
    imported = IMPORTERS["serving"].with_options([DATA], DeploymentOptions()).read(DATA)
    assert imported.where == ("agg_bmk.json:1",)
    reasons = {skip.where: skip.reason for skip in imported.skipped}
    assert reasons["sglang.jsonl:1"] == "the GPU is unknown: add --gpu NAME"
    given = IMPORTERS["serving"].with_options([DATA], LLAMA).read(DATA)
    assert len(given.rows) == 8
    lacking = IMPORTERS["serving"].with_options([DATA / "sglang.jsonl"], DeploymentOptions())
    with pytest.raises(BadInput, match="each is left out") as caught:
        lacking.read(DATA)
    assert "the GPU is unknown: add --gpu NAME" in {error.msg for error in caught.value.errors}


def test_rows_that_cannot_be_asked_for_are_named(database: Database) -> None:
    options = DeploymentOptions(gpu="h100-sxm5-80gb", software="vllm-0.19.0", model="llama-3-8b", tensor=3)
    importer = IMPORTERS["serving"].with_options([DATA / "vllm.json"], options)
    with pytest.raises(BadInput, match="None of the 1 rows") as caught:
        import_folder(database, importer, DATA)
    assert caught.value.errors[0].loc == (0, "workload", "parallelism", "tensor")
