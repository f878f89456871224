"""Record what a released version stores: a dump of its database and its artefacts, test data of test_upgrades.py.

    python -m tests.upgrades.record CHECKOUT VERSION

Run once per release, on a checkout of it whose requirements are installed. Its own service is filled over HTTP.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from app.services.gpus import GPU_EXAMPLE
from app.store.postgres import EmbeddedPostgres, binary
from app.wire.kernel_workload import KERNEL_EXAMPLE
from tests.learning import kernel_rows
from tests.service import free_port

DATA = Path(__file__).parent / "data"
LINEAR = {"op": "linear", "dtype": "bf16", "m": 4096, "n": 3840, "k": 1280}
ABOUT = {"software": "made up", "source": "made up"}
MEASURED = {"gpu": "l40s", "latency_ms": 0.5, "workload": {"kind": "operator", **LINEAR}, **ABOUT}
PRICE = {"gpu": "l40s", "usd_per_hour": 1.25, "date": "2026-11-01", "source": "list"}
# The route of each upload, and its bodies in turn.
UPLOADS: tuple[tuple[str, Any], ...] = (
    ("/gpus", GPU_EXAMPLE),
    ("/measurements", [MEASURED]),
    ("/prices", [PRICE]),
    ("/predict", {"gpu": "titan-v", "workload": KERNEL_EXAMPLE, "save": True}),
)


def main() -> None:
    """Fill the release's service, and write its dump and its artefacts."""
    checkout, version = Path(sys.argv[1]).resolve(), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder) / "postgres") as server:
        data, port = Path(folder) / "data", free_port()
        env = {**os.environ, "DATABASE_URL": server.url, "GPUCAST_DATA_DIR": str(data), "PORT": str(port)}
        env |= {"PYTHONPATH": str(checkout), "GPUCAST_SEED_MEASUREMENTS_DIR": folder}
        service = subprocess.Popen([sys.executable, "-m", "app.cli", "serve"], cwd=checkout, env=env)
        try:
            _fill(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60))
        finally:
            service.terminate()
            service.wait(60)
        options = ["--inserts", "--rows-per-insert=100", "--no-owner", "--no-privileges"]
        dump = subprocess.run([binary("pg_dump"), *options, server.url], check=True, capture_output=True).stdout
        plain = b"\n".join(line for line in dump.splitlines() if not line.startswith(b"\\"))  # commands of psql
        (DATA / f"{version}.sql.gz").write_bytes(gzip.compress(plain, mtime=0))
        for path in next(iter(data.rglob("*.joblib"))).parent.iterdir():
            (DATA / version).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, DATA / version / path.name)


def _fill(client: httpx.Client) -> None:
    _until_ready(client)
    for route, body in UPLOADS:
        print(route, _sent(client, route, body))
    rows = [
        {"gpu": row.gpu_id, "latency_ms": row.latency_s * 1e3, "workload": row.workload, **ABOUT}
        for row in kernel_rows()
    ]
    print(_sent(client, "/measurements", rows))
    job = _sent(client, "/retrain", {"predictor": "linear"})["job_id"]
    while (state := client.get(f"/jobs/{job}").json()["state"]) not in ("succeeded", "failed"):
        time.sleep(0.2)
    assert state == "succeeded"


def _until_ready(client: httpx.Client) -> None:
    for _ in range(600):
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError("the service is not ready")


def _sent(client: httpx.Client, route: str, body: Any) -> Any:
    answer = client.post(route, json=body)
    assert answer.is_success, f"{route}: {answer.status_code} {answer.text} to {json.dumps(body)[:500]}"
    return answer.json()


if __name__ == "__main__":
    main()
