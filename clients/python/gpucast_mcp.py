"""MCP server of gpucast, for assistants: `gpucast-mcp`, over standard input and output.

Needs the extra `mcp` and a running service: GPUCAST_URL (default: http://127.0.0.1:8000) and GPUCAST_KEY, if it asks
for one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import httpx
from anyio import CapacityLimiter, to_thread
from gpucast_client import Gpucast, GpucastProblem
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

# GPUs of a list and errors of an answer that are shown, and questions that may wait for the service.
_MOST, _MOST_CALLS = 50, 16
server = MCPServer(
    "gpucast",
    instructions="Predicts how long GPU work takes on GPUs that need not be at hand. Times are milliseconds; every"
    " answer has an interval, the limiting resource, memory, and warnings: tell them with the time. A workload is JSON,"
    ' such as {"kind": "model", "name": "llama-3-8b", "mode": "decode", "batch": 8, "sequence": 2048, "dtype": "bf16"}'
    ' with mode inference, training, prefill or decode, or {"kind": "operators", "operators": [{"op": "linear",'
    ' "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}]}. Instead of name, config takes a Hugging Face config.json.',
)


def _url() -> str:
    return os.environ.get("GPUCAST_URL", "http://127.0.0.1:8000")


@cache
def _service() -> Gpucast:
    """Return the one client of all calls: its certificates take longer to load than most answers."""
    return Gpucast(_url(), key=os.environ.get("GPUCAST_KEY"))


def _ask(method: str, *body: Any) -> Any:
    """Return an answer of the service. Raises ToolError with what is wrong with the question, or the service."""
    try:
        return getattr(_service(), method)(*body)
    except GpucastProblem as problem:
        wrong = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in problem.errors[:_MOST])
        raise ToolError(f"{problem} {wrong}".strip()) from problem
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ToolError(f"{_url()} does not answer: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the question cannot be sent: {error}") from error


_calls = CapacityLimiter(_MOST_CALLS)


async def _answer(read: Callable[[Any], Any], method: str, *body: Any) -> Any:
    """Return what `read` makes of an answer, while other messages are read. Raises ToolError."""
    if _calls.statistics().tasks_waiting or not _calls.available_tokens:
        raise ToolError(f"{_MOST_CALLS} questions wait for an answer: ask again later")
    answer = await to_thread.run_sync(partial(_ask, method, *body), abandon_on_cancel=True, limiter=_calls)
    try:
        return read(answer)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ToolError("the answer is not one of gpucast's: is GPUCAST_URL its address?") from error


@server.tool()
async def predict(gpu: str, workload: dict[str, Any]) -> dict[str, Any]:
    """Predict the time of a workload on one GPU, milliseconds, with its interval, bound and memory."""
    body = {"gpu": gpu, "workload": workload}
    return dict(await _answer(lambda answer: answer["predictions"][0], "predict", body))


@server.tool()
async def compare(
    gpus: list[str], workload: dict[str, Any], rank_by: str = "latency", prices: dict[str, float] | None = None
) -> dict[str, Any]:
    """Rank GPUs by latency, throughput, cost or energy of a workload; prices: US dollars per GPU and hour."""
    body = {"gpus": gpus, "workload": workload, "rank_by": rank_by, "prices": prices or {}}
    return dict(await _answer(dict, "compare_gpus", body))


@server.tool()
async def list_gpus(search: str = "") -> list[dict[str, Any]]:
    """List GPUs of the catalogue by part of their name: id, name and GiB of memory. Further ones are known by name."""

    def lines(answer: Any) -> list[dict[str, Any]]:
        rows = [row for row in answer["items"] if search.lower() in f"{row['id']} {row['name']}".lower()]
        return [
            {"id": row["id"], "name": row["name"], "memory_gib": round(row["memory_bytes"] / 2**30, 1)}
            for row in rows[:_MOST]
        ]

    return list(await _answer(lines, "list_gpus"))


def main() -> None:
    """Serve until standard input ends; answers that still wait for the service then are dropped."""
    server.run()
    os._exit(0)  # threads that wait for the service would hold the process for minutes


if __name__ == "__main__":
    main()
