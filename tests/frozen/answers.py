"""Answers of the service to the frozen requests, as lines of a text file: one request a line."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fastapi.testclient import TestClient

from app.config import Settings
from app.store import gpus
from tests.forked import run_command
from tests.frozen.cases import cases, sweep_columns, sweep_gpus

FILE = Path(__file__).with_name("answers.jsonl")
# Longer texts are kept by their digest, and once each in the file's first line.
_SHORT = 40
# Answers hold these for people or for one installation: examples of a refusal, ids, and versions of what was trained.
# Codes of warnings stand beside their texts, which are kept.
_LEFT_OUT = frozenset({"example", "instance", "version", "id", "warning_codes"})
_SWEEP_COVERAGES = (0.8, 0.5)


class Answers:
    """The answers by the request's name, and texts by their digest."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.texts: dict[str, str] = {}

    def add(self, name: str, answer: Any) -> None:
        """Keep the answer to a request, numbers to twelve digits."""
        self.answers[name] = self._kept(answer)

    def _kept(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._kept(item) for key, item in value.items() if key not in _LEFT_OUT}
        if isinstance(value, list):
            return [self._kept(item) for item in value]
        if isinstance(value, float):
            return float(f"{value:.12g}")
        if isinstance(value, str) and len(value) > _SHORT:
            digest = hashlib.sha256(value.encode()).hexdigest()[:10]
            self.texts[digest] = value
            return f"#{digest}"
        return value

    def write(self, path: Path) -> None:
        """Write the texts, then a line a request."""
        lines = [{"texts": dict(sorted(self.texts.items()))}]
        lines += [{"request": name, "answer": answer} for name, answer in self.answers.items()]
        path.write_text("".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines))

    @classmethod
    def read(cls, path: Path) -> Answers:
        """Return the answers that `write` wrote."""
        first, *others = map(json.loads, path.read_text().splitlines())
        answers = cls()
        answers.texts = first["texts"]
        answers.answers = {line["request"]: line["answer"] for line in others}
        return answers


def collect(client: TestClient, settings: Settings) -> Answers:
    """Return today's answers: those of the routes, and of `gpucast sweep`."""
    _without_list_prices(client)
    answers = Answers()
    for case in cases():
        response = client.post(case.route, json=case.body)
        assert response.status_code < 500, (case, response.text)
        answers.add(case.name, {"status": response.status_code, **response.json()})
    for name, row in _sweeps(settings):
        answers.add(name, row)
    return answers


def _without_list_prices(client: TestClient) -> None:
    """Withdraw the prices that ship: which of them counts, and with what warning, depends on the day."""
    state: Any = client.app.state  # type: ignore[attr-defined]
    with state.runtime.database.begin() as connection:
        gpus.seed_prices(connection, [])
    state.holder.refresh()


def _sweeps(settings: Settings) -> Iterator[tuple[str, Any]]:
    for which, coverage in enumerate(_SWEEP_COVERAGES):
        rows = sweep_columns(which)
        columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(key for row in rows for key in row)}
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder, "rows.parquet"), Path(folder, "out")
            pq.write_table(pa.table(columns), source)
            options = [f"--gpu={gpu}" for gpu in sweep_gpus(which)]
            env = os.environ | settings.environment()
            run = run_command("sweep", source, out, f"--coverage={coverage}", *options, env=env, timeout=280)
            assert run.returncode == 0, run.stderr
            answered = pq.read_table(out).to_pylist()
        for number, row in enumerate(answered):
            figures = {name: value for name, value in row.items() if name not in columns}
            yield f"sweep {which} {number}", {"status": 200, "row": number % len(rows), **figures}
