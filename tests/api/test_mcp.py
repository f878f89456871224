"""The MCP server of clients/python, asked by the official client over standard input and output."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.client_environment import client_python

pytestmark = pytest.mark.slow

LINEAR = {"kind": "operators", "operators": [{"op": "linear", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}]}
PROGRAM = """
import asyncio, json, sys
from mcp import Client, StdioServerParameters, stdio_client

async def main():
    url, *calls = sys.argv[1:]
    server = StdioServerParameters(command=f"{sys.prefix}/bin/gpucast-mcp", env={"GPUCAST_URL": url})
    async with Client(stdio_client(server)) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        found = []
        for call in calls:
            name, arguments = json.loads(call)
            result = await client.call_tool(name, arguments)
            found.append([result.is_error, "".join(part.text for part in result.content)])
        print(json.dumps({"tools": tools, "found": found}))

asyncio.run(main())
"""


def test_an_assistant_predicts_compares_and_lists(server: httpx.Client, tmp_path: Path) -> None:
    python = client_python("mcp", "mcp==2.3.0", "[mcp]")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("predict", {"gpu": "nvidia-l4", "workload": LINEAR}),
        ("compare", {"gpus": ["nvidia-l4", "h100-sxm5-80gb"], "workload": LINEAR, "rank_by": "throughput"}),
        ("list_gpus", {"search": "H100"}),
        ("predict", {"gpu": "nvidia-l44", "workload": LINEAR}),
        ("predict", {"gpu": "nvidia-l4", "workload": {"kind": "operators", "operators": [{"op": "liner"}]}}),
    ]
    command = [python, "-c", PROGRAM, str(server.base_url), *map(json.dumps, calls)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["tools"] == ["predict", "compare", "list_gpus"]
    assert [wrong for wrong, _ in answer["found"]] == [False, False, False, True, True]
    predicted, ranked, _, unknown, wrong = (text for _, text in answer["found"])
    expected = server.post("/predict", json={"gpu": "nvidia-l4", "workload": LINEAR}).json()["predictions"][0]
    assert json.loads(predicted)["latency_ms"] == expected["latency_ms"]
    assert json.loads(ranked)["ranking"][0]["gpu"] == "h100-sxm5-80gb"
    assert "h100-sxm5-80gb" in answer["found"][2][1]
    assert "nvidia-l44" in unknown and "did you mean linear" in wrong
