"""A server that sends any bytes in answer to a request, for tests of clients."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Script = Callable[[socket.socket], None]
JSON, PROBLEM = "application/json", "application/problem+json"


@contextmanager
def hostile(script: Script) -> Iterator[str]:
    """Yield the URL of a server that runs `script` on each connection once its first request has come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener, script), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket, script: Script) -> None:
    with suppress(OSError):
        while True:
            threading.Thread(target=_answer, args=(listener.accept()[0], script), daemon=True).start()


def _answer(connection: socket.socket, script: Script) -> None:
    with connection, suppress(OSError):
        received = b""
        while b"\r\n\r\n" not in received and (part := connection.recv(2**16)):
            received += part
        script(connection)
        # Closed with a body unread, the connection would be reset, perhaps before the client has read the answer.
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(1.0)
        while connection.recv(2**16):
            pass


def head(status: str = "200 OK", media: str = JSON, **headers: object) -> bytes:
    """Return the head of an answer; an underscore in a header's name is a hyphen."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {media}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(content: bytes, status: str = "200 OK", media: str = JSON, **headers: object) -> Script:
    """Return the script of a complete answer."""
    return lambda connection: connection.sendall(
        head(status, media, Content_Length=len(content), Connection="close", **headers) + content
    )


def endless(part: bytes = b" " * 2**16, every_s: float = 0.0, media: str = JSON) -> Script:
    """Return the script of an answer that sends `part` over and over."""

    def send(connection: socket.socket) -> None:
        connection.sendall(head(media=media, Content_Length=10**12))
        while True:
            connection.sendall(part)
            time.sleep(every_s)

    return send


def stalled(over: threading.Event) -> Script:
    """Return the script of a server that answers nothing until it is over."""

    def wait(connection: socket.socket) -> None:
        over.wait(60)
        whole(b"{}")(connection)

    return wait
