"""Which GPU a cloud or cluster means: by a usual name (`A100`), or a resource's or label's type (`v100_32gb`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from app.coefficients import Coefficients
from app.config import SEED_DATA
from app.errors import BadInput, NotFound
from app.tables.catalog import Catalog
from app.tables.names import normalise

# A name with one memory is that product; of several, the nearest within this share.
_NEAR = Coefficients("names").number("nearest_memory")


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


# Labels of nodes that name a GPU, in order of precedence: ours and device plugins'; Google's and Amazon's.
GPU_LABELS = ("gpucast/gpu", "nvidia.com/gpu.product", "amd.com/gpu.product-name")
CLOUD_LABELS = ("cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name")
# A slice of a GPU: 3g.20gb.
_SLICE = re.compile(r"\d+g\.\d+gb", re.IGNORECASE)
_VENDOR = re.compile(r"^(?:(?:nvidia|amd|tesla|quadro|geforce|hgx|dgx)[_\- ]*)+", re.IGNORECASE)
# A type with its memory: a100_80gb, v100-32g, a100-40.
_MEMORY = re.compile(r"^(.*?[a-z0-9])[_\-](\d{2,3})(?:gb?)?$", re.IGNORECASE)
# What a product's name begins with that clusters leave out.
_LEFT_OUT = ("", "Tesla ", "RTX ", "GeForce ", "Quadro ", "AMD Instinct ")


class GpuType(NamedTuple):
    """The GPU of a type; `note` says which of several products was chosen, empty if there is one."""

    gpu: str
    note: str = ""


def gpu_of_type(word: str, names: Mapping[str, str], catalog: Catalog, kind: str = "gpu:") -> GpuType:
    """Return the GPU of a type; `names` are the user's, by type.

    A family's name (a100) is its usual product, and of two memories the smaller: what is planned then also fits. `kind`
    stands before the type in messages. Raises BadInput for a name that is no GPU, and NotFound for an unknown type.
    """
    if word in names:
        try:
            return GpuType(catalog.resolve(names[word]).id)
        except NotFound as error:
            raise BadInput(f"--name {word}={names[word]}: {error.detail}") from None
    if _SLICE.search(word):
        raise NotFound(f"{kind}{word} is a slice (MIG) of a GPU, and slices are not predicted.")
    bare = _VENDOR.sub("", word)
    for left_out in _LEFT_OUT:
        if spec := catalog.find(word if not left_out else left_out + bare):
            return GpuType(spec.id)
    parts = _MEMORY.match(bare)
    family, memory_gb = (parts[1], float(parts[2])) if parts else (bare, None)
    gpu = usual_gpu(family, memory_gb)
    if gpu is None:
        near = catalog.near(word)
        raise NotFound(
            f"{kind}{word} is no known GPU. Name it with --name {word}=GPU{f', such as {near[0]}' if near else ''}."
        )
    others = [name for name in catalog.near(family) if normalise(family) in normalise(name) and name != gpu]
    note = f"{kind}{word} is planned as {gpu}, the usual product; --name {word}=GPU names another: {', '.join(others)}."
    return GpuType(gpu, note if others else "")
