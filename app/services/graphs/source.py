"""The source of a network in any format, and its conversion to a graph with all sizes bound."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from app.networks.importers.json_graph import DEFAULT_DTYPE
from app.networks.importers.onnx.walk import graph as onnx_graph
from app.networks.importers.tensors import free_dims
from app.wire.graph_form import canonical_json
from app.wire.json_text import decode_in_parts

JSON, ONNX = "json", "onnx"


@dataclass(frozen=True, slots=True)
class Source:
    """`body` in plain containers: a JSON graph, or an ONNX file without its weights.

    `id` is empty until it is stored.
    """

    form: str
    body: Mapping[str, Any]
    id: str = ""

    @property
    def name(self) -> str:
        """The network's own name."""
        return str(self.body.get("name") or "graph")

    @property
    def dtype(self) -> str:
        """Default format of its tensors, which a request can override."""
        return str(self.body.get("dtype") or DEFAULT_DTYPE)

    def graph(self, sizes: Mapping[str, int]) -> Mapping[str, Any]:
        """Return the project's JSON graph; of an ONNX file, with every dimension bound by `sizes`."""
        return onnx_graph(self.body, sizes) if self.form == ONNX else self.body

    def free_dims(self) -> list[str]:
        """Return the named dimensions of its tensors."""
        tensors = list(self.body.get("inputs", ()))
        if self.form == JSON:
            tensors += [output for node in self.body["nodes"] for output in node["outputs"]]
        return free_dims([tensor["shape"] for tensor in tensors])

    def canonical(self) -> bytes:
        """Return canonical bytes: equal for equal content."""
        return canonical_json(self.body) if self.form == JSON else msgspec.json.encode(self.body, order="sorted")

    def identity(self) -> tuple[str, bytes]:
        """Return the id, a SHA-256 of the format and the canonical JSON, and that JSON."""
        text = self.canonical()
        return hashlib.sha256(self.form.encode() + b"\n" + text).hexdigest(), text


def from_database(form: str, text: str, graph_id: str) -> Source:
    """Return a network from its database row."""
    return Source(form, decode_in_parts(text.encode()), graph_id)
