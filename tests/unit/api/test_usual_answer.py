"""The short way of an answer's head sends what uvicorn's own sends."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.api.usual_answer import UsualAnswer
from tests.unit.api.test_joined_writes import Recorded

Headers = list[tuple[bytes, bytes]]

OWN: Headers = [(b"date", b"today"), (b"server", b"uvicorn")]
USUAL: Headers = [(b"content-type", b"application/json"), (b"content-length", b"2"), (b"x-request-id", b"7")]


class Flow:
    """The state of a connection that takes what is sent."""

    write_paused = False


def sent(
    kind: type[RequestResponseCycle], headers: Headers, *, own: Headers, method: str = "GET", keep_alive: bool = True
) -> tuple[bytes, Sequence[object]]:
    """All bytes of an answer, and the state that it leaves."""
    transport, log = Recorded(), logging.getLogger(__name__)

    async def run() -> tuple[bytes, Sequence[object]]:
        scope: Any = {"method": method}
        flow: Any = Flow()
        event = asyncio.Event()
        done: list[bool] = []
        answer = kind(scope, transport, flow, log, log, False, own, event, False, keep_alive, lambda: done.append(True))
        await answer.send({"type": "http.response.start", "status": 200, "headers": headers})
        await answer.send({"type": "http.response.body", "body": b"{}"})
        state = (answer.response_complete, answer.chunked_encoding, answer.expected_content_length, answer.keep_alive)
        return b"".join(transport.sent), (*state, done)

    return asyncio.run(run())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("keep_alive", [True, False])
@pytest.mark.parametrize("own", [OWN, [], [(b"Connection", b"close")], [(b"Server", b"mine")]])
@pytest.mark.parametrize(
    "headers",
    [
        USUAL,
        USUAL[1:2],
        USUAL[:1],
        [],
        [*USUAL, (b"connection", b"close")],
        [*USUAL, (b"Connection", b"close")],
        [*USUAL, (b"content-length", b"2")],
        [(b"Content-Length", b"2"), (b"X-Other", b"a")],
        [(b"transfer-encoding", b"chunked")],
    ],
)
def test_any_head_is_that_of_uvicorn(headers: Headers, own: Headers, method: str, keep_alive: bool) -> None:
    theirs = sent(RequestResponseCycle, headers, own=own, method=method, keep_alive=keep_alive)
    for _ in range(2):  # the second time names are known
        assert sent(UsualAnswer, headers, own=own, method=method, keep_alive=keep_alive) == theirs


@pytest.mark.parametrize("wrong", [(b"x-bad name", b"a"), (b"x-good", b"a\r\nx-bad: b")])
def test_characters_that_are_not_allowed_are_refused_every_time(wrong: tuple[bytes, bytes]) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Invalid HTTP header"):
            sent(UsualAnswer, [*USUAL, wrong], own=OWN)
        with pytest.raises(RuntimeError, match="Invalid HTTP header"):
            sent(UsualAnswer, USUAL, own=[wrong])


def test_an_answer_in_one_piece_is_that_of_uvicorn() -> None:
    expected, state = sent(RequestResponseCycle, USUAL, own=OWN)
    whole, transport = cycle(own=OWN)
    lines = b"".join(b"%s: %s\r\n" % each for each in USUAL)
    assert whole.answer(lines, b"{}")
    assert b"".join(transport.sent) == expected
    assert whole.response_complete
    assert state[0]


@pytest.mark.parametrize("why", ["keep_alive", "disconnected", "response_started"])
def test_an_answer_in_one_piece_is_only_for_a_usual_connection(why: str) -> None:
    unusual, transport = cycle(own=OWN)
    setattr(unusual, why, why != "keep_alive")
    assert not unusual.answer(b"content-length: 2\r\n", b"{}")
    assert not transport.sent


def cycle(*, own: Headers) -> tuple[UsualAnswer, Recorded]:
    """A request without an answer, and where its answer goes."""
    scope: Any = {"method": "POST"}
    flow: Any = Flow()
    log, transport = logging.getLogger(__name__), Recorded()
    event = asyncio.Event()
    return UsualAnswer(scope, transport, flow, log, log, False, own, event, False, True, lambda: None), transport
