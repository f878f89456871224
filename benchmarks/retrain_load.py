"""POST /predict while a retraining runs: the median must not slow by more than half.

    python -m benchmarks.retrain_load [--seconds 5]

Starts the whole service on an empty data folder, posts made-up measurements, times predictions one after another
without any retraining, then while `forest` and `auto` retrain in the queue.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from app.config import Settings
from app.wire.prediction_form import PREDICT_EXAMPLE
from tests.kernels_data import made_up
from tests.service import Service

GOAL = 1.5
BODY = json.dumps(PREDICT_EXAMPLE).encode()
HEADERS = {"content-type": "application/json"}
RETRAINED = ("forest", "auto")


def request_ms(client: httpx.Client) -> float:
    """One prediction, milliseconds."""
    started = time.perf_counter()
    client.post("/predict", content=BODY, headers=HEADERS).raise_for_status()
    return 1e3 * (time.perf_counter() - started)


def running(client: httpx.Client, jobs: list[int]) -> bool:
    """Whether one of the jobs is at work right now."""
    return any(client.get(f"/jobs/{job}").json()["state"] == "running" for job in jobs)


def while_retraining(client: httpx.Client) -> list[float]:
    """Request times for as long as the retrainings take; only those with one at work before and after count."""
    jobs = [client.post("/retrain", json={"predictor": name}).raise_for_status().json()["job_id"] for name in RETRAINED]
    times: list[float] = []
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if not running(client, jobs):
            if all(client.get(f"/jobs/{job}").json()["state"] in ("succeeded", "failed") for job in jobs):
                return times
            continue
        batch = [request_ms(client) for _ in range(50)]
        if running(client, jobs):
            times += batch
    raise TimeoutError("the retrainings did not end in 300 s")


def main() -> None:
    """Print both medians and their ratio; exit 1 if it is over the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Service(Settings(data_dir=Path(folder) / "data"), Path(folder) / "log") as service,
    ):
        client = service.client
        rows = [row for seed in range(4) for row in made_up(seed=seed, source=f"made up {seed}")]
        client.post("/measurements", json=rows).raise_for_status()
        until = time.monotonic() + options.seconds
        quiet: list[float] = []
        while time.monotonic() < until:
            quiet.append(request_ms(client))
        busy = while_retraining(client)
    medians = statistics.median(quiet), statistics.median(busy)
    ratio = medians[1] / medians[0]
    print(f"median of {len(quiet)} predictions without a retraining:   {medians[0]:.3f} ms")
    print(f"median of {len(busy)} predictions during a retraining:     {medians[1]:.3f} ms")
    print(f"ratio {ratio:.2f} (goal: at most {GOAL})")
    sys.exit(ratio > GOAL)


if __name__ == "__main__":
    main()
