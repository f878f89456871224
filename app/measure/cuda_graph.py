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
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        run()

    def replay() -> object:
        # The graph works on the tensors of `run`, which must live as long.
        return graph.replay(), run

    return replay
