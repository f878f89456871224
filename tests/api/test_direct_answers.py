"""Kernels that are answered directly get what the application would answer, with its ids, keys, limits and metrics."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from uvicorn import Config
from uvicorn.server import ServerState

from app.api.access import KEY
from app.api.direct import DIRECT
from app.api.http_protocol import BoundedHttp
from app.api.predict import READ
from app.config import Settings
from app.store import keys
from app.store.roles import Role
from app.store.session import Database
from app.wire.operator_forms import OPERATORS_EXAMPLE
from app.wire.prediction_form import PREDICT_EXAMPLE
from tests.service import Service
from tests.unit.api.test_joined_writes import Recorded

pytestmark = pytest.mark.slow

KERNEL, OPERATORS = json.dumps(PREDICT_EXAMPLE).encode(), json.dumps(OPERATORS_EXAMPLE | {"gpu": "t4"}).encode()
WRONG = json.dumps(PREDICT_EXAMPLE | {"coverage": 2}).encode()
UNKNOWN = json.dumps(PREDICT_EXAMPLE | {"gpu": "no such card"}).encode()
LIMIT = 8
MUTATED = 150
VALUES: list[Any] = [
    None,
    0,
    -1,
    0.5,
    1e18,
    1e400,
    2**64,
    "",
    "x",
    "t4",
    "all",
    "\ud800",
    [],
    {},
    ["t4", "titan-v"],
    True,
    "roofline",
]


@pytest.fixture(scope="module")
def served(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(settings, tmp_path_factory.mktemp("direct") / "log") as running:
        yield running


def request(body: bytes, *headers: str, version: str = "1.1") -> bytes:
    lines = [f"POST /predict HTTP/{version}", "Host: here", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def asked(port: int, *pieces: bytes, answers: int = 1, apart_s: float = 0.2) -> list[tuple[int, dict[str, str], Any]]:
    """Status, headers and content of so many answers; the second piece is sent once the first was surely read."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as opened:
        for piece in pieces:
            opened.sendall(piece)
            time.sleep(apart_s * (piece is not pieces[-1]))
        reader = opened.makefile("rb")
        return [_answer(reader) for _ in range(answers)]


def _answer(reader: Any) -> tuple[int, dict[str, str], Any]:
    status = int(reader.readline().split()[1])
    lines = iter(lambda: reader.readline().decode().strip(), "")
    headers = dict(line.split(": ", 1) for line in lines)
    return status, headers, json.loads(reader.read(int(headers["content-length"])))


def total(service: Service, pattern: str) -> float:
    return sum(float(each) for each in re.findall(pattern + r" ([\d.e+]+)", service.client.get("/metrics").text))


def test_a_whole_kernel_is_answered_without_a_task(client: TestClient) -> None:
    """Otherwise all other tests of this file show nothing."""
    state, transport = ServerState(), Recorded()
    config = Config(client.app, http=BoundedHttp, lifespan="off", access_log=False)
    config.load()

    async def run() -> list[int]:
        connection = BoundedHttp(config, state, client.app_state)
        connection.connection_made(transport)
        tasks = []
        for body in (KERNEL, OPERATORS):
            before = len(transport.sent)
            connection.data_received(request(body))
            tasks.append(len(state.tasks))
            while len(transport.sent) == before:
                await asyncio.sleep(0)
        return tasks

    assert asyncio.run(run()) == [0, 1]
    assert [each.startswith(b"HTTP/1.1 200 OK\r\n") for each in transport.sent] == [True, True]


def test_a_head_is_parsed_once_and_nothing_that_is_added_to_its_request_is_remembered(client: TestClient) -> None:
    transport = Recorded()
    config = Config(client.app, http=BoundedHttp, lifespan="off", access_log=False)
    config.load()

    async def run() -> BoundedHttp:
        connection = BoundedHttp(config, ServerState(), client.app_state)
        connection.connection_made(transport)
        for body in (KERNEL, KERNEL.replace(b"0.91", b"0.95"), KERNEL):
            before = len(transport.sent)
            connection.data_received(request(body))
            connection.parser = None  # type: ignore[assignment]  # whoever parses the next head fails
            while len(transport.sent) == before:
                await asyncio.sleep(0)
        return connection

    connection = asyncio.run(run())
    bodies = [sent.partition(b"\r\n\r\n")[2] for sent in transport.sent]
    assert bodies[0] == bodies[2] != bodies[1]
    assert b"latency_ms" in bodies[1]
    known = connection.app_state[DIRECT].heads.find(request(KERNEL))
    assert known.body == KERNEL
    assert set(known.scope) < set(connection.cycle.scope)
    assert {"app", "route", KEY, READ}.isdisjoint(known.scope)


@pytest.mark.parametrize("body", [KERNEL, OPERATORS, WRONG, UNKNOWN], ids=["kernel", "operators", "wrong", "unknown"])
def test_answers_are_those_of_the_application(served: Service, body: bytes) -> None:
    """A body in two pieces is read by the application; the head of the second request is known."""
    whole = request(body, "X-Request-ID: mine")
    (direct, known), (other,) = asked(served.port, whole, whole, answers=2), asked(served.port, whole[:-5], whole[-5:])
    for _, headers, _ in (direct, known, other):
        headers.pop("date")
    assert direct == known == other
    assert direct[1]["x-request-id"] == "mine"


