"""Bodies of POST /graphs: which form they are in, by what they begin with; and sizes of dimensions from words."""

from __future__ import annotations

from collections.abc import Iterable

from app.errors import BadInput, FieldError, UnsupportedMedia
from app.graphs.importers import onnx_file
from app.services.graphs.export_archive import read_archive
from app.services.graphs.source import JSON, ONNX, Source
from app.wire.decoding import decode_plain
from app.wire.graph_form import check_graph

MEDIA_JSON = "application/json"
MEDIA_ZIP = "application/zip"
# What files of any form come as: ONNX has no registered type of its own.
MEDIA_FILES = (
    "application/octet-stream",
    MEDIA_ZIP,
    "application/x-onnx",
    "application/onnx",
    "application/x-protobuf",
)
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # with entries, and without
MAX_EXTENT = 2**31


def read_graph(body: bytes, media: str) -> Source:
    """A network from the body of an upload; Malformed, BadInput or UnsupportedMedia say what is wrong with it."""
    if media not in (MEDIA_JSON, *MEDIA_FILES):
        raise UnsupportedMedia(f"A graph is read as {', '.join((MEDIA_JSON, *MEDIA_FILES))}; this is {media!r}.")
    if media == MEDIA_ZIP or body.startswith(_ZIP):
        return Source(JSON, read_archive(body))
    if media == MEDIA_JSON or body[:64].lstrip()[:1] == b"{":
        return Source(JSON, check_graph(decode_plain(body), loc=()))
    return Source(ONNX, onnx_file.stripped(body))


def read_dims(words: Iterable[str]) -> dict[str, int]:
    """Sizes from NAME=SIZE each; BadInput names the one that is none."""
    dims: dict[str, int] = {}
    for k, word in enumerate(words):
        name, separator, size = word.partition("=")
        if not (separator and name and size.isascii() and size.isdigit() and 0 < int(size[:11]) <= MAX_EXTENT):
            message = f"send NAME=SIZE with a size from 1 to {MAX_EXTENT}, not {word[:100]!r}"
            raise BadInput(f"dims: {message}", errors=[FieldError(("dims", k), message)])
        dims[name] = int(size)
    return dims
