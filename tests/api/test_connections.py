"""Connections that are slow, large or many are ended, and others are served meanwhile. Real sockets."""

from __future__ import annotations

import dataclasses
import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.api.connections import RESERVE
from app.config import Settings
from app.wire.prediction_form import PREDICT_EXAMPLE
from tests.busy_machine import until
from tests.service import Service

pytestmark = pytest.mark.slow

MOST, OF_ADDRESS, HEADER_S, BODY_S, KEEP_ALIVE_S = 20, 15, 1.0, 2.0, 1.5
# A connection that no limit ends stays open for longer than a test waits.
LATEST_S = 40.0
HEAD = b"POST /predict HTTP/1.1\r\nHost: here\r\n"
BODY = json.dumps(PREDICT_EXAMPLE).encode()


@pytest.fixture(scope="module")
def bounded(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service with few connections and little time."""
    tight = dataclasses.replace(
        settings,
        max_connections=MOST,
        max_connections_per_address=OF_ADDRESS,
        header_timeout_s=HEADER_S,
        body_timeout_s=BODY_S,
        keep_alive_s=KEEP_ALIVE_S,
    )
    with Service(tight, tmp_path_factory.mktemp("bounded") / "log") as running:
        yield running


@pytest.fixture
def connection(bounded: Service) -> Iterator[socket.socket]:
    with connect(bounded) as opened:
        yield opened


def connect(service: Service, number: int = 1) -> socket.socket:
    """A connection from one of this machine's addresses."""
    return socket.create_connection(("127.0.0.1", service.port), timeout=60, source_address=(f"127.0.0.{number}", 0))


def answer(opened: socket.socket) -> tuple[int, bytes]:
    """Status and content of the last answer, once the connection is closed; 0 without an answer."""
    parts = []
    opened.settimeout(60)
    try:
        while part := opened.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    return (int(head.split()[1]), body) if head else (0, b"")


def problem(opened: socket.socket, status: int) -> str:
    """The reason of a refusal in the service's form."""
    found, body = answer(opened)
    assert found == status, body
    told = json.loads(body)
    assert told["status"] == status
    assert told["type"].startswith("urn:gpucast:problem:")
    return str(told["detail"])


def served_once(service: Service, path: str = "/gpus", number: int = 1) -> int:
    """Status of a request on a connection of its own."""
    with connect(service, number) as opened:
        opened.sendall(b"GET %s HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n" % path.encode())
        return answer(opened)[0]


@pytest.mark.parametrize("pieces", [1, 50])
@pytest.mark.parametrize("ended", [True, False], ids=["whole", "endless"])
def test_headers_over_64_kib_are_431(connection: socket.socket, pieces: int, ended: bool) -> None:
    lines = [b"X-%d: " % k + b"x" * (100_000 // pieces) + b"\r\n" for k in range(pieces)]
    connection.sendall(HEAD + b"".join(lines) + (b"Content-Length: 0\r\n\r\n" if ended else b""))
    assert "over 65,536 bytes" in problem(connection, 431)


def test_a_long_address_is_431(connection: socket.socket) -> None:
    connection.sendall(b"GET /gpus?q=" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: here\r\n\r\n")
    assert "over 65,536 bytes" in problem(connection, 431)


def test_headers_under_64_kib_pass(connection: socket.socket) -> None:
    lines = b"".join(b"X-%d: " % k + b"x" * 1000 + b"\r\n" for k in range(50))
    connection.sendall(HEAD + lines + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
    assert answer(connection)[0] == 200


def test_headers_in_drips_are_408(connection: socket.socket) -> None:
    began = time.monotonic()
    connection.settimeout(0.1)
    for byte in HEAD * 100:
        connection.sendall(bytes([byte]))
        try:
            if connection.recv(1, socket.MSG_PEEK):
                break
        except TimeoutError:
            continue
    assert time.monotonic() - began < LATEST_S
    assert "headers did not arrive within 1 s" in problem(connection, 408)


def test_a_connection_that_sends_nothing_is_closed(connection: socket.socket) -> None:
    began = time.monotonic()
    assert answer(connection) == (0, b"")
    assert time.monotonic() - began < LATEST_S


def test_a_connection_without_further_requests_is_closed(connection: socket.socket) -> None:
    began = time.monotonic()
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
    assert answer(connection)[0] == 200
    assert KEEP_ALIVE_S - 0.1 < time.monotonic() - began < LATEST_S


def test_a_body_in_drips_is_408(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
    connection.settimeout(0.2)
    began = time.monotonic()
    while True:
        assert time.monotonic() - began < LATEST_S
        connection.sendall(b" ")
        try:
            if connection.recv(1, socket.MSG_PEEK):
                break
        except TimeoutError:
            continue
    assert "body did not arrive within 2 s" in problem(connection, 408)


def test_too_many_connections_get_503_and_others_are_served(bounded: Service) -> None:
    used = bounded.client.get("/healthz")
    assert used.status_code == 200
    with ExitStack() as held:
        idle = [held.enter_context(connect(bounded, 2 + k % 2)) for k in range(MOST + 5)]
        refused = idle[-1]
        assert "20 connections" in problem(refused, 503)
        assert bounded.client.get("/healthz").status_code == 200, "an open connection is served"
        until(lambda: served_once(bounded) == 200)  # idle connections make room


@pytest.mark.parametrize("number", [1, 2], ids=["another", "the same"])
def test_connections_of_one_address_leave_others_and_probes_alone(bounded: Service, number: int) -> None:
    """Far more than all limits and the reserve: 900 idle ones made both probes 503 for as long as they lasted."""
    with ExitStack() as held:
        idle = [held.enter_context(connect(bounded, 2)) for _ in range(MOST + RESERVE + 50)]
        began = time.monotonic()
        assert {served_once(bounded, path, number) for path in ("/livez", "/readyz", "/metrics")} == {200}
        if time.monotonic() - began < HEADER_S:  # else the idle ones are closed
            assert served_once(bounded, "/gpus", number) == (200 if number == 1 else 429)
        assert "address has 15 connections" in problem(idle[-1], 429)


def test_a_request_under_way_when_the_process_stops_is_answered(settings: Settings, tmp_path: Path) -> None:
    """Idle connections were closed at once, those too whose request had been sent, which resets them."""
    with Service(dataclasses.replace(settings, stop_grace_s=5.0), tmp_path / "log") as service, ExitStack() as held:
        opened = [held.enter_context(connect(service)) for _ in range(8)]
        request = b"POST /predict HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
        opened[0].sendall(request)
        assert b" 200 " in opened[0].recv(65_536)
        assert service.process is not None
        service.process.send_signal(signal.SIGTERM)
        until(lambda: b"Shutting down" in service.log.read_bytes(), every_s=0.001)
        for each in opened:
            each.sendall(request)
        assert [answer(each)[0] for each in opened] == [200] * len(opened)
        assert service.stop() == 0


def test_headers_after_the_body_are_dropped(connection: socket.socket) -> None:
    chunk = b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n" + b"a:\r\n" * 1_000_000 + b"\r\n"
    connection.sendall(HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk)
    assert answer(connection)[0] == 200


def test_what_is_not_http_is_400(connection: socket.socket) -> None:
    connection.sendall(b"hello\r\n\r\n")
    assert problem(connection, 400)


def test_many_requests_in_one_piece_are_all_answered(bounded: Service) -> None:
    """A piece that ends within the headers of the last one has no large headers."""
    one = HEAD + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
    several, found = 400, b""
    with connect(bounded) as opened:
        opened.sendall(one * several + HEAD)
        opened.sendall(one[len(HEAD) :])
        opened.settimeout(20)
        while found.count(b"HTTP/1.1 ") <= several:
            part = opened.recv(65_536)
            assert part, found[-500:]
            found += part
    assert found.count(b"HTTP/1.1 200") == several + 1
