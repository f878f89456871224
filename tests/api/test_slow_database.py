"""A database that hangs or is lost: writes fail soon, predictions go on, and everything returns with it."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psycopg
import pytest
import sqlalchemy as sa

from app.bootstrap.runtime import open_runtime
from app.config import Settings
from app.errors import Unavailable
from app.store.postgres import VOLATILE, EmbeddedPostgres
from app.store.session import IN_TROUBLE, Database, TimeLimits
from app.wire.llm_d_form import STATES_EXAMPLE
from tests.busy_machine import PATIENCE_S, least, until
from tests.learning import workload
from tests.server_processes import hanging, set_read_only, signal_server
from tests.service import Service

pytestmark = pytest.mark.slow

WITHIN_S = 5.0
ASKED = {"gpu": "rtx-4070", "workload": workload("matmul", 1024), "predictor": "roofline"}
MEASURED = [{"gpu": "rtx-4070", "software": "cuda", "source": "t", "latency_ms": 1.0, "workload": ASKED["workload"]}]
CHANGES = (
    ("POST", "/gpus", {"id": "mine"}),
    ("POST", "/measurements", MEASURED),
    ("POST", "/retrain", {"predictor": "ridge"}),
    ("POST", "/predict", {**ASKED, "save": True}),
    ("DELETE", "/measurements?gpu=rtx-4070", None),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL of this module, given to the service as an external one."""
    with EmbeddedPostgres(root, VOLATILE) as running:
        yield running


