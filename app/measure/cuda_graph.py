"""CUDA graphs: calls captured once and replayed at little host cost, as in serving stacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_WARM_UPS = 3


def replayed(run: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that replays `run` on the current stream; `run` must not depend on the host."""
    for _ in range(_WARM_UPS):
        run()
    _raise_if_waits(run)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        run()

    def replay() -> object:
        # The graph uses the tensors of `run`, which must stay alive.
        return graph.replay(), run

    return replay


def _raise_if_waits(run: Callable[[], Any]) -> None:
    """Raise RuntimeError if `run` synchronises the host with the device, as grouped products do on many GPUs.

    Its capture would fail half way, and leave the process unusable.
    """
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
