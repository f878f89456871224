"""Importer of ONNX files, without a library: files are untrusted, and only shapes are needed.

`stripped` keeps what shapes depend on; `graph` binds the dimensions and writes the JSON graph (onnx.walk).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.graphs.importers.onnx.stripped_file import model
from app.graphs.importers.onnx.walk import Message, Walk


def read(data: bytes, dims: Mapping[str, int]) -> dict[str, Any]:
    """Return the JSON graph of a file; `dims` gives the sizes of its named dimensions.

    Raises Malformed for an invalid file, and BadInput for inconsistent shapes and dimensions without a size, each with
    the place in the file.
    """
    return graph(stripped(data), dims)


def stripped(data: bytes) -> dict[str, Any]:
    """Return a file without its weights (app.graphs.importers.onnx.stripped_file)."""
    return model(data)


def graph(file: Message, dims: Mapping[str, int]) -> dict[str, Any]:
    """Return the JSON graph of a stripped file."""
    return Walk(file, dims).graph()
