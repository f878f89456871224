"""What a family builds of a row: tensors, and the call that computes the operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from app.measure.device import Device, torch_dtypes

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Made:
    """An operator ready to run: `forward` computes it, `learned` are the tensors that backward finds gradients of."""

    forward: Callable[[], Any]
    learned: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Maker:
    """Random tensors on one device in one format: zeros would draw less power, and so run faster, than data does."""

    device: Device
    dtype: Any

    @classmethod
    def of(cls, device: Device, dtype: str) -> Maker:
        """That of an API's dtype; tf32 is fp32 whose products may be rounded."""
        is_tf32 = dtype == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_tf32
        return cls(device, torch_dtypes()[dtype])

    def normal(self, *shape: int) -> Any:
        """Normal numbers."""
        return torch.randn(shape, dtype=self.dtype, device=self.device.handle)

    def positive(self, *shape: int) -> Any:
        """Numbers between 0.5 and 1.5."""
        return torch.rand(shape, dtype=self.dtype, device=self.device.handle) + 0.5

    def whole(self, below: int, *shape: int) -> Any:
        """64-bit numbers from 0."""
        return torch.randint(below, shape, device=self.device.handle)


Family = Callable[[Maker, Row], Made]


def backward(made: Made) -> Callable[[], Any]:
    """The call that finds the gradients of a forward pass done once, before."""
    for tensor in made.learned:
        tensor.requires_grad_()
    result = made.forward()
    gradient = torch.randn_like(result)
    return lambda: torch.autograd.grad(result, made.learned, gradient, retain_graph=True)
