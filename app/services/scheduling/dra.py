"""Dynamic resource allocation of Kubernetes: a device selector of the GPUs that meet a deadline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from app.errors import BadInput
from app.tables.gpus import GpuSpec

DRIVER = "gpu.nvidia.com"
# Longest expression, bytes: CELDeviceSelector of resource.k8s.io/v1.
_MOST = 10 * 1024
# How NVIDIA's driver library names products.
_BRANDS = ("NVIDIA ", "Tesla ", "Quadro ", "TITAN ", "GeForce ", "GRID ")

Kind: TypeAlias = Literal["ResourceClaimTemplate", "ResourceClaim", "DeviceClass"]


def product_names(spec: GpuSpec) -> list[str]:
    """Return the names under which NVIDIA's driver may report a GPU; none for other vendors."""
    return [name for name in dict.fromkeys((spec.name, *spec.aliases)) if name.startswith(_BRANDS)]


def selector(specs: Sequence[GpuSpec]) -> str:
    """Return the expression in CEL that is true of these GPUs, not of slices. Raises BadInput if it is too long."""
    names = [name for spec in specs for name in product_names(spec)]
    if not names:
        raise BadInput(f"None of these GPUs is one that the driver {DRIVER} knows.")
    attributes = f"device.attributes[{json.dumps(DRIVER)}]"
    known = f'device.driver == {json.dumps(DRIVER)} && {attributes}.type == "gpu"'
    expression = f"{known} && {attributes}.productName in {json.dumps(names)}"
    if len(expression) > _MOST:
        raise BadInput(
            f"The selector of {len(specs)} GPUs has {len(expression):,} bytes of {_MOST:,}: name fewer GPUs."
        )
    return expression


def manifest(kind: Kind, name: str, expression: str, count: int) -> dict[str, Any]:
    """Return an object of resource.k8s.io/v1 that selects `count` devices (a class: any number)."""
    selectors = [{"cel": {"expression": expression}}]
    exactly = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": count, "selectors": selectors}
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    spec: dict[Kind, dict[str, Any]] = {
        "DeviceClass": {"selectors": selectors},
        "ResourceClaim": claim,
        "ResourceClaimTemplate": {"spec": claim},
    }
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec[kind]}
