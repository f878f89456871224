"""One page of the documentation, carried out as written against a running service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from app.config import CHECKOUT
from tests.documentation.examples import Command, Example, commands, named_keys, pattern
from tests.documentation.figures import updated_json, updated_line
from tests.documentation.given import FILES, OTHERWISE, SENT, begins
from tests.forked import write_command
from tests.service import Service

# Variable of the environment with which figures are written, not compared.
WRITE = "WRITE_FIGURES"
# Commands whose figures are predictions, and answers whose figures a page measures itself.
_PREDICTS = re.compile(r"(?:\S*/)?gpucast (?:predict|compare|plan|scale|partition|kueue|dra|sbatch)\b")
_MEASURED = '"gpu": "my-cpu"'
_ADDRESS = re.compile(r"\b(?:localhost|127\.0\.0\.1|host|gpucast):8000\b")
_REQUEST = re.compile(r"^(GET|POST) +(\S+)(?: +(\{.*\}))?", re.MULTILINE)
_NODES = [{"metadata": {"name": "node", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}}]


class Page:
    """A folder in which a page's examples run one after another; `said` is what the last one answered."""

    def __init__(self, folder: Path, service: Service, environment: dict[str, str]) -> None:
        self._folder, self._client = folder, service.client
        self._host = f"127.0.0.1:{service.port}"
        (folder / ".venv").symlink_to(sys.prefix)
        (folder / ".bin").mkdir()
        write_command(folder / ".bin" / "gpucast")
        (folder / ".curlrc").write_text("fail-with-body\nshow-error\n")
        programs = f"{folder / '.bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        client = {"PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'clients' / 'python'}"}
        here = {"PATH": programs, "HOME": str(folder), "CURL_HOME": str(folder), "PORT": str(service.port)}
        self._environment = os.environ | service.settings.environment() | client | here | environment
        self.said = ""
        self.stale: dict[str, str] = {}  # figures that a page shows -> as they are today, both with what is around them

    def write_files(self, page: Sequence[Example]) -> None:
        """Write the files that a page shows."""
        for example in page:
            if name := begins(example.text, FILES):
                (self._folder / name).write_text(example.text)

    def carry_out(self, example: Example) -> None:
        """Run, send, open or compare an example, whichever its language and begin say."""
        if example.language in ("bash", "console"):
            for command in commands(example):
                self._command(command)
        elif example.language == "python":
            self.said = self._run([sys.executable, "-c", self._here(example.text)])
        elif path := begins(example.text, SENT):
            self._send(path, example.text)
        elif example.language == "yaml":
            self._schedule(yaml.safe_load(example.text))
        else:
            self._read(example.text)

    def _command(self, command: Command) -> None:
        if begins(command.text):
            return
        shown = re.fullmatch(r"cat (\S+)", command.text)
        if shown:  # the page shows a file
            (self._folder / shown[1]).write_text(command.output)
            return
        self.said = self._run(["bash", "-e", "-o", "pipefail", "-c", self._here(command.text)])
        for line in filter(str.strip, command.output.splitlines()):
            printed = self._expect(line.strip())
            if _PREDICTS.match(command.text) and (today := updated_line(line, printed)) != line:
                self.stale[line] = today

    def _read(self, text: str) -> None:
        """Open the addresses of a page, ask its requests, or compare an answer."""
        if text.startswith(("/", "http://")):
            for line in text.split():
                assert self._client.get(self._here(line)).status_code == 200, line
        elif requests := _REQUEST.findall(text):
            for method, path, body in requests:
                answer = self._client.request(method, path, content=body or None, headers=_media(body))
                assert answer.status_code == 200, (path, answer.text)
        else:
            self._expect(" ".join(text.split()) if text.startswith("{") else text.strip())
            if text.startswith("{") and _MEASURED not in text and (today := updated_json(text, self.said)) != text:
                self.stale[text] = today

    def _expect(self, shown: str) -> str:
        """The last answer has the fields, or a line with the words, that a page shows; return that line."""
        if shown.startswith("{"):
            missing = named_keys(shown) - named_keys(self.said)
            assert not missing, (missing, self.said)
            return self.said
        lines = [line.strip() for line in self.said.splitlines()]
        found = next((line for line in lines if pattern(shown).fullmatch(line)), None)
        assert found is not None, (shown, self.said)
        return found

    def _send(self, path: str, text: str) -> None:
        answer = self._client.post(path, content=text, headers=_media(text))
        assert answer.status_code in (200, 201), answer.text
        self.said = answer.text

    def _schedule(self, pod: Any) -> None:
        """Ask for the nodes of a pod with these annotations."""
        body = {"Pod": {"metadata": {"name": "p", **pod["metadata"]}}, "Nodes": {"items": _NODES}, "NodeNames": None}
        answer = self._client.post("/scheduler/filter", json=body).raise_for_status().json()
        assert answer["Error"] == "" and len(answer["Nodes"]["items"]) == 1, answer

    def _here(self, text: str) -> str:
        for written, instead in OTHERWISE.items():
            text = text.replace(written, instead)
        return _ADDRESS.sub(self._host, text)

    def _run(self, words: list[str]) -> str:
        """Return what a program printed; it must succeed."""
        done = subprocess.run(
            words, cwd=self._folder, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, stdin=subprocess.DEVNULL, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout)
        assert "Traceback" not in done.stdout, done.stdout
        return done.stdout


def _media(text: str) -> dict[str, str]:
    return {"content-type": "application/json" if not text or text.lstrip()[0] in "[{" else "text/csv"}
