"""Limits on the size of bodies, by route."""

from __future__ import annotations

from typing import NamedTuple, Self

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import problems
from app.config import Settings
from app.errors import TooLarge, UnsupportedMedia

_COMPRESSED = "Bodies are read as they are: send no Content-Encoding (Parquet is compressed inside)."
# Routes that take many rows or a whole graph, and those that take a few fields, which are read on the event loop.
_UPLOADS = frozenset(("/predict/batch", "/measurements", "/graphs", "/prices"))
_FORMS = ("/retrain", "/keys", "/sign-in", "/sign-out")
_FORM_BYTES = 65_536
_WITHOUT_WEIGHTS = (
    "weights are not read: keep them in a file of their own (torch.onnx.export(..., external_data=True), or"
    " onnx.save(model, path, save_as_external_data=True)) and send the .onnx file alone. `gpucast predict FILE` takes a"
    " file of any size beside the service."
)


class BodyLimits(NamedTuple):
    """Largest bodies, bytes: of uploads, of forms, and of other requests."""

    upload: int
    form: int
    request: int

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the limits of an installation; `max_body_bytes` is over all."""
        most = settings.max_body_bytes
        return cls(most, min(_FORM_BYTES, most), min(settings.max_request_bytes, most))

    def of(self, path: str) -> int:
        """Return the limit of a route."""
        if path in _UPLOADS:
            return self.upload
        return self.form if path.startswith(_FORMS) else self.request


class BodyLimit:
    """Refuse compressed bodies, and bodies over their route's limit, by Content-Length or by counting chunks."""

    def __init__(self, app: ASGIApp, limits: BodyLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; what reads its body gets TooLarge if the length is not given and too large."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        length, most = None, self._limits.of(path)
        for key, value in scope["headers"]:
            if key == b"content-length":
                length = value
            elif key == b"content-encoding" and value.lower() != b"identity":
                await problems.error_response(UnsupportedMedia(_COMPRESSED))(scope, receive, send)
                return
        if length is None:
            await self._app(scope, _counted(receive, most, path), send)
        elif length.isdigit() and int(length) <= most:
            await self._app(scope, receive, send)
        else:
            await problems.error_response(_too_large(most, path))(scope, receive, send)


def _counted(receive: Receive, most: int, path: str) -> Receive:
    """Return a `receive` that raises TooLarge once the parts exceed the limit."""
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise _too_large(most, path)
        return message

    return counted


def _too_large(most: int, path: str) -> TooLarge:
    instead = _WITHOUT_WEIGHTS if path == "/graphs" else "send less, or in parts."
    return TooLarge(f"The body is over {most:,} bytes; {instead}")
