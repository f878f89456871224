"""`gpucast measure --serving` on an endpoint over real HTTP, whose tokens come at known times."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.config import CHECKOUT
from app.errors import BadInput, GpucastError
from app.formats.serving.files import DeploymentOptions, read_files, to_row
from measure.commands import command
from tests.busy_machine import PATIENCE_S, least, until
from tests.measure.serving_engine import MODEL, Behaviour, running

# Relative error of a mean time: the client receives later than the engine sends.
LATE = 0.25
# Streams of the load of one request, after the probe and a warm-up.
ALONE = slice(2, 12)


def measure(behaviour: Behaviour, out: Path, **options: Any) -> dict[str, Any]:
    """Measure a running engine; returns the file."""
    given = {"concurrency": [1], "input_tokens": 40, "output_tokens": 6, "minutes": 1.0, **options}
    with running(behaviour) as url:
        command(out=out, serving=f"{url}/v1", **given)
    return dict(json.loads(out.read_text("utf-8")))


def test_times_are_those_of_the_endpoint(tmp_path: Path) -> None:
    def share_of_limit() -> float:
        engine = Behaviour(first_s=0.08, each_s=0.02)
        one, three = measure(engine, tmp_path / f"{time.monotonic()}.json", concurrency=[1, 3])["serving_points"]
        (first, last) = np.mean(engine.times[ALONE], axis=0)
        sent = {"ttft_s": first, "tpot_s": (last - first) / 5, "itl_s": (last - first) / 5, "e2e_s": last}
        assert one["e2e_s"]["p50"] <= one["e2e_s"]["p90"] <= one["e2e_s"]["p99"]
        errors = [abs(one[name]["mean"] / seconds - 1.0) / LATE for name, seconds in sent.items()]
        return max(*errors, 2.0 * one["output_tokens_per_s"] / three["output_tokens_per_s"])

    assert least(share_of_limit, 1.0) < 1.0


def test_so_many_requests_are_in_flight_each_with_a_prompt_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Behaviour(first_s=0.02, each_s=0.004)
    one, three = measure(engine, tmp_path / "served.json", concurrency=[1, 3])["serving_points"]
    assert (one["concurrency"], one["requests"], three["requests"], three["failed"]) == (1, 10, 30, 0)
    assert (one["input_tokens"], one["output_tokens"]) == (40, 6)
    assert (engine.most, engine.connections) == (3, 3), "a connection is used again"
    # One of the probe; of each load a warm-up of each place and ten requests of each.
    assert len(engine.bodies) == 1 + (1 + 10) + (3 + 30)
    prompts = [tuple(body["prompt"]) for body in engine.bodies]
    assert len(set(prompts)) == len(prompts)
    assert all(body["ignore_eos"] and body["stream_options"]["include_usage"] for body in engine.bodies)
    assert "TTFT" in capsys.readouterr().out


def test_a_file_is_continued_and_read_by_the_importer(tmp_path: Path) -> None:
    out = tmp_path / "served.json"
    deployment = {"gpu": "h100-sxm5-80gb", "tensor": 2, "dtype": ["bf16"], "fields": ["kv_dtype=fp8"]}
    measure(Behaviour(first_s=0.01, each_s=0.002), out, **deployment)
    engine = Behaviour(first_s=0.01, each_s=0.002)
    written = measure(engine, out, **deployment, concurrency=[1, 2])
    assert [point["concurrency"] for point in written["serving_points"]] == [1, 2]
    assert len(engine.bodies) == 1 + 2 + 20
    found, skipped = read_files([out])
    assert not skipped
    assert [one.point.load for one in found] == [{"concurrency": 1.0}, {"concurrency": 2.0}]
    row = to_row(found[1].point, found[1].tool, DeploymentOptions())
    assert (row["gpu"], row["software"], row["runs"]) == ("h100-sxm5-80gb", "vllm-0.19.0", 20)
    workload = row["workload"]
    assert (workload["name"], workload["dtype"], workload["kv_dtype"]) == ("llama-3-8b", "bf16", "fp8")
    assert (workload["parallelism"], workload["input_tokens"], workload["output_tokens"]) == ({"tensor": 2}, 40, 6)
    with pytest.raises(BadInput, match="is of deployment"):
        measure(Behaviour(), out, gpu="l40s", tensor=2)


def test_endpoints_without_ids_get_words_of_as_many_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Behaviour(first_s=0.001, each_s=0.001, ids=False, ignore_eos=False, owner="someone")
    written = measure(engine, tmp_path / "served.json")
    (point,) = written["serving_points"]
    assert (point["input_tokens"], point["output_tokens"]) == (40, 5)
    said = capsys.readouterr().err
    assert "prompts are 20 words" in said
    assert "no ignore_eos" in said
    assert "5.0 tokens where 6 are wanted" in said
    assert "software" not in written["deployment"]


def test_the_time_budget_ends_a_loop(tmp_path: Path) -> None:
    engine = Behaviour(first_s=0.2, each_s=0.001)
    (point,) = measure(engine, tmp_path / "served.json", minutes=0.02)["serving_points"]
    assert 1 <= point["requests"] < 10


def test_endpoints_that_cannot_be_measured_say_why(tmp_path: Path) -> None:
    out = tmp_path / "served.json"
    with pytest.raises(GpucastError, match="include_usage"):
        measure(Behaviour(first_s=0.001, each_s=0.001, usage=False), out)
    with pytest.raises(GpucastError, match=r"No request of 2 in flight succeeds: status 500.*out of memory"):
        measure(Behaviour(first_s=0.001, each_s=0.001, fails_after=3), out, concurrency=[2])
    with pytest.raises(GpucastError, match="v1/models does not answer"):
        command(out=out, serving="http://127.0.0.1:9")
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"serving": "http://x", "suite": ["kernels"]}, "--suite"),
        ({"serving": "http://x", "dtype": ["fp8", "bf16"]}, "one --dtype"),
        ({"concurrency": [4]}, "need --serving"),
        ({"serving": "http://x", "fields": ["kv_dtype"]}, "FIELD=VALUE"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        command(out=tmp_path / "served.json", **options)


def test_failed_requests_are_counted_and_leave_the_load_out(tmp_path: Path) -> None:
    out = tmp_path / "served.json"
    (point,) = measure(Behaviour(first_s=0.001, each_s=0.001, fails_after=9), out)["serving_points"]
    assert (point["requests"], point["failed"]) == (7, 3)
    assert MODEL in out.read_text("utf-8")
    _, skipped = read_files([out])
    assert skipped[0].reason == "3 of 10 requests failed"


# A shell starts what runs in its background with SIGINT ignored.
INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from app.cli import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_keeps_the_loads_that_were_done(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "served.json"
    with running(Behaviour(first_s=0.05, each_s=0.001)) as url:
        loads = [word for load in (1, 2, 3, 4) for word in ("--concurrency", str(load))]
        words = ["measure", "--serving", url, "--out", str(out), *loads]
        sizes = ["--input-tokens", "8", "--output-tokens", "100"]
        command = [sys.executable, "-c", INTERRUPTIBLE, *words, *sizes]
        process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(out.exists, every_s=0.02)
        process.send_signal(number)
        shown, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert "stopped" in said
    done = [point["concurrency"] for point in json.loads(out.read_text("utf-8"))["serving_points"]]
    assert done in ([1], [1, 2], [1, 2, 3])  # more than one where this process had to wait for a core
    assert f"{len(done)} loads, means in ms" in shown
