"""`gpucast watch` as a process: answers of a Prometheus in, predicted beside measured figures out."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from app.config import CHECKOUT, Settings
from tests.forked import run_command
from tests.http_server import serving

pytestmark = pytest.mark.slow

GPU = "h100-sxm5-80gb"
WORKLOAD: dict[str, Any] = {
    "kind": "serving",
    "name": "llama-3-8b",
    "dtype": "bf16",
    "software": "vllm",
    "input_tokens": 1,
    "output_tokens": 1,
    "length_spread": 0.0,
    "load": {"rate_per_s": 1},
}
# Rates of vLLM's counters a second, as `rate` gives them: 4 requests a second of 1,024 and 256 tokens.
REQUESTS = 4.0
RATES = {
    "vllm:time_to_first_token_seconds_count": REQUESTS,
    "vllm:request_prompt_tokens_sum": REQUESTS * 1024,
    "vllm:request_prompt_tokens_count": REQUESTS,
    "vllm:request_generation_tokens_sum": REQUESTS * 256,
    "vllm:request_generation_tokens_count": REQUESTS,
    "vllm:inter_token_latency_seconds_count": REQUESTS * 255,
}
LEVELS = {"vllm:num_requests_running": 12.0, "vllm:num_requests_waiting": 0.0}
QUERY = re.compile(r"sum\((rate|avg_over_time)\((\S+?)\{(.*?)\}\[(\d+)s\]\)\)")


def _evaluated(query: str, rates: dict[str, float]) -> float | None:
    """Return what Prometheus gives for the expressions that `watch` sends, over these rates; None: no sample."""
    for alternative in query.split(" or "):
        terms = [(RATES | rates | LEVELS).get(name) for _, name, _, _ in QUERY.findall(alternative)]
        if terms and None not in terms:
            first, *rest = (term for term in terms if term is not None)
            return first / rest[0] if rest and rest[0] else first if not rest else float("nan")
    return None


@contextmanager
def prometheus(rates: dict[str, float], queries: list[str] | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            (query,) = parse_qs(urlsplit(self.path).query)["query"]
            if queries is not None:
                queries.append(query)
            value = _evaluated(query, rates)
            result = [] if value is None else [{"metric": {}, "value": [1.0, str(value)]}]
            body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as url:
        yield url


def times(ttft_ms: float, tpot_ms: float) -> dict[str, float]:
    return {
        "vllm:time_to_first_token_seconds_sum": REQUESTS * ttft_ms / 1e3,
        "vllm:inter_token_latency_seconds_sum": REQUESTS * 255 * tpot_ms / 1e3,
    }


def watch(settings: Settings, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    words = ("-", "--gpu", GPU, "--prometheus", url, "--once", *words)
    return run_command("watch", *words, env=os.environ | settings.environment(), stdin=json.dumps(WORKLOAD))


@pytest.fixture(scope="module")
def predicted(settings: Settings) -> dict[str, Any]:
    """Return the prediction for the load of RATES."""
    lengths = {"input_tokens": 1024, "output_tokens": 256, "load": {"rate_per_s": REQUESTS}}
    body = json.dumps({"gpu": GPU, "workload": WORKLOAD | lengths})
    done = run_command("predict", "-", "--json", env=os.environ | settings.environment(), stdin=body)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout)["predictions"][0]["serving"])


def test_figures_inside_their_intervals(settings: Settings, predicted: dict[str, Any], tmp_path: Path) -> None:
    ttft, tpot, queries = predicted["ttft_ms"], predicted["tpot_ms"], list[str]()
    file = tmp_path / "gpucast.prom"
    with prometheus(times(ttft["mean"], tpot["mean"]), queries) as url:
        words = ("--json", "--textfile", str(file), "--match", 'model_name="llama"', "--window", "120")
        done = watch(settings, url, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    period = json.loads(done.stdout)
    assert (period["rate_per_s"], period["input_tokens"], period["output_tokens"]) == (REQUESTS, 1024.0, 256.0)
    assert (period["requests"], period["in_flight"], period["judged"], period["outside"]) == (480, 12.0, True, False)
    for name, served in (("ttft", ttft), ("tpot", tpot)):
        assert period[name]["predicted_ms"] == pytest.approx(served["mean"])
        assert period[name]["measured_ms"] == pytest.approx(served["mean"])
        assert period[name]["low_ms"] == pytest.approx(served["interval"]["low"])
    assert all(match[2:] == ('model_name="llama"', "120") for query in queries for match in QUERY.findall(query))
    samples = {
        (one.name, one.labels.get("figure"), one.labels.get("value")): one.value
        for family in text_string_to_metric_families(file.read_text())
        for one in family.samples
    }
    assert samples["gpucast_watch_seconds", "tpot", "high"] == pytest.approx(tpot["interval"]["high"] / 1e3)
    assert samples["gpucast_watch_outside", None, None] == 0.0
    assert samples["gpucast_watch_requests", None, None] == 480.0


def test_a_figure_outside_sets_the_exit_status(settings: Settings, predicted: dict[str, Any]) -> None:
    slow = times(predicted["ttft_ms"]["mean"], 1.2 * predicted["tpot_ms"]["interval"]["high"])
    with prometheus(slow) as url:
        done, unsure = watch(settings, url), watch(settings, url, "--least-requests", "5000")
    assert done.returncode == 3 and done.stdout.rstrip().endswith("OUTSIDE")
    assert "4 requests/s of 1024+256 tokens, 12 in flight" in done.stdout
    assert unsure.returncode == 0 and unsure.stdout.rstrip().endswith("not judged: 1200 requests")


def test_nothing_to_compare(settings: Settings) -> None:
    idle = dict.fromkeys(RATES, 0.0) | times(0.0, 0.0)
    with prometheus(idle) as url:
        done = watch(settings, url)
        bad = run_command(
            "watch", "--gpu", GPU, "--prometheus", url, "--set", "kind=model", env=os.environ | settings.environment()
        )
    assert done.returncode == 0 and "no requests" in done.stdout
    assert bad.returncode == 1 and '"kind": "serving"' in bad.stderr
    gone = watch(settings, url)
    assert gone.returncode == 1 and f"No answer of Prometheus at {url}" in gone.stderr


BOARD: dict[str, Any] = json.loads((CHECKOUT / "deploy" / "grafana" / "vllm.json").read_text("utf-8"))
DEPLOY = CHECKOUT / "deploy"


def test_the_board_asks_the_service_what_it_answers(client: TestClient) -> None:
    (table,) = (panel for panel in BOARD["panels"] if panel["type"] == "table")
    (target,) = table["targets"]
    variables = {one["name"]: one["query"] for one in BOARD["templating"]["list"] if one["type"] == "textbox"}
    body = target["url_options"]["data"]
    for name, value in (variables | {"rate": "4.0", "input": "1024", "output": "256"}).items():
        body = body.replace(f"${{{name}:raw}}", value).replace(f"${name}", value)
    answer = client.post(target["url"], json=json.loads(body))
    assert answer.status_code == 200, answer.text
    for column in target["columns"]:
        value: Any = answer.json()[target["root_selector"]][0]
        for part in column["selector"].split("."):
            value = value[part]
        assert value > 0, column


def test_the_board_and_the_alerts_name_what_watch_writes() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "vllm.yml").read_text("utf-8"))["groups"]
    expressions = [rule["expr"] for rule in group["rules"]]
    expressions += [target["expr"] for panel in panels for target in panel["targets"] if "expr" in target]
    written = {"gpucast_watch_seconds", "gpucast_watch_outside", "gpucast_watch_requests"}
    assert {name for one in expressions for name in re.findall(r"gpucast_\w+", one)} == written
    page = (CHECKOUT / "docs" / "how-to" / "watch-serving.md").read_text("utf-8")
    assert all(f"| `{rule['alert']}` |" in page for rule in group["rules"])
    sources = yaml.safe_load((DEPLOY / "grafana" / "datasources.yml").read_text("utf-8"))["datasources"]
    expected = {one["query"] for one in BOARD["templating"]["list"] if one["type"] == "datasource"}
    assert {source["type"] for source in sources} == expected


def sample(value: Any) -> str:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": [{"value": [1.0, value]}]}})


@pytest.mark.parametrize(
    "body",
    [
        "", "[]", "<html>", '{"status": "success"}', "[" * 100_000,
        '{"status": "error", "error": "too many samples"}',
        *(sample(value) for value in ("-1", "1e300", "1e-300", "NaN", "x", {})),
    ],
)  # fmt: skip
def test_no_answer_of_prometheus_ends_in_a_traceback(settings: Settings, body: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as url:
        done = watch(settings, url)
    assert done.returncode in (0, 1, 3) and "Traceback" not in done.stderr, done.stderr
    assert (done.stdout if done.returncode != 1 else done.stderr).strip()
