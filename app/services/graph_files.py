"""Bodies of POST /graphs: which form they are in, by what they begin with; and sizes of dimensions from words."""

from __future__ import annotations

from collections.abc import Iterable

from app.errors import BadInput, FieldError, UnsupportedMedia
from app.services.decoding import plain
from app.services.graph_form import checked
from app.services.graph_source import JSON, Source

MEDIA_JSON = "application/json"
MAX_EXTENT = 2**31


def read_graph(body: bytes, media: str) -> Source:
    """A network from the body of an upload; Malformed, BadInput or UnsupportedMedia say what is wrong with it."""
    if media != MEDIA_JSON:
        raise UnsupportedMedia(f"A graph is read as {MEDIA_JSON}; this is {media!r}.")
    return Source(JSON, checked(plain(body), loc=()))


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
