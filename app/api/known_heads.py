"""Heads of requests that were parsed before: a client sends the same head with every body of one length.

A parser calls Python for every header of it.
"""

from __future__ import annotations

from typing import NamedTuple

from starlette.types import Scope

_END = b"\r\n\r\n"
# Longer heads are parsed, and of more heads all are forgotten: this bounds what clients with new ones leave behind.
_MOST_BYTES, _MOST_HEADS = 2048, 512


class Known(NamedTuple):
    """A request whose head was parsed before: its scope, as the parser's callbacks left it, and its body."""

    scope: Scope
    body: bytes


class KnownHeads:
    """Scopes by head. A head says all that a parser finds out about a request of one piece."""

    def __init__(self) -> None:
        self._scopes: dict[bytes, tuple[Scope, int]] = {}

    def find(self, piece: bytes) -> Known | None:
        """Return the request in a piece that begins with a known head and ends with all of its body."""
        end = piece.find(_END, 0, _MOST_BYTES) + len(_END)
        known = self._scopes.get(piece[:end])
        if known is None or len(piece) != known[1]:
            return None
        return Known({**known[0], "headers": known[0]["headers"].copy()}, piece[end:])

    def learn(self, piece: bytes, scope: Scope, body: bytes | bytearray) -> None:
        """Remember the scope of a request, unless the piece is anything but its head and its `body` as it came."""
        end = piece.find(_END, 0, _MOST_BYTES) + len(_END)
        if end < len(_END) or piece[end:] != body:
            return
        if len(self._scopes) >= _MOST_HEADS:
            self._scopes.clear()
        self._scopes[piece[:end]] = scope, len(piece)
