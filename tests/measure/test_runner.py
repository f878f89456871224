"""The runner of `gpucast measure`: timing, outcomes, records, and resuming a stopped run."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from app.errors import BadInput
from app.formats.own import read_measurements
from measure import output as output_module
from measure.device import Device
from measure.output import POINTS, Output, alone
from measure.point import Point, Prepared
from measure.runner import DeviceLost, Runner, flat, longest, measure_all, name_kernels, pending
from measure.timing import added_by_events_s
from tests.busy_machine import least

CPU = Device("cpu", "a CPU", ("fp32",), 16e9, 1, "pytorch-2", "pytorch-2")
DESCRIPTION = {"name": "a CPU", "kind": "cpu"}


def point(run: Callable[[], object], m: int = 1) -> Point:
    workload = {"kind": "operator", "op": "linear", "m": m, "n": 8, "k": 8, "dtype": "fp32"}
    return Point("operators", workload, lambda: Prepared({"": run}), CPU.software)


def uneven() -> Callable[[], object]:
    """Takes ever longer: trials of one repetition lie far apart."""
    seconds = itertools.count(1)
    return lambda: time.sleep(2e-4 * next(seconds))


def no_memory() -> object:
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried")


def unknown_format() -> object:
    raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Float8_e4m3fn'\nmore")


def test_events_add_what_does_not_grow_with_the_launches_of_a_graph() -> None:
    launch_us, added_us = 1.0, 2.0
    assert added_by_events_s(added_us + launch_us, added_us + 50 * launch_us, 50) == pytest.approx(added_us)


def test_a_time_is_the_median_of_its_repetitions() -> None:
    def latency_ms() -> float:
        row = Runner(CPU, most_spread=100.0).run(point(lambda: time.sleep(0.01)))
        assert row["outcome"] == "measured"
        assert row["runs"] >= 3
        assert row["latency_std_ms"] >= 0.0
        assert "phases_ms." not in " ".join(row)
        return float(row["latency_ms"])

    assert 10.0 <= least(latency_ms, 15.0) <= 60.0


def test_phases_are_timed_separately() -> None:
    prepared = Prepared({"forward": lambda: time.sleep(0.002), "backward": lambda: time.sleep(0.01)}, launches=2)
    row = Runner(CPU, most_spread=9.0).run(Point("models", {"kind": "model"}, lambda: prepared, CPU.software))
    assert row["phases_ms.forward"] < row["phases_ms.backward"]
    assert row["phases_ms.forward"] + row["phases_ms.backward"] == pytest.approx(row["latency_ms"], rel=0.5)
    assert row["runs"] % 2 == 0


def test_a_wide_spread_is_recorded_as_busy() -> None:
    busy = Runner(CPU, most_spread=0.01).run(point(uneven()))
    assert busy["outcome"] == "busy"
    assert "latency_ms" not in busy
    assert Runner(CPU, most_spread=100.0).run(point(uneven()))["outcome"] == "measured"


def test_out_of_memory_is_recorded_and_the_run_continues(tmp_path: Path) -> None:
    output, heard = Output(tmp_path / "out.parquet", DESCRIPTION, {}), list[str]()
    points = [point(no_memory, 1), point(unknown_format, 2), point(lambda: time.sleep(1e-3), 3)]
    runner = Runner(CPU, most_spread=9.0)
    measure_all(
        runner, output, points, until=time.monotonic() + 60, observe=lambda _, row: heard.append(row["outcome"])
    )
    assert heard[0] == "out_of_memory"
    assert heard[1] == "failed: \"addmm_impl_cpu_\" not implemented for 'Float8_e4m3fn'"
    assert heard[2] == "measured"
    output.write()
    upload = read_measurements((tmp_path / "out.parquet").read_bytes(), "application/x-parquet", max_rows=10)
    assert [len(part) for part in upload.parts] == [1]
    assert upload.skipped.total() == 2
    assert upload.device == DESCRIPTION


def missing() -> object:
    raise AttributeError("module 'torch.nn.functional' has no attribute 'grouped_mm'")


def test_a_device_failure_ends_the_process_and_records_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, runner = Output(tmp_path / "out.parquet", DESCRIPTION, {}), Runner(CPU)
    points = [point(missing, 1), point(unknown_format, 2), point(missing, 3)]
    monkeypatch.setattr(runner, "is_sound", lambda: points[1].digest not in output.rows)
    with pytest.raises(DeviceLost, match="Float8"):
        measure_all(runner, output, points, until=time.monotonic() + 60, observe=lambda *_: None)
    assert [row["outcome"].partition(":")[0] for row in output.rows.values()] == ["failed", "failed"]
    assert Runner(CPU).is_sound()
    assert pending(output, points) == points[2:]  # the next process goes on behind it


def test_a_synchronising_call_fails_on_its_own() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    from measure.device import find
    from measure.timing import replayed

    x, runner = torch.ones(8, device="cuda"), Runner(find(), most_spread=9.0)
    waits = Point("operators", {"op": "add"}, lambda: Prepared({"": replayed(lambda: x.sum().item())}), "cudagraph")
    assert "synchroniz" in runner.run(waits)["outcome"]
    assert runner.is_sound()
    assert runner.run(replace(waits, prepare=lambda: Prepared({"": replayed(x.sum)})))["outcome"] == "measured"


def test_a_point_that_ended_a_run_is_retried_last(tmp_path: Path) -> None:
    output = Output(tmp_path / "out.parquet", DESCRIPTION, {})

    def killed() -> object:
        raise SystemExit

    points = [point(killed, 1), point(missing, 2)]
    with pytest.raises(SystemExit):
        measure_all(Runner(CPU), output, points, until=time.monotonic() + 60, observe=lambda *_: None)
    assert pending(Output(tmp_path / "out.parquet", DESCRIPTION, {}), points) == points[::-1]


def test_a_killed_run_keeps_its_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "_WRITTEN_EVERY_S", 0.0)
    output = Output(tmp_path / "out.parquet", DESCRIPTION, {})
    output.add("a", {"outcome": "measured", "latency_ms": 1.5})
    assert pq.read_table(tmp_path / "out.parquet")["latency_ms"].to_pylist() == [1.5]


def test_kernel_names_are_added_to_measured_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is asked for, and no profiler that keeps silent."""
    output, runner, asked = Output(tmp_path / "out.parquet", DESCRIPTION, {}), Runner(CPU), list[Point]()
    points = [point(missing, m) for m in range(1, 12)]
    for k, one in enumerate(points):
        output.add(one.digest, {"outcome": "busy" if k == 0 else "measured"} | ({"kernel.name": "b"} if k == 1 else {}))

    def kernel(one: Point) -> dict[str, Any]:
        asked.append(one)
        return {"kernel.name": "a"} if len(asked) == 1 else {}

    monkeypatch.setattr(runner, "kernel", kernel)
    name_kernels(runner, output, points, until=time.monotonic() + 60)
    assert asked == points[2:8]
    assert [row.get("kernel.name") for row in output.of(points[:4])] == [None, "b", "a", None]


