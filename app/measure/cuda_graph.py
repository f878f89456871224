"""CUDA graphs: a call captured once, so that replaying it costs the host next to nothing, as serving stacks do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_WARM_UPS = 3


def replayed(run: Callable[[], Any]) -> Callable[[], Any]:
    """The call that replays `run` on the current stream; what it computes must not depend on the host."""
    for _ in range(_WARM_UPS):
        run()
    _raise_if_waits(run)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        run()

    def replay() -> object:
        # The graph works on the tensors of `run`, which must live as long.
        return graph.replay(), run

    return replay


def _raise_if_waits(run: Callable[[], Any]) -> None:
    """RuntimeError where `run` makes the host wait for the device: grouped products do on many GPUs.

    Captured, it would fail half way, and leave the process unusable.
    """
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
