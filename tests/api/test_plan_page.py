"""The page of plans: it answers as POST /plan does, and as /serving does, and says what would change the answer."""

from __future__ import annotations

import random
import re
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient

from app.engine.prices import PriceBook, shipped_prices, today_utc

Json = dict[str, Any]
PRICES = {"b200": 5.5, "h200-sxm-141gb": 3.8, "h100-sxm5-80gb": 3.0, "amd-instinct-mi300x": 2.5, "l40s": 1.2}
PLACE: Json = {
    "name": "llama-3.1-70b", "dtype": "fp8", "input_tokens": 1024, "output_tokens": 256, "load": "rate_per_s",
    "level": 6, "ttft_ms": 600, "tpot_ms": 40, "gpu": ["b200", "h200-sxm-141gb", "h100-sxm5-80gb"],
}  # fmt: skip


def place(path: str, prices: dict[str, float] | None = None, **changed: Any) -> str:
    lines = "\n".join(f"{gpu} {usd}" for gpu, usd in (PRICES if prices is None else prices).items())
    return f"{path}?{urlencode({**PLACE, 'prices': lines, **changed}, doseq=True)}"


def view(client: TestClient, path: str, **changed: Any) -> Json:
    answer = client.get(place(path, **changed) + "&format=json")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def drawn(draw: random.Random) -> tuple[Json, Json]:
    """A question as controls of the pages, and as a request of POST /plan; models and lengths share their steps."""
    model, dtype = draw.choice([("llama-3.1-70b", "fp8"), ("llama-3-8b", "bf16")])
    tokens = {"input_tokens": 512, "output_tokens": draw.choice([64, 128])}
    limits = {
        name: most for name, most in (("ttft_ms", 2000), ("tpot_ms", 50), ("e2e_ms", 9000)) if draw.random() < 0.7
    }
    percentile, rate = draw.choice([50, 90, 99]), draw.choice([1, 4, 10])
    gpus = draw.choice([["h200-sxm-141gb"], ["l40s"], ["b200", "l40s"], ["h100-sxm5-80gb", "h200-sxm-141gb"]])
    prices = {gpu: usd for gpu, usd in PRICES.items() if draw.random() < 0.8}
    controls = {"name": model, "dtype": dtype, **tokens, "load": "rate_per_s", "level": rate, "gpu": gpus}
    controls |= {"ttft_ms": "", "tpot_ms": "", **limits, "percentile": percentile, "prices": prices}
    workload = {"kind": "serving", "name": model, "dtype": dtype, **tokens, "load": {"rate_per_s": rate}}
    return controls, {"workload": workload, "gpus": gpus, "prices": prices, "percentile": percentile, **limits}


def figures_of(page: str, table: str) -> list[set[float]]:
    """The exact figures in each row of a table of a page."""
    body = page.split(f'<table id="{table}"', 1)[1].split("<tbody>", 1)[1].split("</tbody>", 1)[0]
    return [set(map(float, re.findall(r'<data value="([^"]+)"', row))) for row in body.split("<tr")[1:]]


DRAWN, WHOLE = 50, 5


@pytest.mark.parametrize("seed", range(DRAWN))
def test_the_pages_and_the_api_agree(client: TestClient, seed: int) -> None:
    controls, body = drawn(random.Random(seed))
    answer = client.post("/plan", json=body)
    assert answer.status_code == 200, answer.text
    for path in ("/plan", "/serving") if seed % WHOLE == 0 else ():
        assert view(client, path, **controls)["plan"] == answer.json(), path
    best, choices = answer.json()["best"], answer.json()["choices"]
    name, devices = client.get(f"/gpus/{choices[0]['gpu']}").json()["name"], choices[0]["devices"]
    pages = {path: client.get(place(path, **controls)).text for path in ("/plan", "/serving")}
    if best:
        assert f"Rent {devices}&nbsp;{name}" in pages["/plan"]
        assert f"<strong>{name}&nbsp;\N{MULTIPLICATION SIGN}&nbsp;{devices}</strong> " in pages["/serving"]
    else:
        assert "None of these" in pages["/plan"] and "None of these" in pages["/serving"]
    for path, table, cost in (
        ("/plan", "choices", "usd_per_hour"),
        ("/serving", "deployments", "cost_per_million_tokens"),
    ):
        shown = figures_of(pages[path], table)
        for choice, figures in zip(choices, shown, strict=True):
            assert {choice["cost"][cost], choice["serving"]["highest_rate_per_s"]} - {None} <= figures, path


def test_users_are_a_rate(client: TestClient) -> None:
    of_users = view(client, "/plan", load="users", level=180, every_s=30)["plan"]
    assert of_users == view(client, "/plan")["plan"]


