"""Relation of measured launches to the queried launch, which selects the interval group."""

from __future__ import annotations

import numpy as np

from app.bands.groups import EXACT, NO_EVIDENCE, OTHER_GPU, OTHER_GPU_AND_SIZE, RELATED, SAME_GPU
from app.ops.kernel import FIELD_INDEX
from app.tables.arrays import Ints
from app.tables.measurements import Evidence
from app.tables.ops import OpTable

_LAUNCH = FIELD_INDEX["launch"]
# Relation by the attributes that a row shares with its query: 4 for the kernel, 2 for the launch, 1 for the GPU.
RELATION = np.array([RELATED] * 4 + [OTHER_GPU_AND_SIZE, SAME_GPU, OTHER_GPU, EXACT])


def relations(ops: OpTable, i: Ints, j: Ints, evidence: Evidence) -> Ints:
    """Return the relation of each evidence row to its query, int [m], code into GROUPS.

    Query q is operator row `i[q]` of `ops` on GPU row `j[q]`.
    """
    rows, query = evidence.rows, i[evidence.query]
    kernel = rows.ops.label == ops.label[query]
    launch = rows.ops.dims[_LAUNCH] == ops.dims[_LAUNCH, query]
    relation: Ints = RELATION[4 * kernel + 2 * launch + (rows.gpu == j[evidence.query])]
    return relation


def best_group(relation: Ints, query: Ints, n: int) -> Ints:
    """Return the strongest relation of every query, int [n]; NO_EVIDENCE for a query without rows."""
    if len(query) == n == 1:
        return relation
    group = np.full(n, NO_EVIDENCE)
    np.minimum.at(group, query, relation)
    return group
