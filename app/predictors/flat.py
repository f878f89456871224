"""Fitted estimators as flat arrays, which predict without scikit-learn: trees, regressors, a perceptron, neighbours.

Every tree of every row descends one level per step. The two children of a node are adjacent (`child`, `child + 1`), and
a leaf is its own child with an infinite threshold, so a step is `node = child[node] + (x > threshold[node])` without a
branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from app.runtime.compiled import compiled, compiled_per_row
from app.tables.arrays import Floats, Ints

# Trees times rows per chunk: the working arrays stay within a few MB of cache.
_CHUNK = 1 << 18


class FlatModel:
    """A fitted regressor, whose state is its kind and its fields."""

    kind: ClassVar[str]

    def predict(self, features: Floats) -> Floats:
        """Return predictions, float64 [n], for features float64 [n, columns]; a row's does not depend on other rows."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return a plain container of arrays."""
        return {"kind": self.kind, **{name: getattr(self, name) for name in self.__annotations__ if name != "kind"}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the model of a `state`."""
        of_fields: Any = cls
        model: Self = of_fields(**{name: value for name, value in state.items() if name != "kind"})
        return model


@dataclass(frozen=True)
class FlatTrees(FlatModel):
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
        narrow = {"root": np.int32, "feature": np.int16, "child": np.int32}
        return super().state() | {name: getattr(self, name).astype(dtype) for name, dtype in narrow.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the ensemble of a `state`; indices are widened once, because gathers need machine words."""
        return super().from_state(
            {**state, **{name: state[name].astype(np.intp) for name in ("root", "feature", "child")}}
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


# Distances per chunk: 4 MB.
_DISTANCES = 1 << 19


@dataclass(frozen=True, slots=True)
class Affine(FlatModel):
    """answer = features . coefficients + intercept."""

    kind: ClassVar[str] = "affine"
    coefficients: Floats
    intercept: float

    def predict(self, features: Floats) -> Floats:
        """Return predictions; sums by row, since the rounding of a matrix product depends on the number of rows."""
        total: Floats = (features * self.coefficients).sum(axis=1)
        return total + self.intercept


@dataclass(frozen=True, slots=True)
class RadialBasis(FlatModel):
    """answer = intercept + sum over centres of weight exp(-gamma |x - centre|^2).

    centres  float64 [centres, columns];  weights  float64 [centres]
    """

    kind: ClassVar[str] = "radial_basis"
    centres: Floats
    weights: Floats
    gamma: float
    intercept: float

    def predict(self, features: Floats) -> Floats:
        """Return predictions, in chunks of rows."""
        from scipy.spatial.distance import cdist  # noqa: PLC0415  (workers that do not serve it spare its memory)

        step = max(_DISTANCES // max(len(self.centres), 1), 1)
        answer = np.empty(len(features))
        for start in range(0, len(features), step):
            rows = slice(start, start + step)
            kernel = np.exp(-self.gamma * cdist(features[rows], self.centres, "sqeuclidean"))
            answer[rows] = (kernel * self.weights).sum(axis=1) + self.intercept
        return answer


@dataclass(frozen=True, slots=True)
class Neighbours(FlatModel):
    """answer = mean over the `k` nearest points by Euclidean distance.

    points  float64 [points, columns];  values  float64 [points]
    """

    kind: ClassVar[str] = "neighbours"
    points: Floats
    values: Floats
    k: int

    def predict(self, features: Floats) -> Floats:
        """Return predictions, in chunks of rows; a tie at the k-th distance is broken by position."""
        from scipy.spatial.distance import cdist  # noqa: PLC0415  (workers that do not serve it spare its memory)

        step = max(_DISTANCES // len(self.points), 1)
        answer = np.empty(len(features))
        for start in range(0, len(features), step):
            rows = slice(start, start + step)
            distance = cdist(features[rows], self.points, "sqeuclidean")
            nearest = np.argsort(distance, axis=1, kind="stable")[:, : self.k]
            answer[rows] = self.values[nearest].mean(axis=1)
        return answer


FLAT_MODELS: tuple[type[FlatModel], ...] = (Affine, RadialBasis, Neighbours, FlatTrees)


def flat_model(state: Mapping[str, Any]) -> FlatModel:
    """Return the model of a `state`, by its kind."""
    return next(model for model in FLAT_MODELS if model.kind == state["kind"]).from_state(state)


@dataclass(frozen=True, eq=False)
class FlatPerceptron:
    """answer = scale x network((features - centre) / spread) + offset, with ReLU between the layers.

    centre, spread   float64 [columns]
    weights, biases  of each layer, float32 [in, out] and [out]
    """

    centre: Floats
    spread: Floats
    weights: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]
    scale: float
    offset: float

    @classmethod
    def fitted(cls, features: Floats, target: Floats, *, layers: tuple[int, ...], rounds: int) -> Self:
        """Return a perceptron fitted by least squares to target float64 [n]: Adam, seed 0, `rounds` epochs.

        features  float64 [n, columns]
        """
        import warnings  # noqa: PLC0415  (as scikit-learn: serving never fits)

        from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415
        from sklearn.neural_network import MLPRegressor  # noqa: PLC0415

        centre, spread = features.mean(axis=0), features.std(axis=0)
        spread = np.where(spread > 0, spread, 1.0)
        offset, scale = float(target.mean()), float(target.std()) or 1.0
        settings = {"learning_rate_init": 3e-3, "max_iter": rounds, "n_iter_no_change": rounds, "random_state": 0}
        network = MLPRegressor(hidden_layer_sizes=layers, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit((features - centre) / spread, (target - offset) / scale)
        weights = tuple(layer.astype(np.float32) for layer in network.coefs_)
        return cls(centre, spread, weights, tuple(b.astype(np.float32) for b in network.intercepts_), scale, offset)

    def predict(self, features: Floats) -> Floats:
        """Return predictions float64 [n] for features float64 [n, columns]."""
        layer = (features - self.centre) / self.spread
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            layer = layer @ weight.astype(np.float64) + bias
            if k < len(self.weights) - 1:
                np.maximum(layer, 0.0, out=layer)
        return self.scale * layer[:, 0] + self.offset

    def state(self) -> dict[str, Any]:
        """Return a plain container of arrays."""
        return vars(self) | {"weights": list(self.weights), "biases": list(self.biases)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the model of a `state`."""
        return cls(**{**state, "weights": tuple(state["weights"]), "biases": tuple(state["biases"])})


Points = NDArray[np.float32]


@compiled_per_row
def nearest(point: Points, shape: Points, first: int, past: int) -> int:
    """Return the row of `point[first:past]` nearest to `shape` [axes], the first of equals; -1 if there are none."""
    best, least = -1, np.inf
    for k in range(first, past):
        distance = 0.0
        for axis in range(shape.shape[0]):
            difference = point[k, axis] - shape[axis]
            distance += difference * difference
        if distance < least:
            best, least = k, distance
    return best


@compiled
def nearest_of(point: Points, shape: Points, first: Ints, past: Ints, row: Ints) -> None:
    """Fill `row` [n] with `nearest` to `shape[q]` [n, axes] among `point[first[q]:past[q]]` for every q."""
    for q in range(len(row)):
        row[q] = nearest(point, shape[q], first[q], past[q])
