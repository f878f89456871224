"""Options of `gpucast measure`, which also runs on machines with other packages than ours."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from app.errors import BadInput, Malformed
from measure.commands import command

pytest.importorskip("torch")

import pyarrow.parquet as pq

from measure.device import find
from measure.server import saved

PLAN = {"measurements": [{"workload": {"op": "linear", "m": 8, "n": 16, "k": 32.0, "dtype": "fp32"}}]}


def test_no_option_is_named_after_its_metavar() -> None:
    """Typer before 0.29 names an option without a declared name `--MINUTES` if its metavar is MINUTES."""
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        (option,) = parameter.annotation.__metadata__  # a declared name is its first argument: its `default`
        declared = option.param_decls or isinstance(option.default, str)
        assert declared or (option.metavar or "").lower() != name, name


def test_a_saved_plan_is_measured_without_a_server(tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "out.parquet"
    plan.write_text(json.dumps(PLAN))
    command(out=out, saved_plan=plan, minutes=0.1, most_spread=9.0, threads=1)
    (row,) = pq.read_table(out).to_pylist()
    assert (row["op"], row["m"], row["n"], row["k"], row["outcome"]) == ("linear", 8, 16, 32, "measured")


def test_planned_rows_that_the_device_lacks_are_named(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"measurements": [{"workload": {"op": "linear", "dtype": "nvfp4"}}]}))
    assert saved(plan, find(1)) == ([], ["linear nvfp4"])


@pytest.mark.parametrize(
    "text", ["[]", '{"measurements": [{}]}', "{", '{"measurements": 3}', '{"measurements": [{"workload": "x"}]}']
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    with pytest.raises(Malformed, match=r"plan\.json is no"):
        saved(plan, find(1))


def test_a_cpu_has_no_graphs(tmp_path: Path) -> None:
    if find(1).kind == "cuda":
        pytest.skip("a GPU")
    with pytest.raises(BadInput, match="--in-graphs needs a GPU"):
        command(out=tmp_path / "out.parquet", in_graphs=True, threads=1)


def test_a_plan_is_asked_for_or_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="pass one of them"):
        command(out=tmp_path / "out.parquet", plan=True, saved_plan=tmp_path / "plan.json")


@pytest.mark.parametrize("other", [{"suite": ["models"]}, {"only": ["linear"]}])
def test_a_plan_takes_no_suite_and_no_operator(tmp_path: Path, other: dict[str, list[str]]) -> None:
    with pytest.raises(BadInput, match="neither --suite nor --only"):
        command(out=tmp_path / "out.parquet", saved_plan=tmp_path / "plan.json", **other)  # type: ignore[arg-type]
