"""Tree ensembles as flat arrays: every tree of every row descends one level per step.

The two children of a node are adjacent (`child`, `child + 1`), and a leaf is its own child with an infinite threshold,
so a step is `node = child[node] + (x > threshold[node])` without a branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from app.tables.arrays import Floats, Ints

# Trees times rows per chunk: the working arrays stay within a few MB of cache.
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class FlatTrees:
    """answer = offset + scale x sum over trees of the value of the leaf reached.

    root       int [trees], first node of each tree
    feature    int [nodes], column compared; 0 at leaves
    threshold  float32 [nodes], go right where x > threshold; infinity at leaves
    child      int [nodes], left child, the right one follows it; itself at leaves
    value      float64 [nodes], prediction of a leaf; 0 elsewhere
    depth      steps from a root to the deepest leaf
    """

    kind: ClassVar[str] = "trees"
    root: Ints
    feature: Ints
    threshold: NDArray[np.float32]
    child: Ints
    value: Floats
    depth: int
    scale: float
    offset: float

    @classmethod
    def from_sklearn(cls, trees: Sequence[Any], *, scale: float, offset: float = 0.0) -> Self:
        """Return the ensemble of fitted `sklearn.tree` regressors."""
        parts = [_breadth_first(tree.tree_) for tree in trees]
        sizes = np.array([len(part[0]) for part in parts])
        root = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp)
        return cls(
            root=root,
            feature=np.concatenate([part[0] for part in parts]),
            threshold=np.concatenate([part[1] for part in parts]),
            child=np.concatenate([part[2] + start for part, start in zip(parts, root, strict=True)]),
            value=np.concatenate([part[3] for part in parts]),
            depth=max(int(tree.tree_.max_depth) for tree in trees),
            scale=scale,
            offset=offset,
        )

    def predict(self, features: Floats) -> Floats:
        """Return predictions float64 [n] for features float64 [n, columns]."""
        step = max(_CHUNK // len(self.root), 1)
        # scikit-learn also compares in float32.
        narrow = features.astype(np.float32)
        if len(narrow) <= step:
            return self._descend(narrow)
        return np.concatenate([self._descend(narrow[start : start + step]) for start in range(0, len(narrow), step)])

    def _descend(self, features: NDArray[np.float32]) -> Floats:
        n, columns = features.shape
        flat = features.ravel()
        row = np.repeat(np.arange(n) * columns, len(self.root))
        node = np.tile(self.root, n)
        for _ in range(self.depth):
            right = flat.take(self.feature.take(node) + row) > self.threshold.take(node)
            node = self.child.take(node) + right
        total: Floats = self.value.take(node).reshape(n, len(self.root)).sum(axis=1)
        return self.offset + self.scale * total

    def state(self) -> dict[str, Any]:
        """Return a plain container of arrays, indices in the narrowest type."""
        return {
            "kind": self.kind,
            "root": self.root.astype(np.int32),
            "feature": self.feature.astype(np.int16),
            "threshold": self.threshold,
            "child": self.child.astype(np.int32),
            "value": self.value,
            "depth": self.depth,
            "scale": self.scale,
            "offset": self.offset,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the ensemble of a `state`; indices are widened once, because gathers need machine words."""
        return cls(
            root=state["root"].astype(np.intp),
            feature=state["feature"].astype(np.intp),
            threshold=state["threshold"],
            child=state["child"].astype(np.intp),
            value=state["value"],
            depth=state["depth"],
            scale=state["scale"],
            offset=state["offset"],
        )


def _breadth_first(tree: Any) -> tuple[Ints, NDArray[np.float32], Ints, Floats]:
    """Return feature, threshold, child and value of one scikit-learn tree, with siblings adjacent."""
    order, level = [np.zeros(1, dtype=np.intp)], np.zeros(1, dtype=np.intp)
    while len(level):
        inner = level[tree.children_left[level] >= 0]
        level = np.stack([tree.children_left[inner], tree.children_right[inner]], axis=1).ravel()
        order.append(level)
    old = np.concatenate(order)
    new = np.empty(len(old), dtype=np.intp)
    new[old] = np.arange(len(old))
    left = tree.children_left[old]
    leaf = left < 0
    return (
        np.where(leaf, 0, tree.feature[old]).astype(np.intp),
        np.where(leaf, np.float32(np.inf), _round_down(tree.threshold[old])),
        np.where(leaf, np.arange(len(old)), new[left]),
        np.where(leaf, tree.value[old, 0, 0], 0.0),
    )


def _round_down(threshold: Floats) -> NDArray[np.float32]:
    """Return the largest float32 not above each threshold: comparisons with any float32 x are unchanged."""
    narrow = threshold.astype(np.float32)
    return np.where(narrow > threshold, np.nextafter(narrow, np.float32(-np.inf)), narrow)
