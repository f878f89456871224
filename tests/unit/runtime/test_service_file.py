"""A command finds the running service of its own installation, and no other one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from app.config import Settings
from app.runtime.service_file import announced, answer_of_service


class Echo(BaseHTTPRequestHandler):
    """Answers with what was sent; refuses an empty body."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200 if body else 400)
        self.end_headers()
        self.wfile.write(self.path.encode() + b" " + body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """Of an installation at whose port somebody answers."""
    with HTTPServer(("127.0.0.1", 0), Echo) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield Settings(data_dir=tmp_path / "data", port=server.server_port)
        server.shutdown()


def test_the_service_answers_as_long_as_it_runs(settings: Settings) -> None:
    assert answer_of_service(settings, "/predict", b"{}") is None
    with announced(settings):
        assert answer_of_service(settings, "/predict", b"{}") == b"/predict {}"
        assert answer_of_service(settings, "/predict", b"") is None  # refused: the command says why itself
    assert answer_of_service(settings, "/predict", b"{}") is None


def test_only_a_service_of_the_same_installation_is_used(settings: Settings, tmp_path: Path) -> None:
    with announced(settings):
        for other in (
            replace(settings, database_url="postgresql://elsewhere/name"),
            replace(settings, shipped_dir=tmp_path),
            replace(settings, seed_measurements_dir=tmp_path),
            replace(settings, data_dir=tmp_path),
        ):
            assert answer_of_service(other, "/predict", b"{}") is None


def test_a_service_that_requires_keys_is_not_used(settings: Settings) -> None:
    with announced(replace(settings, keys="on")):
        assert answer_of_service(settings, "/predict", b"{}") is None


def test_a_second_service_does_not_replace_the_first(settings: Settings) -> None:
    with announced(settings), announced(replace(settings, port=1)):
        assert answer_of_service(settings, "/predict", b"{}") == b"/predict {}"


def test_damaged_files_and_closed_ports_are_no_service(settings: Settings) -> None:
    with announced(replace(settings, port=1)):
        assert answer_of_service(settings, "/predict", b"{}") is None
        (settings.data_dir / "service.json").write_text("[]")
        assert answer_of_service(settings, "/predict", b"{}") is None
