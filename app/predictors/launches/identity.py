"""Identity of launches across GPUs."""

from __future__ import annotations

import numpy as np

from app.ops.kernel import FIELD_INDEX, IDENTITY_FIELDS
from app.tables.arrays import Ints
from app.tables.ops import OpTable

_IDENTITY = np.array([FIELD_INDEX[name] for name in IDENTITY_FIELDS])


def launch_ids(ops: OpTable) -> Ints:
    """Return a number per row, int [rows], equal for rows of the same launch; an absent figure counts as 0."""
    codes = [np.unique(column, return_inverse=True)[1] for column in (ops.label, ops.kind, ops.dtype)]
    key = np.vstack([codes, np.nan_to_num(ops.dims[_IDENTITY])])
    numbers: Ints = np.unique(key, axis=1, return_inverse=True)[1].ravel()
    return numbers
