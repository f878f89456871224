"""Servers that send anything to `gpucast measure`: a gpucast service to report to, and an endpoint to measure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from app.errors import GpucastError
from measure.connection import Connection, Content, decoded
from measure.server import Server
from measure.serving.endpoint import Completion, Endpoint, RequestFailed
from tests.hostile_server import JSON, PROBLEM, Script, endless, hostile, whole

OBEYED = b"\\u001b]0;owned\\u0007"
STREAM = "text/event-stream"


@pytest.mark.parametrize(
    "script",
    [
        *(whole(content) for content in (b"<html>", b"", b"[" * 1_000_000, b"1" * 5_000, b"\xff")),
        whole(b"x", Content_Encoding="gzip"),
        whole(b"", "302 Found", Location="file://localhost/etc/passwd"),
        *(
            whole(content, "400 Bad", PROBLEM)
            for content in (b"[1]", b"{", b'{"detail": 1}', b'{"detail": "%b"}' % OBEYED)
        ),
        whole(b"x" * 10_000_000, "500 Bad", "text/plain", Retry_After=10**9),
        endless(),
        lambda _: None,
    ],
)
def test_what_is_no_answer_is_one_short_error(script: Script) -> None:
    """They were tracebacks, read 10 GB, or set the title of the terminal."""
    with hostile(script) as url, pytest.raises(GpucastError) as caught:
        decoded(Connection(url).ask("GET", "/predictors"))
    assert caught.value.detail.isprintable() and len(caught.value.detail) < 1_000


@pytest.mark.parametrize("content", [b"{}", b"null", b"[1]", b'{"source": [], "inserted": {}}'])
def test_an_answer_of_another_service_is_an_error(content: bytes) -> None:
    device = {"name": "mine", "kind": "cpu", "source": "x"}
    with hostile(whole(content)) as url:
        server = Server(url)
        with pytest.raises(GpucastError, match="not one of gpucast's"):
            server.raise_peaks(device)


def test_an_answer_without_an_end_ends() -> None:
    with pytest.raises(httpx.ReadTimeout):
        Content(seconds=-1.0).add(b" ")


def at(script: Script, use: Callable[[Endpoint], Awaitable[Any]]) -> Any:
    """Return what comes of an endpoint."""

    async def run(url: str) -> Any:
        async with Endpoint(url) as endpoint:
            return await use(endpoint)

    with hostile(script) as url:
        return asyncio.run(run(url))


@pytest.mark.parametrize(
    "content",
    [b"[1]", b'{"data": [1]}', b'{"data": [{"id": "%b"}]}' % OBEYED, b'{"data": [{"id": "%b"}]}' % (b"x" * 2_000_000)],
)
def test_a_model_has_a_name_that_can_be_shown(content: bytes) -> None:
    with pytest.raises(GpucastError):
        at(whole(content), lambda endpoint: endpoint.look_up())


EVENT = b'data: {"choices": [{"text": "a"}], "usage": {"prompt_tokens": %b, "completion_tokens": 2}}\n\n'


@pytest.mark.parametrize(
    "script",
    [
        *(whole(EVENT % count, media=STREAM) for count in (b"-1", b"true", b"9" * 400)),
        *(
            whole(b"data: %b\n\n" % data, media=STREAM)
            for data in (b"[" * 1_000_000, b"3", b'{"error": "%b"}' % OBEYED)
        ),
        endless(b"x" * 2**16, media=STREAM),
        endless(800 * (EVENT % b"1"), media=STREAM),
        whole(b"\x1b" * 50_000_000, "500 Bad", JSON),
    ],
)
def test_a_stream_that_is_none_is_a_request_that_failed(script: Script) -> None:
    """One without an end was read for ever, and counted tokens below zero."""
    with pytest.raises(RequestFailed) as caught:
        at(script, lambda endpoint: endpoint.complete("a", 4))
    assert str(caught.value).isprintable() and len(str(caught.value)) <= 200


def test_a_completion_is_read() -> None:
    completion = at(whole(EVENT % b"1", media=STREAM), lambda endpoint: endpoint.complete("a", 4))
    assert isinstance(completion, Completion) and completion.output_tokens == 2
