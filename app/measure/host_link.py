"""Bandwidth between the host's memory and the device's."""

from __future__ import annotations

import time

import torch

from app.measure.device import Device

_BYTES, _COPIES = 1 << 28, 5


def host_link(device: Device) -> dict[str, float]:
    """Return bytes per second in both directions with pinned memory; empty for a CPU or without enough memory."""
    if device.kind != "cuda":
        return {}
    try:
        host = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True)
        on_device = torch.empty_like(host, device=device.handle)
    except RuntimeError:
        return {}
    return {"host_to_device_bytes_per_s": _rate(on_device, host), "device_to_host_bytes_per_s": _rate(host, on_device)}


def _rate(target: torch.Tensor, source: torch.Tensor) -> float:
    """Return the best rate of a few copies, the first of which is a warm-up."""
    seconds = []
    for _ in range(1 + _COPIES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return _BYTES / min(seconds[1:])