def test_no_point_starts_after_the_time_limit(tmp_path: Path) -> None:
    output = Output(tmp_path / "out.parquet", DESCRIPTION, {})
    measure_all(Runner(CPU), output, [point(no_memory)], until=time.monotonic() - 1, observe=lambda *_: None)
    assert output.rows == {}


def test_a_killed_run_resumes_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    points = [point(no_memory, m) for m in (1, 2, 3)]
    first = Output(path, DESCRIPTION, {})
    first.add(points[0].digest, {**flat(points[0].workload), "outcome": "measured", "latency_ms": 1.5})
    first.add(points[1].digest, {**flat(points[1].workload), "outcome": "busy"})
    with (tmp_path / "out.parquet.part").open("a") as journal:
        journal.write('["cut", {"outco')  # the process died here
    assert list(Output(path, DESCRIPTION, {}).rows) == [points[0].digest, points[1].digest]
    second = Output(path, DESCRIPTION, {})
    assert pending(second, [*points, *points]) == points[1:]  # the busy one once more, each once
    second.write()
    assert [file.name for file in tmp_path.iterdir()] == ["out.parquet"]
    third = Output(path, DESCRIPTION, {})
    assert third.rows == second.rows
    assert json.loads(pq.read_schema(path).metadata[POINTS]) == [points[0].digest, points[1].digest]


def test_a_run_that_is_killed_twice_loses_nothing(tmp_path: Path) -> None:
    """What comes after a line that was cut is not part of it."""
    path = tmp_path / "out.parquet"
    Output(path, DESCRIPTION, {}).add("first", {"outcome": "measured", "latency_ms": 1.5})
    with (tmp_path / "out.parquet.part").open("a") as journal:
        journal.write('["cut", {"outco')
    Output(path, DESCRIPTION, {}).add("second", {"outcome": "measured", "latency_ms": 2.5})
    assert list(Output(path, DESCRIPTION, {}).rows) == ["first", "second"]


def test_an_unwritable_folder_is_rejected_at_once() -> None:
    with pytest.raises(BadInput, match="No file can be written in"), alone(Path("/proc/none/out.parquet")):
        pass


def test_a_file_of_another_device_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    Output(path, DESCRIPTION, {}).write()
    with pytest.raises(BadInput, match="a CPU"):
        Output(path, {"name": "another"}, {})
    Output(tmp_path / "killed.parquet", DESCRIPTION, {}).add("first", {"outcome": "measured", "gpu": "another"})
    with pytest.raises(BadInput, match="another"):
        Output(tmp_path / "killed.parquet", DESCRIPTION, {})
    (tmp_path / "other.parquet").write_text("no Parquet")
    with pytest.raises(BadInput, match="no file of gpucast measure"):
        Output(tmp_path / "other.parquet", DESCRIPTION, {})


def test_unequal_sides_are_written_as_pairs(tmp_path: Path) -> None:
    output = Output(tmp_path / "out.parquet", DESCRIPTION, {})
    output.add("a", {"outcome": "busy", "kernel_size": 3})
    output.add("b", {"outcome": "busy", "kernel_size": [3, 5]})
    output.write()
    assert pq.read_table(tmp_path / "out.parquet")["kernel_size"].to_pylist() == [[3, 3], [3, 5]]


def test_the_kernel_of_a_trace_is_the_one_that_took_longest() -> None:
    events: list[dict[str, Any]] = [
        {"cat": "kernel", "name": "split", "dur": 4.0, "args": {"grid": [1, 1, 1], "block": [32, 1, 1]}},
        {"cat": "kernel", "name": "gemm", "dur": 3.0, "args": {"grid": [8, 2, 1], "block": [128, 1, 1]}},
        {"cat": "kernel", "name": "gemm", "dur": 3.0, "args": {"grid": [8, 2, 1], "block": [128, 1, 1]}},
        {"cat": "cpu_op", "name": "aten::mm", "dur": 90.0},
    ]
    expected = {"kernel.name": "gemm", "kernel.grid": "8x2x1", "kernel.block": "128x1x1"}
    assert longest(events) == expected
    assert longest(events[3:]) == {}
