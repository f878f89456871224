"""`gpucast serve`: sharing a data folder, losing the database, and shutting down cleanly."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.config import Settings
from app.store import measurements
from app.store.postgres import EmbeddedPostgres
from app.store.session import Database
from benchmarks.hostile import BATCH, PREFILL, columns, graph, patterns, served_compare, served_plan, split_graph
from benchmarks.hostile import kernel_rows as kernels
from tests.busy_machine import PATIENCE_S, until
from tests.learning import kernel_rows, workload
from tests.service import Service

pytestmark = pytest.mark.slow

ASKED = {"gpu": "rtx-4070", "workload": workload("matmul", 1024), "predictor": "roofline"}


def embedded_servers(data_dir: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.name().startswith("postgres") and Path(process.cwd()) == data_dir / "postgres" / "data":
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def mine(service: Service) -> dict[str, Any]:
    spec: dict[str, Any] = service.client.get("/gpus/titan-v").raise_for_status().json()
    return {**spec, "id": "mine", "name": "Mine", "aliases": []}


def unseeded(folder: Path, database_url: str | None = None) -> Settings:
    """An installation without the measurements that ship, which the first test brings in."""
    return Settings(
        database_url=database_url,
        data_dir=folder / "data",
        seed_measurements_dir=folder / "none",
        heartbeat_s=0.3,
        stalled_after_s=2.0,
    )


def test_two_servers_share_one_data_folder_and_leave_nothing(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", heartbeat_s=0.3, stalled_after_s=2.0)
    first, second = (Service(settings, tmp_path / f"{name}.log", fresh=True) for name in ("first", "second"))
    first.start()
    second.start()
    first.wait_ready()
    second.wait_ready()
    children = [child for service in (first, second) for child in descendants(service)]
    assert first.client.post("/gpus", json=mine(first)).status_code == 201
    until(lambda: second.client.get("/gpus/mine").status_code == 200)
    assert first.stop(signal.SIGINT) == 0
    assert second.client.post("/predict", json={**ASKED, "gpu": "mine"}).status_code == 200
    assert second.client.get("/readyz").status_code == 200
    for process in embedded_servers(settings.data_dir):
        process.kill()
    until(lambda: second.client.get("/readyz").json()["status"] == "ready")
    assert second.client.get("/gpus/mine").status_code == 200, "an embedded server that was killed comes back"
    assert second.stop(signal.SIGTERM) == 0
    assert not embedded_servers(settings.data_dir)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def descendants(service: Service) -> list[psutil.Process]:
    assert service.process is not None
    return psutil.Process(service.process.pid).children(recursive=True)


def test_a_killed_server_takes_its_worker_and_the_next_start_cleans_up(tmp_path: Path) -> None:
    settings = unseeded(tmp_path)
    with Service(settings, tmp_path / "log", fresh=True) as service:
        workers = descendants(service)
        service.stop(signal.SIGKILL)
        _, alive = psutil.wait_procs(workers, timeout=PATIENCE_S)
        assert not [left for left in alive if left.status() != psutil.STATUS_ZOMBIE]
    until(lambda: embedded_servers(settings.data_dir) == [])


def store(url: str) -> None:
    database = Database(url)
    with database.begin() as connection:
        measurements.insert(connection, kernel_rows())
    database.close()


def test_the_server_survives_a_restart_of_the_database(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "elsewhere") as server:
        settings = unseeded(tmp_path, database_url=server.url)
        service = Service(settings, tmp_path / "log", fresh=True)
        service.start()
        service.wait_ready()
        store(server.url)
    try:
        for method, path, body in (
            ("GET", "/measurements", None),
            ("GET", "/jobs/1", None),
            ("POST", "/gpus", mine(service)),
            ("POST", "/retrain", {"predictor": "ridge"}),
        ):
            away = service.client.request(method, path, json=body)
            assert (away.status_code, "Retry-After" in away.headers) == (503, True), (path, away.text)
            assert away.headers["content-type"] == "application/problem+json"
        assert service.client.get("/healthz").status_code == 200
        assert service.client.get("/readyz").json()["status"] == "degraded"
        assert service.client.post("/predict", json=ASKED).status_code == 200, "answers need no database"
        with EmbeddedPostgres(tmp_path / "elsewhere"):
            until(lambda: service.client.get("/readyz").json()["status"] == "ready")
            assert service.client.post("/gpus", json=mine(service)).status_code == 201
            job_id = service.client.post("/retrain", json={"predictor": "ridge"}).raise_for_status().json()["job_id"]
            assert service.wait_for_job(job_id)["state"] == "succeeded", "the worker is back too"
            assert service.stop() == 0
    finally:
        service.client.close()
        service.stop(signal.SIGKILL)


def api_processes(service: Service) -> list[psutil.Process]:
    return [each for each in descendants(service) if any("spawn_main" in word for word in each.cmdline())]


def test_an_api_process_that_ends_while_the_database_is_away_comes_back_with_it(tmp_path: Path) -> None:
    """It failed to start, at which the supervisor stopped those that answered too."""
    log, place = tmp_path / "log", tmp_path / "elsewhere"
    with EmbeddedPostgres(place) as server:
        settings = replace(unseeded(tmp_path, database_url=server.url), workers=2, database_wait_s=0.5)
        service = Service(settings, log, fresh=True)
        service.start()
        service.wait_ready()
        until(lambda: len(api_processes(service)) == 2)

    def lose_one() -> None:
        tries = log.read_text().count("starts again")
        api_processes(service)[0].kill()
        until(lambda: log.read_text().count("starts again") > tries)
        assert service.client.post("/predict", json=ASKED).status_code == 200

    try:
        lose_one()
        with EmbeddedPostgres(place):
            until(lambda: log.read_text().count("Application startup complete") == 3)
        lose_one()
        assert service.stop() == 0
    finally:
        service.client.close()
        service.stop(signal.SIGKILL)


GRACE_S, MOST_S = 2.0, 10.0  # and for a busy machine


def test_a_stop_ends_within_its_time_whatever_runs(settings: Settings, tmp_path: Path) -> None:
    """Each took the time that its work had left, and answered 500; connections that nobody had accepted were reset."""
    work = [("/plan", served_plan()), ("/compare", served_compare(rate_per_s=100.0)), ("/compare", split_graph(12_000))]
    work += [(BATCH, columns(1_000_000)), ("/graphs", graph(100_000)), ("/predict", patterns("model", 90, **PREFILL))]
    work += [("/measurements", json.dumps([*kernels(150_000)]).encode())]
    service, over = Service(replace(settings, stop_grace_s=GRACE_S), tmp_path / "log", fresh=True), threading.Event()

    def send(path: str, body: bytes) -> int:
        return httpx.post(f"http://127.0.0.1:{service.port}{path}", content=body, timeout=60).status_code

    def send_heavy(path: str, body: bytes) -> int:
        """The status, or 0 where a busy machine comes to it after the stop."""
        try:
            return send(path, body)
        except httpx.ConnectError:
            return 0

    def connect() -> Counter[str]:
        """What comes of small requests, each on a new connection, until they are refused."""
        found = Counter[str]()
        while not over.is_set():
            try:
                found[str(send("/predict", json.dumps(ASKED).encode()))] += 1
            except httpx.ConnectError:
                return found
            except httpx.TransportError as error:
                found[repr(error)] += 1
        return found

    with service, ThreadPoolExecutor(len(work) + 3) as threads:
        heavy = [threads.submit(send_heavy, *each) for each in work]
        small = [threads.submit(connect) for _ in range(3)]
        time.sleep(1.0)
        began = time.monotonic()
        assert service.stop() == 0
        took_s = time.monotonic() - began
        over.set()
        statuses = {each.result() for each in heavy}
        assert statuses <= {0, 200, 201, 503} and statuses != {0}
        assert sum((each.result() for each in small), Counter()).keys() == {"200"}
    assert took_s < GRACE_S + MOST_S
