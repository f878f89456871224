"""Functions that an ONNX file defines: operators of its own, as graphs with attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.graphs.importers.onnx.call import Call

Message = Mapping[str, Any]


def body_of(function: Message, call: Call) -> Message:
    """Return a function's nodes for one call: with the call's attributes, and without the inputs that it leaves out."""
    attributes = {**function["defaults"], **call.attributes}
    given = [value is not None for value in call.inputs]
    omitted = {name for k, name in enumerate(function["inputs"]) if k >= len(given) or not given[k]}
    return {"weights": {}, "nodes": [_bound(node, attributes, omitted) for node in function["nodes"]]}


def _bound(node: Message, attributes: Message, omitted: set[str]) -> Message:
    references = node.get("references", {})
    known = {name: attributes[source] for name, source in references.items() if attributes.get(source) is not None}
    own = {name: _bound_graph(value, attributes, omitted) for name, value in node["attributes"].items()}
    inputs = ["" if name in omitted else name for name in node["inputs"]]
    return {**node, "inputs": inputs, "attributes": own | known}


def _bound_graph(value: Any, attributes: Message, omitted: set[str]) -> Any:
    """Return a graph within a function likewise; any other attribute as it is."""
    if isinstance(value, dict) and "nodes" in value:
        return {**value, "nodes": [_bound(node, attributes, omitted) for node in value["nodes"]]}
    return value
