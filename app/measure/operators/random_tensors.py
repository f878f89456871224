"""Random tensors with which operators are built on the device (app.ops.suite.Maker), and backward passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.attention.bias  # which `torch` alone does not bring

from app.measure.device import Device, torch_dtypes
from app.ops.suite import Made


@dataclass(frozen=True, slots=True)
class Tensors:
    """Random tensors on one device in one format: zeros would draw less power, and run faster, than real data."""

    device: torch.device
    dtype: Any
    torch: Any = torch

    @classmethod
    def of(cls, device: Device, dtype: str) -> Tensors:
        """Return the tensors of an API dtype; tf32 is fp32 with rounded products."""
        is_tf32 = dtype == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_tf32
        return cls(device.handle, torch_dtypes()[dtype])

    def normal(self, *shape: int) -> Any:
        """Return normally distributed numbers."""
        return torch.randn(shape, dtype=self.dtype, device=self.device)

    def positive(self, *shape: int) -> Any:
        """Return numbers between 0.5 and 1.5."""
        return torch.rand(shape, dtype=self.dtype, device=self.device) + 0.5

    def whole(self, below: int, *shape: int) -> Any:
        """Return int64 numbers from 0 to below `below`."""
        return torch.randint(below, shape, device=self.device)


def backward(made: Made) -> Callable[[], Any]:
    """Return a call that computes the gradients of a forward pass, which runs once, here."""
    for tensor in made.learned:
        tensor.requires_grad_()
    result = made.forward()
    gradient = torch.randn_like(result)
    return lambda: torch.autograd.grad(result, made.learned, gradient, retain_graph=True)
