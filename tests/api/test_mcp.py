"""The MCP server of clients/python, asked by the official client over standard input and output."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import pytest

from tests.busy_machine import until
from tests.client_environment import client_python
from tests.hostile_server import Script, hostile, stalled, whole

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


@pytest.fixture(scope="module")
def python() -> Path:
    return client_python("mcp", "mcp==2.3.0", "[mcp]")


def test_an_assistant_predicts_compares_and_lists(python: Path, server: httpx.Client, tmp_path: Path) -> None:
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


class Messages:
    """`gpucast-mcp` by its standard input and output: lines of any bytes in, lines of JSON out."""

    def __init__(self, python: Path, url: str) -> None:
        pipe = subprocess.PIPE
        command, env = [python.with_name("gpucast-mcp")], os.environ | {"GPUCAST_URL": url}
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env)
        self.answers: dict[Any, Any] = {}
        threading.Thread(target=self._read, daemon=True).start()
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        self.answer(0, method="initialize", params=params)
        self.send(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answer = json.loads(line)
            self.answers[answer.get("id")] = answer

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def call(self, number: int) -> None:
        arguments = {"gpu": "nvidia-l4", "workload": LINEAR}
        params = {"name": "predict", "arguments": arguments}
        self.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode())

    def answer(self, number: int, **message: Any) -> Any:
        self.send(json.dumps({"jsonrpc": "2.0", "id": number, **message}).encode())
        return until(lambda: self.answers.get(number))

    def text(self, number: int) -> str:
        """Return the text of the error that answers a call."""
        result = until(lambda: self.answers.get(number))["result"]
        assert result["isError"], result
        return str(result["content"][0]["text"])


DEEP = b"[" * 100_000 + b"]" * 100_000
IN_A_CALL = b'{"jsonrpc": "2.0", "id": %b, "method": "tools/call", "params": {"name": "predict", "arguments": %b}}'
LINES = (
    *(b"hello", b"[" * 1_000_000, b"null", b"[]", b"\xff\xfe", b'{"jsonrpc": "2.0", "id": 1, "result": {}}'),
    *(
        b'{"jsonrpc": "2.0", "id": %b, "method": "ping"}' % each
        for each in (b"null", b"[1]", b"1.5", b"{}", b"9" * 400)
    ),
    *(IN_A_CALL % (b"5", each) for each in (b"1", b'{"gpu": 3}', b'{"gpu": "\\ud800", "workload": {"a": NaN}}')),
    IN_A_CALL % (b"6", b'{"gpu": "a", "workload": {"a": %b}}' % DEEP),
    IN_A_CALL % (b"7", b'{"gpu": "%b", "workload": {}}' % (b"x" * 30_000_000)),
    b'{"jsonrpc": "2.0", "id": 8, "method": "ping", "x": "%b"}' % (b"x" * 30_000_000),
)


def test_messages_of_any_form_leave_the_server_answering(python: Path) -> None:
    with hostile(whole(b"[]")) as url, Messages(python, url) as messages:
        for number, line in enumerate(LINES, 100):
            messages.send(line)
            assert messages.answer(number, method="ping")["result"] == {}
        assert psutil.Process(messages.process.pid).memory_info().rss < 2**29


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (whole(b"[]"), "not one of gpucast's"),
        (whole(b"<html>"), "not JSON"),
        (whole(b"x" * 10_000_000, "500 No", "text/plain"), "500: xxx"),
        (lambda _: None, "does not answer"),
    ],
)
def test_the_assistant_learns_what_is_wrong_with_the_service(python: Path, script: Script, words: str) -> None:
    """It learned that there was an error, and no more."""
    with hostile(script) as url, Messages(python, url) as messages:
        messages.call(1)
        assert words in messages.text(1) and len(messages.text(1)) < 3_000


def test_calls_that_wait_for_the_service_hold_neither_messages_nor_the_end(python: Path) -> None:
    """40 of them held every other message, for up to five minutes, and one the end of the process."""
    over = threading.Event()
    with hostile(stalled(over)) as url, Messages(python, url) as messages:
        for number in range(1, 2_001):
            messages.call(number)
        assert messages.answer(5_000, method="ping")["result"] == {}
        assert "wait for an answer" in messages.text(2_000)
        assert messages.process.stdin is not None
        began = time.monotonic()
        messages.process.stdin.close()
        assert messages.process.wait(20) == 0
        assert time.monotonic() - began < 20
        over.set()
