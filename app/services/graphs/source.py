"""A network as it came, from which a graph with all sizes bound is made: whatever its form, one way to use it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from app.graphs.importers import onnx_file
from app.graphs.importers.json_graph import DEFAULT_DTYPE
from app.graphs.importers.tensors import free_dims
from app.wire.graph_form import canonical_json

JSON, ONNX = "json", "onnx"


@dataclass(frozen=True, slots=True)
class Source:
    """`body` in plain containers is a JSON graph, or what is left of an ONNX file without its weights.

    `id` is empty until it is stored.
    """

    form: str
    body: Mapping[str, Any]
    id: str = ""

    @property
    def name(self) -> str:
        """What the network calls itself."""
        return str(self.body.get("name") or "graph")

    @property
    def dtype(self) -> str:
        """The format that its tensors have where they name none, and that a request's replaces."""
        return str(self.body.get("dtype") or DEFAULT_DTYPE)

    def graph(self, sizes: Mapping[str, int]) -> Mapping[str, Any]:
        """In the project's JSON form; of an ONNX file, with every dimension bound by `sizes`."""
        return onnx_file.graph(self.body, sizes) if self.form == ONNX else self.body

    def free_dims(self) -> list[str]:
        """Named dimensions of its tensors."""
        tensors = list(self.body.get("inputs", ()))
        if self.form == JSON:
            tensors += [output for node in self.body["nodes"] for output in node["outputs"]]
        return free_dims([tensor["shape"] for tensor in tensors])

    def canonical(self) -> bytes:
        """The same bytes for what says the same."""
        return canonical_json(self.body) if self.form == JSON else msgspec.json.encode(self.body, order="sorted")

    def named(self) -> tuple[str, bytes]:
        """The id, a SHA-256 of the form and the canonical JSON, and that JSON."""
        text = self.canonical()
        return hashlib.sha256(self.form.encode() + b"\n" + text).hexdigest(), text


def stored(form: str, text: str, graph_id: str) -> Source:
    """A network from the database."""
    return Source(form, msgspec.json.decode(text), graph_id)
