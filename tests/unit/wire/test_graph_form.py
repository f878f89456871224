"""Graphs are checked and encoded in parts, with the results of the whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.errors import MAX_ERRORS, BadInput
from app.wire.decoding import convert
from app.wire.graph_form import GRAPH_EXAMPLE, MAX_NODES, Graph, canonical_json, check_graph, graph_json


def graph(n: int) -> dict[str, Any]:
    nodes = [{"op": "relu", "name": f"n{k}", "inputs": [], "outputs": [{"shape": [1 + k, 8]}]} for k in range(n)]
    return {"name": "g", "inputs": [{"name": "x", "shape": [1, 8]}], "nodes": nodes}


@pytest.mark.parametrize("n", [1, 19, 20, 21, 1000])
def test_parts_have_the_json_of_the_graph(n: int) -> None:
    given = graph(n)
    assert check_graph(given) is given
    assert canonical_json(given) == msgspec.json.encode(msgspec.convert(given, Graph), order="sorted")
    assert graph_json(given) == msgspec.json.encode(given)


def wrong_nodes(*places: int) -> dict[str, Any]:
    wrong = graph(100)
    for k in places:
        wrong["nodes"][k] |= {"bad": 1, "outputs": []}
    return wrong


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {"name": "without nodes"},
        graph(0),
        graph(1) | {"nodes": graph(1)["nodes"] * (MAX_NODES + 1)},
        graph(100) | {"dtype": "x", "unknown": 1},
        wrong_nodes(0, 19, 20, 99),
        wrong_nodes(*range(100)),
    ],
    ids=["list", "no nodes", "empty", "too many", "of the graph", "of some nodes", "of all nodes"],
)
def test_parts_have_the_errors_of_the_graph(wrong: Any) -> None:
    with pytest.raises(BadInput) as expected:
        convert(wrong, Graph, example=GRAPH_EXAMPLE, loc=("graph",))
    with pytest.raises(BadInput) as error:
        check_graph(wrong, loc=("graph",))
    assert error.value.errors == expected.value.errors
    assert error.value.detail == expected.value.detail
    assert len(error.value.errors) <= MAX_ERRORS