def test_the_highest_rate_is_where_more_gpus_are_needed(client: TestClient) -> None:
    found = view(client, "/plan")
    first, most = found["plan"]["choices"][0], found["changes"]["highest_rate_per_s"]
    one = {"gpu": [first["gpu"]]}
    assert most > 6
    assert view(client, "/plan", level=0.999 * most, **one)["plan"]["choices"][0]["devices"] <= first["devices"]
    assert view(client, "/plan", level=1.1 * most, **one)["plan"]["choices"][0]["devices"] > first["devices"]


def test_prices_that_make_the_second_the_first(client: TestClient) -> None:
    found = view(client, "/plan")
    first, changes = found["plan"]["choices"][0]["gpu"], found["changes"]
    for gpu, usd, sign in ((changes["second"], "second_usd_per_hour", -1), (first, "first_usd_per_hour", 1)):
        for more, best in ((0.01, changes["second"]), (-0.01, first)):
            prices = PRICES | {gpu: changes[usd] * (1 + sign * more)}
            assert view(client, "/plan", prices=prices)["plan"]["best"] == best


def test_keys_and_values_in_fp8_are_what_a_plan_with_them_is(client: TestClient) -> None:
    with_fp8 = view(client, "/plan")["changes"]["with_fp8_kv"]
    assert with_fp8 == view(client, "/plan", kv_dtype="fp8")["plan"]["choices"][0]
    assert view(client, "/plan", kv_dtype="fp8")["changes"]["with_fp8_kv"] is None


def test_gpus_that_can_be_rented_are_those_with_a_price(client: TestClient) -> None:
    prices = {"h200-sxm-141gb": 3.8, "a100": 1.6}
    found = view(client, "/plan", gpu="rentable", prices=prices)["plan"]
    assert [choice["gpu"] for choice in found["choices"]] == ["h200-sxm-141gb"]
    assert [one["gpu"] for one in found["skipped"]] == ["a100-sxm4-80gb"]  # without FP8
    book, today = PriceBook.of(shipped_prices()), today_utc()
    listed = {gpu for gpu in book.rows if book.find(gpu, today, "spot")}
    shown = client.get(place("/plan", {}, gpu="rentable", price_term="spot") + "&format=json")
    found = shown.json()["plan"] if listed else {"choices": [], "skipped": []}
    assert {one["gpu"] for one in [*found["choices"], *found["skipped"]]} == listed
    row = {"gpu": "b200", "usd_per_hour": 5.0, "source": "list", "date": "2026-01-01"}
    assert client.post("/prices", json=[row]).status_code == 200
    try:
        found = view(client, "/plan", gpu="rentable", prices=prices)["plan"]
        assert {choice["gpu"] for choice in found["choices"]} == {"h200-sxm-141gb", "b200"}
    finally:
        client.delete("/prices?source=list")


def test_a_split_from_another_page_is_searched(client: TestClient) -> None:
    plain = view(client, "/plan")["plan"]
    assert view(client, "/plan", tensor=8, replicas=3)["plan"] == plain
    assert client.get(place("/plan", load="concurrency")).status_code == 200


def test_presets_fill_lengths_and_limits(client: TestClient) -> None:
    shown = client.get("/plan").text
    tabs = shown.split('aria-label="Use of the model"', 1)[1].split("</nav>", 1)[0]
    assert [name for name in ("Chat", "RAG", "Summarise", "Code", "Agents", "Batch") if f">{name}</a>" in tabs] == [
        "Chat", "RAG", "Summarise", "Code", "Agents", "Batch",
    ]  # fmt: skip
    rag = tabs.split('href="')[2].split('"')[0].replace("&amp;", "&")
    body = client.get(f"{rag}&format=json")
    assert body.status_code == 200
    assert 'aria-current="true">RAG' in client.get(rag).text


@pytest.mark.parametrize(("changed", "field", "said"), [
    ({"load": "users", "every_s": 0}, "every_s", "over 0"),
    ({"level": "many"}, "level", "expected a number"),
    ({"duty_cycle": 2}, "duty_cycle", "&lt;= 1.0, got 2"),
    ({"tpot_ms": "fast"}, "tpot_ms", "fast"),
    ({"max_devices": 65}, "max_devices", "64"),
    ({"gpu": "a100"}, "dtype", "does not compute in fp8"),
])  # fmt: skip
def test_errors_stand_at_their_field(client: TestClient, changed: Json, field: str, said: str) -> None:
    shown = client.get(place("/plan", **changed))
    assert shown.status_code == 422
    at = shown.text.split(f'id="f-{field}-help"', 1)[1].split("</p>", 1)[0]
    assert 'class="problem"' in at and said in at
