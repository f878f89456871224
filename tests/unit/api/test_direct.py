"""A head is known only if a piece is the head and its whole body."""

from __future__ import annotations

from typing import Any

from app.api.direct import KnownHeads

HEAD = b"POST /predict HTTP/1.1\r\nContent-Length: 4\r\n\r\n"
SCOPE: dict[str, Any] = {"path": "/predict", "headers": [(b"content-length", b"4")]}


def learned(piece: bytes, body: bytes) -> KnownHeads:
    heads = KnownHeads()
    heads.learn(piece, SCOPE, body)
    return heads


def test_a_known_head_is_found_with_another_body() -> None:
    known = learned(HEAD + b"body", b"body").find(HEAD + b"\r\n\r\n")
    assert known == (SCOPE, b"\r\n\r\n")


def test_what_is_added_to_a_request_is_not_remembered() -> None:
    heads = learned(HEAD + b"body", b"body")
    known = heads.find(HEAD + b"body")
    assert known is not None
    known.scope["key"] = "secret"
    known.scope["headers"].append((b"added", b"1"))
    assert heads.find(HEAD + b"more") == (SCOPE, b"more")


def test_pieces_that_are_not_one_whole_request_are_not_found() -> None:
    heads = learned(HEAD + b"body", b"body")
    other = HEAD.replace(b"/predict", b"/compare")
    for piece in (b"", HEAD, HEAD + b"bod", HEAD + b"bodyP", other + b"body", b"\r\n" + HEAD + b"body", b"body"):
        assert heads.find(piece) is None, piece


def test_requests_whose_body_does_not_follow_the_head_as_it_is_are_not_learned() -> None:
    chunked = HEAD.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked") + b"4\r\nbody\r\n0\r\n\r\n"
    two = HEAD + b"body" + HEAD + b"body"
    for piece in (chunked, two, b"\r\n\r\n" + HEAD + b"body"):
        assert learned(piece, b"body").find(piece) is None, piece


def test_heads_are_bounded_in_length_and_number() -> None:
    long = HEAD.replace(b"\r\n\r\n", b"\r\nX: " + 3000 * b"x" + b"\r\n\r\n") + b"body"
    assert learned(long, b"body").find(long) is None
    heads = KnownHeads()
    pieces = [HEAD.replace(b"/predict", b"/predict?%d" % k) + b"body" for k in range(2000)]
    for piece in pieces:
        heads.learn(piece, SCOPE, b"body")
    assert 0 < sum(heads.find(piece) is not None for piece in pieces) <= 512
