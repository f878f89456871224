"""Array types by what they hold; shapes and units stand where they are used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Halves = NDArray[np.float16]
Ints = NDArray[np.intp]
Shorts = NDArray[np.int16]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
