"""The service on a public address: its first key, and its limits on time and size."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from typer.testing import CliRunner, Result

from app.cli import build
from app.config import Settings
from app.errors import NotFound
from app.store.session import Database
from app.store.sql_tables import GPUS
from app.wire.prediction_form import PREDICT_EXAMPLE
from tests.busy_machine import until
from tests.service import Service

pytestmark = pytest.mark.slow

TIMEOUT_S = 2.0
MAX_BODY_BYTES = 100_000


@pytest.fixture(scope="module")
def public(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    extra = {
        "HOST": "0.0.0.0",
        "GPUCAST_REQUEST_TIMEOUT_S": str(TIMEOUT_S),
        "GPUCAST_MAX_BODY_BYTES": str(MAX_BODY_BYTES),
    }
    with Service(settings, tmp_path_factory.mktemp("public") / "log", extra) as running:
        yield running


@pytest.fixture(scope="module")
def admin(public: Service) -> httpx.Client:
    (key,) = re.findall(r"gpucast_[\w-]{43}", public.log.read_text())
    public.client.headers["Authorization"] = f"Bearer {key}"
    return public.client


def gpucast(settings: Settings, *words: str) -> Result:
    return CliRunner().invoke(build(words[0]), words, env=settings.environment())


def test_the_first_key_is_printed_and_is_an_admins(public: Service, admin: httpx.Client) -> None:
    assert httpx.get(f"{admin.base_url}/gpus").status_code == 401
    assert httpx.get(f"{admin.base_url}/healthz").status_code == 200
    assert admin.get("/gpus").status_code == 200
    assert [item["name"] for item in admin.get("/keys").json()["items"]] == ["first"]


def test_keys_from_a_terminal(settings: Settings, admin: httpx.Client) -> None:
    made = gpucast(settings, "keys", "create", "a scheduler", "--role", "predict")
    assert made.exit_code == 0, made.output
    headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
    wait_for(admin, headers, 200)
    assert admin.post("/retrain", json={"predictor": "forest"}, headers=headers).status_code == 403
    listed = gpucast(settings, "keys", "list").stdout
    (number,) = re.findall(r"(\d+)  predict .* in use +a scheduler", listed)
    assert gpucast(settings, "keys", "revoke", number).exit_code == 0
    wait_for(admin, headers, 401)
    again = gpucast(settings, "keys", "revoke", number)
    assert again.exit_code == 1 and isinstance(again.exception, NotFound)
    assert gpucast(settings, "keys", "create", "x", "--role", "god").exit_code == 2


def wait_for(client: httpx.Client, headers: dict[str, str], status: int) -> None:
    """Until the service has seen what changed in the database."""
    until(lambda: client.post("/predict", json=PREDICT_EXAMPLE, headers=headers).status_code == status)


def test_slow_requests_are_504_and_others_continue(admin: httpx.Client, database: Database) -> None:
    with database.begin() as connection:
        connection.execute(GPUS.update().where(GPUS.c.id == "titan-v").values(origin="user"))  # the row is locked
        started = time.monotonic()
        late = admin.patch("/gpus/titan-v", json={"board_power_w": 250.0})
        assert time.monotonic() - started >= TIMEOUT_S
        assert (late.status_code, late.json()["type"]) == (504, "urn:gpucast:problem:timed-out")
        assert late.headers["x-request-id"]
        assert admin.post("/predict", json=PREDICT_EXAMPLE).status_code == 200


def test_a_body_that_never_ends_is_504(public: Service, admin: httpx.Client) -> None:
    for told in (b"Content-Length: 1000", b"Transfer-Encoding: chunked"):
        with socket.create_connection(("127.0.0.1", public.port), timeout=10) as connection:
            key = admin.headers["Authorization"].encode()
            connection.sendall(
                b"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\n%s\r\n\r\n5\r\n{" % (key, told)
            )
            assert connection.recv(4096).startswith(b"HTTP/1.1 504")
    assert admin.post("/predict", json=PREDICT_EXAMPLE).status_code == 200


def test_a_body_over_the_limit_is_413_also_in_chunks(admin: httpx.Client) -> None:
    body = json.dumps(PREDICT_EXAMPLE).encode() + b" " * MAX_BODY_BYTES
    for content in (body, iter([body[:50_000], body[50_000:]])):
        assert admin.post("/predict", content=content).status_code == 413
    assert admin.post("/predict", content=iter([body[:1000]])).status_code == 200
