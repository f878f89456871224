"""Read torch.export archives (.pt2): the JSON program inside, and nothing else.

The file is untrusted. Weights, constants and examples, some of them pickles, are never opened, and sizes stated in the
file are not trusted.
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
from app.networks.importers.aten import graph
from app.services.graphs.export_program import decode_program, to_records
from app.wire.graph_form import check_graph

MAX_ENTRIES = 20_000  # one for each weight
MAX_PROGRAM_BYTES = 64 * 2**20  # of JSON, unpacked
_ENTRY = b"PK\x01\x02"
# Paths of the program, in PyTorch up to 2.7 and later, optionally in a folder named like the archive.
_PROGRAM = re.compile(r"(?:([^/]+)/)?(?:serialized_exported_program|models/[^/]+)\.json")
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # methods that can be unpacked up to a limit
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError, OverflowError)


def read_archive(body: bytes) -> Mapping[str, Any]:
    """Return the JSON graph of an archive. Raises Malformed, TooLarge or BadInput that name the place in it."""
    name, place, text = _program(body)
    calls = to_records(decode_program(text, place), place)
    try:
        return check_graph(graph(name, calls), loc=(place,))
    except ValueError as error:
        raise BadInput(f"{place}: {error}", errors=[FieldError((place,), str(error))]) from None


def _program(body: bytes) -> tuple[str, str, bytes]:
    """Return the network's name, the path of its program, and the program's JSON."""
    if body.count(_ENTRY) > MAX_ENTRIES:  # counted first, because ZipFile reads all entries
        raise TooLarge(f"The archive has more than {MAX_ENTRIES:,} entries.")
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            entry = _find_program(archive)
            with archive.open(entry) as file:
                text = file.read(MAX_PROGRAM_BYTES + 1)
    except _BROKEN as error:
        raise Malformed(
            f"The archive is truncated, or not a zip file: {str(error)[:200] or type(error).__name__}."
        ) from None
    place = entry.filename
    if len(text) > MAX_PROGRAM_BYTES:
        raise TooLarge(f"{place[:200]}: more than {MAX_PROGRAM_BYTES:,} bytes, unpacked.")
    if len(text) != entry.file_size:
        raise Malformed(f"{place[:200]}: {len(text):,} bytes, but the archive states {entry.file_size:,}.")
    match = _PROGRAM.fullmatch(place)
    return (match and match[1]) or "exported", place, text


def _find_program(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """Return the entry of the program."""
    programs = [
        entry for entry in archive.infolist() if len(entry.filename) < 500 and _PROGRAM.fullmatch(entry.filename)
    ]
    if len(programs) != 1:
        held = ", ".join(entry.filename for entry in programs[:5]) or "none"
        expected = "one program, models/<name>.json or serialized_exported_program.json"
        raise BadInput(f"A torch.export archive has {expected}; this one has {held[:500]}.")
    if programs[0].compress_type not in _PACKED or programs[0].flag_bits & 1:
        raise Malformed(f"{programs[0].filename}: encrypted, or compressed by another method than deflate.")
    return programs[0]