@pytest.fixture(scope="module")
def service(server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """API and worker that require keys; the client has the admin's."""
    folder = tmp_path_factory.mktemp("service")
    settings = Settings(
        database_url=server.url,
        data_dir=folder,
        seed_measurements_dir=folder / "none",
        keys="on",
        rate_limit="1000000/second",  # counted, and shared through the database
    )
    with Service(settings, folder / "log") as running:
        (key,) = re.findall(r"gpucast_[\w-]{43}", running.log.read_text())
        running.client.headers["Authorization"] = f"Bearer {key}"
        spec = running.client.get("/gpus/titan-v").raise_for_status().json()
        CHANGES[0][2].update({**spec, "id": "mine", "name": "Mine", "aliases": []})  # type: ignore[union-attr]
        yield running


def predictions(client: httpx.Client, seconds: float) -> list[float]:
    """Seconds that predictions take, one after another."""
    taken = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.perf_counter()
        client.post("/predict", json=ASKED).raise_for_status()
        taken.append(time.perf_counter() - started)
    return taken


def answered_s(service: Service, path: str) -> float:
    return service.client.get(path).elapsed.total_seconds()


def eventually_ready(client: httpx.Client) -> None:
    until(lambda: client.get("/readyz").json()["status"] == "ready")


def test_changes_answer_503_soon_after_the_database_hangs(service: Service, root: Path) -> None:
    eventually_ready(service.client)
    with hanging(root), ThreadPoolExecutor(len(CHANGES)) as threads:
        answers = list(
            threads.map(lambda change: service.client.request(change[0], change[1], json=change[2]), CHANGES)
        )
    for answer in answers:
        assert (answer.status_code, "Retry-After" in answer.headers) == (503, True), answer.text
        assert answer.elapsed.total_seconds() < WITHIN_S, answer.request.url


def test_predictions_go_on_while_changes_wait_for_a_hung_database(service: Service, root: Path) -> None:
    def share_of_limit() -> float:
        eventually_ready(service.client)
        with hanging(root), ThreadPoolExecutor(60) as threads:
            started = time.monotonic()
            changes = [
                threads.submit(service.client.request, "POST", "/retrain", json={"predictor": "ridge"})
                for _ in range(60)
            ]
            taken = predictions(httpx.Client(base_url=service.client.base_url, headers=service.client.headers), 4)
            assert {change.result().status_code for change in changes} == {503}
            longest = max(change.result().elapsed.total_seconds() for change in changes)
            together = time.monotonic() - started
        return max(max(taken) / 0.5, longest / WITHIN_S, together / (2 * WITHIN_S))

    assert least(share_of_limit, 1.0) < 1.0


def test_predictions_in_threads_and_for_gateways_go_on_while_answers_wait_to_be_saved(
    service: Service, root: Path
) -> None:
    served = {"kind": "serving", "name": "llama-3-8b", "dtype": "bf16", "input_tokens": 512, "output_tokens": 64}
    body = {"gpu": "h100-sxm5-80gb", "workload": served | {"load": {"concurrency": 4}}, "save": True}
    model = {"kind": "model", "name": "gpt2-large", "mode": "inference", "batch": 4, "sequence": 512, "dtype": "fp16"}
    asked = {"gpu": "nvidia-l4", "workload": model}
    eventually_ready(service.client)
    gateway = f"/llm-d/{service.client.post('/predict', json=body).raise_for_status().json()['id']}/predict/bulk"
    service.client.post(gateway, json=STATES_EXAMPLE).raise_for_status()
    service.client.post("/predict", json=asked).raise_for_status()

    def order() -> float:
        eventually_ready(service.client)
        with hanging(root), ThreadPoolExecutor(8) as threads:
            saves = [threads.submit(service.client.post, "/predict", json=asked | {"save": True}) for _ in range(8)]
            time.sleep(0.3)  # they are computed
            service.client.post("/predict", json=asked).raise_for_status()
            service.client.post(gateway, json=STATES_EXAMPLE).raise_for_status()
            done = sum(save.done() for save in saves)
            assert {save.result().status_code for save in saves} == {503}
        return done

    assert least(order, 1) < 1


def test_an_unknown_gpu_is_answered_while_the_database_hangs(service: Service, root: Path) -> None:
    eventually_ready(service.client)
    with hanging(root):
        answer = service.client.post("/predict", json={**ASKED, "gpu": "no such gpu"})
    assert answer.status_code == 404
    assert answer.elapsed.total_seconds() < WITHIN_S


def test_readiness_is_degraded_while_the_database_hangs(service: Service, root: Path) -> None:
    eventually_ready(service.client)
    with hanging(root):
        time.sleep(4)
        ready = service.client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        assert not ready.json()["parts"]["database"]["ok"]
        assert least(lambda: answered_s(service, "/readyz"), 1.0) < 1.0
        assert service.client.get("/livez").status_code == 200
        metrics = service.client.get("/metrics")
        assert "gpucast_database_up 0.0" in metrics.text
        assert least(lambda: answered_s(service, "/metrics"), 1.0) < 1.0
    eventually_ready(service.client)


def test_a_long_upload_outlives_the_limit_of_short_statements(server: EmbeddedPostgres) -> None:
    database = Database(server.url, TimeLimits(connect_s=2, answer_s=0.2, statement_s=0.5, long_statement_s=30))
    try:
        with pytest.raises(Unavailable, match="statement timeout"), database.begin() as connection:
            connection.exec_driver_sql("SELECT pg_sleep(2)")
        with database.begin(long=True) as connection:
            connection.exec_driver_sql("SELECT pg_sleep(2)")
        with database.begin() as connection:
            assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "500ms", "of the transaction only"
    finally:
        database.close()


def test_a_long_statement_ends_when_the_server_hangs(server: EmbeddedPostgres, root: Path) -> None:
    database = Database(server.url, TimeLimits.of_requests(3, 600))
    started = time.monotonic()
    try:
        with pytest.raises(Unavailable), database.begin(long=True) as connection, hanging(root):
            connection.exec_driver_sql("SELECT pg_sleep(60)")
        assert time.monotonic() - started < WITHIN_S
    finally:
        database.close()


def test_a_wait_for_a_lock_ends(service: Service) -> None:
    eventually_ready(service.client)
    with psycopg.connect(service.settings.database_url or "") as other:
        other.execute("LOCK TABLE retrain_jobs IN ACCESS EXCLUSIVE MODE")
        answer = service.client.get("/jobs")
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
    assert "lock timeout" in answer.json()["detail"]
    assert answer.elapsed.total_seconds() < WITHIN_S


def test_the_embedded_server_is_asked_without_holding_the_interpreter(server: EmbeddedPostgres, root: Path) -> None:
    turns = 0
    with hanging(root), ThreadPoolExecutor(1) as thread:
        asked = thread.submit(server._ping)
        while not asked.done():
            time.sleep(0.01)
            turns += 1
    assert turns > 10, "it would be one"


def test_a_start_ends_with_a_reason_where_a_socket_never_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://gpucast@127.0.0.1:{silent.getsockname()[1]}/gpucast"
        settings = Settings(database_url=url, data_dir=tmp_path, database_wait_s=1.0)
        started = time.monotonic()
        with pytest.raises(Unavailable, match="timeout"), open_runtime(settings):
            pass
        assert time.monotonic() - started < PATIENCE_S


def test_a_lost_database_leaves_predictions_and_degrades_readiness(
    service: Service, server: EmbeddedPostgres, root: Path
) -> None:
    eventually_ready(service.client)
    signal_server(root, signal.SIGKILL)
    for method, path, body in CHANGES:
        answer = service.client.request(method, path, json=body)
        assert (answer.status_code, "Retry-After" in answer.headers) == (503, True), answer.text
    ready = service.client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    assert service.client.get("/livez").status_code == 200
    assert predictions(service.client, 0.2)
    server.ensure_running()
    eventually_ready(service.client)


def test_changes_answer_503_while_the_database_is_read_only(service: Service, server: EmbeddedPostgres) -> None:
    def read_only() -> float:
        return float(
            re.search(r"^gpucast_database_read_only (\S+)$", service.client.get("/metrics").text, re.MULTILINE)[1]  # type: ignore[index]
        )

    eventually_ready(service.client)
    service.client.post("/measurements", json=MEASURED).raise_for_status()  # which a retraining learns from
    set_read_only(server, True)
    try:
        until(lambda: service.client.post("/measurements", json=MEASURED).status_code == 503)
        for method, path, body in CHANGES:
            answer = service.client.request(method, path, json=body)
            assert (answer.status_code, "Retry-After" in answer.headers) == (503, True), answer.text
            assert "read-only" in answer.json()["detail"]
        service.client.post("/predict", json=ASKED).raise_for_status()
        assert "read-only" in " ".join(service.client.get("/readyz").json()["degraded"])
        assert read_only() == 1.0
    finally:
        set_read_only(server, False)
    until(lambda: service.client.post("/measurements", json=MEASURED).status_code == 200)


@pytest.mark.parametrize("state", [*(f"{start}000"[:5] for start in IN_TROUBLE), "40001", "53300", "57P01", "58030"])
def test_a_server_in_trouble_is_unavailable_by_its_sqlstate(server: EmbeddedPostgres, state: str) -> None:
    database = Database(server.url)
    with pytest.raises(Unavailable), database.begin() as connection:
        connection.execute(sa.text(f"DO $$ BEGIN RAISE EXCEPTION 'trouble' USING ERRCODE = '{state}'; END $$"))


def test_a_wrong_statement_is_not_called_trouble_of_the_server(server: EmbeddedPostgres) -> None:
    database = Database(server.url)
    with pytest.raises(sa.exc.DataError), database.begin() as connection:
        connection.execute(sa.text("SELECT 1 / 0"))
