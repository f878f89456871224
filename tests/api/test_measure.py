"""From this machine's processor to a better prediction for it: measure, upload, retrain, ask again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from app.cli.measure import command
from tests.service import Service

CPU = "the CPU of this test"
OPERATORS = ["linear", "add", "layer_norm"]
WAIT_S = 240
# The least by which what was learned must beat what was known of the device before, in median log error.
BETTER = 0.8


def measure(out: Path, minutes: float, server: str | None = None) -> list[dict[str, Any]]:
    """The measured rows of `out` after a run of the command; a machine that runs other tests too is taken as it is."""
    command(
        out,
        suite=["operators"],
        only=OPERATORS,
        dtype=["fp32"],
        threads=1,
        gpu=CPU,
        minutes=minutes,
        most_spread=0.5,
        server=server,
    )
    return [row for row in pq.read_table(out).to_pylist() if row["outcome"] == "measured"]


def errors(service: Service, rows: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    """|log(predicted / measured)| of rows on the CPU."""
    fields = ("op", "m", "n", "k", "b", "h", "dtype", "phase")
    said = [{name: row[name] for name in fields if row.get(name) is not None} for row in rows]
    predicted = []
    for row, software in zip(said, (row["software"] for row in rows), strict=True):
        workload = {"kind": "operators", "operators": [row | {"software": software}]}
        answer = service.client.post("/predict", json={"gpu": CPU, "workload": workload}).raise_for_status().json()
        predicted.append(answer["predictions"][0]["latency_ms"])
    return np.abs(np.log(np.array(predicted) / np.array([row["latency_ms"] for row in rows])))


@pytest.mark.timeout(600)
def test_measured_uploaded_and_learned_from(
    service: Service, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url, out = f"http://127.0.0.1:{service.port}", tmp_path / "cpu.parquet"
    learned = measure(out, 0.12, url)
    said = capfd.readouterr().out
    assert f"sent: {len(learned)} new, 0 known before; registered the-cpu-of-this-test" in said
    assert service.client.get(f"/gpus/{CPU}").json()["kind"] == "cpu"
    # The same command goes on behind what is done: these rows the service has not seen.
    digests = {tuple(sorted((name, str(cell)) for name, cell in row.items())) for row in learned}
    everything = measure(out, 0.06)
    held_out = [row for row in everything if row["latency_ms"] not in {seen["latency_ms"] for seen in learned}]
    assert len(held_out) + len(learned) == len(everything)
    assert len(held_out) >= 5, digests
    before = errors(service, held_out)
    answer = service.client.post("/retrain", json={"predictor": "auto", "gpu": "the-cpu-of-this-test"})
    assert answer.status_code == 202, answer.text
    job = service.wait_for_job(answer.json()["job_id"])
    assert (job["state"], job["served"]) == ("succeeded", True), job
    after = errors(service, held_out)
    assert np.median(after) < BETTER * np.median(before), (before, after)
