"""torch.export archives (.pt2): the JSON program inside, and nothing else of them.

The file is untrusted. Weights, constants and examples, some of them pickles, are never opened; no size that the file
states is believed.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

from app.errors import BadInput, FieldError, Malformed, TooLarge
from app.graphs.importers.aten import graph
from app.services.graphs.export_program import decoded, records
from app.wire.graph_form import check_graph

MAX_ENTRIES = 20_000  # one for each weight
MAX_PROGRAM_BYTES = 64 * 2**20  # of JSON, unpacked
_ENTRY = b"PK\x01\x02"
# Where PyTorch writes programs, up to 2.7 and since, each perhaps in a folder that has the archive's name.
_PROGRAM = re.compile(r"(?:([^/]+)/)?(?:serialized_exported_program|models/[^/]+)\.json")
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what can be unpacked up to a limit
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError, OverflowError)


def read_archive(body: bytes) -> Mapping[str, Any]:
    """The JSON graph of an archive; Malformed, TooLarge or BadInput name the place in it that cannot be."""
    name, place, text = _program(body)
    found = records(decoded(text, place), place)
    try:
        return check_graph(graph(name, found), loc=(place,))
    except ValueError as error:
        raise BadInput(f"{place}: {error}", errors=[FieldError((place,), str(error))]) from None


def _program(body: bytes) -> tuple[str, str, bytes]:
    """What the network is called, where its program stands, and the program's JSON."""
    if body.count(_ENTRY) > MAX_ENTRIES:  # counted, because a reader takes all that there are
        raise TooLarge(f"The archive has more than {MAX_ENTRIES:,} entries.")
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            entry = _found(archive)
            with archive.open(entry) as file:
                text = file.read(MAX_PROGRAM_BYTES + 1)
    except _BROKEN as error:
        raise Malformed(
            f"The archive is cut off, or no zip file: {str(error)[:200] or type(error).__name__}."
        ) from None
    place = entry.filename
    if len(text) > MAX_PROGRAM_BYTES:
        raise TooLarge(f"{place[:200]}: more than {MAX_PROGRAM_BYTES:,} bytes, unpacked.")
    if len(text) != entry.file_size:
        raise Malformed(f"{place[:200]}: {len(text):,} bytes, where the archive says {entry.file_size:,}.")
    match = _PROGRAM.fullmatch(place)
    return (match and match[1]) or "exported", place, text


def _found(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """The one program."""
    programs = [
        entry for entry in archive.infolist() if len(entry.filename) < 500 and _PROGRAM.fullmatch(entry.filename)
    ]
    if len(programs) != 1:
        held = ", ".join(entry.filename for entry in programs[:5]) or "nothing of the kind"
        wanted = "one program, models/<name>.json or serialized_exported_program.json"
        raise BadInput(f"An archive of torch.export holds {wanted}; this one has {held[:500]}.")
    if programs[0].compress_type not in _PACKED or programs[0].flag_bits & 1:
        raise Malformed(f"{programs[0].filename}: encrypted, or packed otherwise than by deflate.")
    return programs[0]
