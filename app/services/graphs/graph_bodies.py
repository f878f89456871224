"""Read bodies of POST /graphs, with the format detected from the first bytes, and NAME=SIZE dimensions."""

from __future__ import annotations

from collections.abc import Iterable

from app.errors import BadInput, FieldError, UnsupportedMedia
from app.networks.importers.onnx.stripped_file import stripped
from app.services.graphs.export_archive import read_archive
from app.services.graphs.source import JSON, ONNX, Source
from app.wire.decoding import decode_plain
from app.wire.graph_form import check_graph

MEDIA_JSON = "application/json"
MEDIA_ZIP = "application/zip"
# Media types of files in any format; ONNX has no registered type.
MEDIA_FILES = (
    "application/octet-stream",
    MEDIA_ZIP,
    "application/x-onnx",
    "application/onnx",
    "application/x-protobuf",
)
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # with and without entries
MAX_EXTENT = 2**31


def read_graph(body: bytes, media: str) -> Source:
    """Return the network of an upload. Raises Malformed, BadInput or UnsupportedMedia."""
    if media not in (MEDIA_JSON, *MEDIA_FILES):
        raise UnsupportedMedia(f"A graph is read as {', '.join((MEDIA_JSON, *MEDIA_FILES))}; this is {media!r}.")
    if media == MEDIA_ZIP or body.startswith(_ZIP):
        return Source(JSON, read_archive(body))
    if media == MEDIA_JSON or body[:64].lstrip()[:1] == b"{":
        return Source(JSON, check_graph(decode_plain(body), loc=()))
    return Source(ONNX, stripped(body))


def read_dims(texts: Iterable[str]) -> dict[str, int]:
    """Return sizes from NAME=SIZE texts. Raises BadInput that names an invalid one."""
    dims: dict[str, int] = {}
    for k, text in enumerate(texts):
        name, separator, size = text.partition("=")
        if not (separator and name and size.isascii() and size.isdigit() and 0 < int(size[:11]) <= MAX_EXTENT):
            message = f"send NAME=SIZE with a size from 1 to {MAX_EXTENT}, not {text[:100]!r}"
            raise BadInput(f"dims: {message}", errors=[FieldError(("dims", k), message)])
        dims[name] = int(size)
    return dims