def test_mutated_kernels_are_answered_as_by_the_application(served: Service) -> None:
    draw, found = random.Random(21), set()
    for _ in range(MUTATED):
        whole = request(mutated(draw), "X-Request-ID: mine")
        direct, known = asked(served.port, whole, whole, answers=2, apart_s=0.01)
        (other,) = asked(served.port, whole[:-1], whole[-1:], apart_s=0.01)
        for _, headers, _ in (direct, known, other):
            headers.pop("date")
        assert direct == known == other, whole
        found.add(direct[0])
    assert {200, 400, 422} <= found <= {200, 400, 404, 413, 422}


def mutated(draw: random.Random) -> bytes:
    """The example with a wrong, absent or other value, or with damaged bytes."""
    body = json.loads(KERNEL)
    for _ in range(draw.randrange(1, 3)):
        place = draw.choice([body, body["workload"], body["workload"]["measured"][0]])
        name = draw.choice([name for name in (*place, "gpus", "unknown") if name not in ("workload", "measured")])
        place[name] = draw.choice(VALUES)
        if place[name] == "":
            del place[name]
    text = json.dumps(body).encode()
    damage = draw.randrange(len(text))
    return text[:damage] + bytes([draw.randrange(256)]) + text[damage + 1 :] if draw.random() < 0.3 else text


def test_requests_of_all_kinds_in_one_piece_are_answered_in_order(served: Service) -> None:
    bodies = [KERNEL, OPERATORS, WRONG, KERNEL, KERNEL, UNKNOWN, KERNEL]
    ids = [f"X-Request-ID: {k}" for k in range(len(bodies))]
    piece = b"".join(map(request, bodies, ids))
    answers = asked(served.port, piece, answers=len(bodies))
    assert [status for status, _, _ in answers] == [200, 200, 422, 200, 200, 404, 200]
    assert [headers["x-request-id"] for _, headers, _ in answers] == [str(k) for k in range(len(bodies))]


@pytest.mark.parametrize("how", [("1.1", "Connection: close"), ("1.0",)])
def test_a_connection_that_is_not_kept_is_closed_after_the_answer(served: Service, how: tuple[str, ...]) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as opened:
        opened.sendall(request(KERNEL, *how[1:], version=how[0]))
        found = opened.makefile("rb").read()
    assert found.startswith(b"HTTP/1.1 200")
    assert b"connection: close\r\n" in found


def test_a_caller_who_waits_to_be_asked_for_the_body_is_asked(served: Service) -> None:
    head, _, _ = request(KERNEL, "Expect: 100-continue").partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as opened:
        opened.sendall(head + b"\r\n\r\n")
        reader = opened.makefile("rb")
        assert reader.readline() + reader.readline() == b"HTTP/1.1 100 Continue\r\n\r\n"
        opened.sendall(KERNEL)
        assert _answer(reader)[0] == 200


@pytest.mark.parametrize(
    ("header", "status"), [("Content-Encoding: gzip", 415), ("Cache-Control: no-cache", 200), ("Upgrade: h2c", 200)]
)
def test_unusual_requests_are_treated_as_before(served: Service, header: str, status: int) -> None:
    ((found, _, _),) = asked(served.port, request(KERNEL, header))
    assert found == status


def test_metrics_count_each_request_once(served: Service) -> None:
    patterns = [
        r'gpucast_requests_total\{method="POST",route="/predict",status="200"\}',
        r'gpucast_requests_total\{method="POST",route="/predict",status="422"\}',
        r'gpucast_request_seconds_count\{route="/predict"\}',
        r'gpucast_predictions_total\{predictor="auto",support="\w+"\}',
    ]
    before = [total(served, pattern) for pattern in patterns]
    for body in (KERNEL, KERNEL, KERNEL, WRONG):
        asked(served.port, request(body))
    assert [total(served, pattern) - old for pattern, old in zip(patterns, before, strict=True)] == [3, 1, 4, 3]


@pytest.fixture(scope="module")
def secret(database: Database) -> str:
    with database.begin() as connection:
        return keys.create(connection, "direct", Role.PREDICT)[1]


def test_keys_and_rates_hold_and_count_each_request_once(
    settings: Settings, secret: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    guarded = dataclasses.replace(settings, keys="on", rate_limit=f"{LIMIT}/day")
    kinds = [(KERNEL, 200), (OPERATORS, 200), (WRONG, 422), (UNKNOWN, 404)]
    with Service(guarded, tmp_path_factory.mktemp("guarded") / "log") as service:
        ((status, headers, _),) = asked(service.port, request(KERNEL))
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        laps = [(request(body, f"Authorization: Bearer {secret}"), status) for body, status in kinds * (LIMIT // 4)]
        answers = asked(service.port, *(piece for piece, _ in laps), answers=LIMIT)  # the second lap's heads are known
        assert [status for status, _, _ in answers] == [status for _, status in laps]
        ((status, headers, _),) = asked(service.port, request(KERNEL, f"Authorization: Bearer {secret}"))
        assert status == 429
        assert "retry-after" in headers
