"""Choice of a library's kernel for a shape, by a small decision tree as flat arrays.

PM2Lat queries cublasLtMatmulAlgoGetHeuristic on the device (section III.B); without a device, the measured kernels are
learned from their shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from app.ops.figures import Products
from app.predictors.flat.trees import FlatTrees
from app.tables.arrays import Floats, Ints

# Shapes per leaf at least, as one of so many, between two ends: the upper one was chosen on a validation part of the
# FP32 training rows among 1, 3, 10, 20 and 40; a K sweep has a few depths of each kernel.
LEAF_SHARE, LEAST_LEAF, MOST_LEAF = 40, 2, 10
# Tiles whose waves and fill are features.
_TILES = ((128, 128), (64, 64), (128, 64), (32, 128), (128, 32))
PRODUCT_FEATURES = (
    *("batch", "m", "n", "k", "outputs", "outputs*k", "m/n"),
    *(f"{what} of {rows}x{width}" for rows, width in _TILES for what in ("log2(waves)", "fullness", "fill")),
)


def product_features(products: Products, sms: Floats | float) -> Floats:
    """Return the features of the choice, float64 [n, 22]: log sizes, aspect, and waves and fill at common tiles."""
    batch, m, n, k = (np.maximum(size, 1e-9) for size in products)
    outputs = batch * m * n
    columns = [*np.log2([batch, m, n, k, outputs, outputs * k, m / n])]
    for rows, width in _TILES:
        blocks = batch * np.ceil(m / rows) * np.ceil(n / width)
        waves = blocks / sms
        columns += [np.log2(waves), waves / np.ceil(waves), outputs / (blocks * rows * width)]
    return np.stack(columns, axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class KernelChooser:
    """Maps features float64 [n, columns] to kernel codes int [n]; `tree` is None if there is only one kernel."""

    tree: FlatTrees | None

    @classmethod
    def fitted(cls, features: Floats, kernel: Ints) -> Self:
        """Return a chooser fitted to shapes and their kernels, codes from 0."""
        from sklearn.tree import DecisionTreeClassifier  # noqa: PLC0415  (serving never fits)

        if len(np.unique(kernel)) < 2:
            return cls(None)
        least = int(np.clip(len(kernel) // LEAF_SHARE, LEAST_LEAF, MOST_LEAF))
        grown = DecisionTreeClassifier(min_samples_leaf=least, random_state=0).fit(features, kernel)
        return cls(FlatTrees.from_sklearn([_Winner(grown)], scale=1.0))

    def choose(self, features: Floats) -> Ints:
        """Return the kernel of every shape."""
        if self.tree is None:
            return np.zeros(len(features), dtype=np.intp)
        return self.tree.predict(features).astype(np.intp)

    def state(self) -> Any:
        """Return a plain container of arrays."""
        if self.tree is None:
            return None
        state = self.tree.state()
        return state | {"value": state["value"].astype(np.int16)}

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Return the object of a `state`."""
        if state is None:
            return cls(None)
        return cls(FlatTrees.from_state(state | {"value": state["value"].astype(np.float64)}))


class _Winner:
    """A fitted classifier as a regressor whose leaves hold the code of their most frequent class."""

    def __init__(self, classifier: Any) -> None:
        self.tree_ = _WinnerTree(classifier.tree_, classifier.classes_)


class _WinnerTree:
    def __init__(self, tree: Any, classes: Ints) -> None:
        self.children_left, self.feature, self.threshold = tree.children_left, tree.feature, tree.threshold
        self.children_right, self.max_depth = tree.children_right, tree.max_depth
        self.value = classes[tree.value[:, 0].argmax(axis=1)][:, None, None].astype(np.float64)
