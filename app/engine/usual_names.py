"""Names under which clouds and clusters list GPUs, without the product: `A100`, `V100`."""

from __future__ import annotations

import json
import re
from functools import cache

from app.config import SEED_DATA

# A name with one memory is that product; of several, the nearest within this share.
_NEAR = 0.15


@cache
def _names() -> dict[str, dict[str, str]]:
    names: dict[str, dict[str, str]] = json.loads((SEED_DATA / "cloud_gpu_names.json").read_text("utf-8"))["names"]
    return names


def usual_gpu(name: str, memory_gb: float | None) -> str | None:
    """Return the GPU id that clouds rent under a name, by its memory where several have it; None if unknown.

    Without a memory, the product with the least.
    """
    products = _names().get(re.sub(r"[^a-z0-9]", "", name.lower()))
    if products is None:
        return None
    if memory_gb is None or len(products) == 1:
        return products[min(products, key=float)]
    nearest = min(products, key=lambda size: abs(float(size) - memory_gb))
    return products[nearest] if abs(float(nearest) / memory_gb - 1.0) < _NEAR else None
