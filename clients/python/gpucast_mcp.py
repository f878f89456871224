"""MCP server of gpucast, for assistants: `gpucast-mcp`, over standard input and output.

Needs the extra `mcp` and a running service: GPUCAST_URL (default: http://127.0.0.1:8000) and GPUCAST_KEY, if it asks
for one.
"""

from __future__ import annotations

import os
from typing import Any

from gpucast_client import Gpucast, GpucastProblem
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

_MOST = 50
server = MCPServer(
    "gpucast",
    instructions="Predicts how long GPU work takes on GPUs that need not be at hand. Times are milliseconds; every"
    " answer has an interval, the limiting resource, memory, and warnings: tell them with the time. A workload is JSON,"
    ' such as {"kind": "model", "name": "llama-3-8b", "mode": "decode", "batch": 8, "sequence": 2048, "dtype": "bf16"}'
    ' with mode inference, training, prefill or decode, or {"kind": "operators", "operators": [{"op": "linear",'
    ' "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}]}. Instead of name, config takes a Hugging Face config.json.',
)


def _ask(method: str, *body: Any) -> Any:
    """Return an answer of the service; what is wrong with the question is told to the assistant."""
    service = Gpucast(os.environ.get("GPUCAST_URL", "http://127.0.0.1:8000"), key=os.environ.get("GPUCAST_KEY"))
    try:
        with service:
            return getattr(service, method)(*body)
    except GpucastProblem as problem:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in problem.errors)
        raise ToolError(f"{problem} {wrong}".strip()) from problem


@server.tool()
def predict(gpu: str, workload: dict[str, Any]) -> dict[str, Any]:
    """Predict the time of a workload on one GPU, milliseconds, with its interval, bound and memory."""
    found: dict[str, Any] = _ask("predict", {"gpu": gpu, "workload": workload})["predictions"][0]
    return found


@server.tool()
def compare(
    gpus: list[str], workload: dict[str, Any], rank_by: str = "latency", prices: dict[str, float] | None = None
) -> dict[str, Any]:
    """Rank GPUs by latency, throughput, cost or energy of a workload; prices: US dollars per GPU and hour."""
    body = {"gpus": gpus, "workload": workload, "rank_by": rank_by, "prices": prices or {}}
    found: dict[str, Any] = _ask("compare_gpus", body)
    return found


@server.tool()
def list_gpus(search: str = "") -> list[dict[str, Any]]:
    """List GPUs of the catalogue by part of their name: id, name and GiB of memory. Further ones are known by name."""
    rows = [row for row in _ask("list_gpus")["items"] if search.lower() in f"{row['id']} {row['name']}".lower()]
    return [
        {"id": row["id"], "name": row["name"], "memory_gib": round(row["memory_bytes"] / 2**30, 1)}
        for row in rows[:_MOST]
    ]


def main() -> None:
    """Serve until standard input ends."""
    server.run()


if __name__ == "__main__":
    main()
