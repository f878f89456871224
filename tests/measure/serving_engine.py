"""A small server of /v1/completions that streams tokens at known times, in place of somebody's engine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.http_server import serving

MODEL = "meta-llama/Meta-Llama-3-8B"
# Words of this engine's tokenizer are of so many tokens.
TOKENS_A_WORD = 2


@dataclass
class Behaviour:
    """What the engine does.

    first_s, each_s  until the first token, and between the others
    ids, ignore_eos, usage  whether it takes such prompts and options, and reports counts of tokens
    fails_after      requests that succeed; later ones get status 500
    bodies, most     the requests that came, and the most that were in flight at once
    connections      those that were opened
    times            of each stream from the request until its first and its last token, seconds, as sent
    """

    first_s: float = 0.05
    each_s: float = 0.01
    ids: bool = True
    ignore_eos: bool = True
    usage: bool = True
    owner: str = "vllm"
    fails_after: int = 10**9
    bodies: list[dict[str, Any]] = field(default_factory=list)
    in_flight: int = 0
    most: int = 0
    connections: int = 0
    times: list[tuple[float, float]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behaviour: Behaviour

    def setup(self) -> None:
        super().setup()
        with self.behaviour.lock:
            self.behaviour.connections += 1

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._json(200, {"data": [{"id": MODEL, "owned_by": self.behaviour.owner}]})
        elif self.path == "/version" and self.behaviour.owner == "vllm":
            self._json(200, {"version": "0.19.0"})
        else:
            self._json(404, {"error": "unknown path"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        engine = self.behaviour
        with engine.lock:
            engine.bodies.append(body)
            number = len(engine.bodies)
        if isinstance(body["prompt"], list) and not engine.ids:
            self._json(400, {"error": "prompt must be text"})
        elif "ignore_eos" in body and not engine.ignore_eos:
            self._json(422, {"error": "ignore_eos: unknown field"})
        elif number > engine.fails_after:
            self._json(500, {"error": "out of memory"})
        else:
            with engine.lock:
                engine.in_flight += 1
                engine.most = max(engine.most, engine.in_flight)
            self._stream(body)
            with engine.lock:
                engine.in_flight -= 1

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        tokens = body["max_tokens"] if "ignore_eos" in body else max(body["max_tokens"] - 1, 1)
        began, sent = time.perf_counter(), list[float]()
        for k in range(tokens):
            time.sleep(max(began + self.behaviour.first_s + k * self.behaviour.each_s - time.perf_counter(), 0.0))
            self._event({"choices": [{"text": "" if k == 0 else " a"}], "usage": None})
            sent.append(time.perf_counter() - began)
        self.behaviour.times.append((sent[0], sent[-1]))
        if self.behaviour.usage:
            prompt = body["prompt"]
            counted = len(prompt) if isinstance(prompt, list) else TOKENS_A_WORD * len(prompt.split())
            self._event({"choices": [], "usage": {"prompt_tokens": counted, "completion_tokens": tokens}})
        self._write(b"data: [DONE]\n\n")
        self._write(b"")

    def _event(self, event: dict[str, Any]) -> None:
        self._write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _write(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _json(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def running(behaviour: Behaviour) -> Iterator[str]:
    """Yield the address of an engine that behaves so."""
    handler = type("Handler", (_Handler,), {"behaviour": behaviour})
    with serving(handler) as url:
        yield url
