"""Writers of a graph's tensors, and an execution order of its nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from app.errors import FieldError

Node = Mapping[str, Any]

_INPUT = -1
_SHOWN = 10  # nodes of a cycle in a message
_MANY = 2_000  # largest number of names searched for similar ones


class Order(NamedTuple):
    """Node numbers with writers before readers, or the errors."""

    nodes: Sequence[int]
    errors: list[FieldError]


class Names:
    """The writer of every tensor: a node's number, or -1 for an input of the graph."""

    def __init__(self, inputs: Sequence[Node], nodes: Sequence[Node]) -> None:
        self.writer: dict[str, int] = {}
        self.errors: list[FieldError] = []
        for k, tensor in enumerate(inputs):
            self._take(tensor["name"], _INPUT, ("inputs", k, "name"))
        for k, node in enumerate(nodes):
            name, outputs = node["name"], len(node["outputs"])
            self._take(name, k, ("nodes", k, "name"))
            for j in range(1, outputs):
                self._take(f"{name}:{j}", k, ("nodes", k, "name"))

    def _take(self, name: str, writer: int, place: tuple[str | int, ...]) -> None:
        if name in self.writer:
            self.errors.append(FieldError(place, f"{name[:200]!r} is taken by another input or node"))
        self.writer[name] = writer

    def dangling(self, k: int, node: Node) -> list[FieldError]:
        """Return errors for the first few undefined inputs of node `k`, with similar names for the first of them."""
        nobody = [(j, name) for j, name in enumerate(node.get("inputs", ())) if name not in self.writer][:_SHOWN]
        near = get_close_matches(nobody[0][1][:200], self.writer, n=3) if len(self.writer) <= _MANY else []
        hints = [f"; did you mean: {', '.join(near)}" if near else ""] + [""] * _SHOWN
        return [
            FieldError(
                ("nodes", k, "inputs", j),
                f"node {node['name'][:200]!r} reads {name[:200]!r}, which no input or node of the graph writes{hint}",
            )
            for (j, name), hint in zip(nobody, hints, strict=False)
        ]


def running_order(nodes: Sequence[Node], names: Names) -> Order:
    """Return the given order if it can run, else a stable topological order (Kahn 1962), or an error with a cycle."""
    writer, late = names.writer, False
    errors: list[FieldError] = []
    for k, node in enumerate(nodes):
        for name in node.get("inputs", ()):
            found = writer.get(name)
            if found is None:
                errors += names.dangling(k, node)
                break
            late = late or found >= k
        if len(errors) >= _SHOWN:
            break
    if errors or not late:
        return Order(range(len(nodes)), errors)
    return _sorted(nodes, writer)


def _sorted(nodes: Sequence[Node], writer: Mapping[str, int]) -> Order:
    readers: list[list[int]] = [[] for _ in nodes]
    waits = [0] * len(nodes)
    for k, node in enumerate(nodes):
        for name in node.get("inputs", ()):
            if writer[name] != _INPUT:
                readers[writer[name]].append(k)
                waits[k] += 1
    ready = deque(k for k, count in enumerate(waits) if not count)
    order: list[int] = []
    while ready:
        order.append(ready.popleft())
        for k in readers[order[-1]]:
            waits[k] -= 1
            if not waits[k]:
                ready.append(k)
    if len(order) < len(nodes):
        return Order(order, [_cycle(nodes, writer, {k for k, count in enumerate(waits) if count})])
    return Order(order, [])


def _cycle(nodes: Sequence[Node], writer: Mapping[str, int], stuck: set[int]) -> FieldError:
    """Return an error with one cycle among the blocked nodes, found by following edges backwards."""
    at, place = min(stuck), dict[int, int]()
    path: list[int] = []
    while at not in place:
        place[at] = len(path)
        path.append(at)
        at = next(writer[name] for name in nodes[at]["inputs"] if writer[name] in stuck)
    cycle = path[place[at] :][::-1]
    first = cycle.index(min(cycle))
    cycle = cycle[first:] + cycle[:first]
    shown = [str(nodes[k]["name"])[:100] for k in cycle[:_SHOWN]]
    more = f" and {len(cycle) - _SHOWN} more" if len(cycle) > _SHOWN else f" -> {shown[0]}"
    return FieldError(("nodes", cycle[0], "inputs"), f"the nodes are a cycle: {' -> '.join(shown)}{more}")
