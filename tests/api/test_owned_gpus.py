"""GPUs of one's own: electricity in place of rent, in comparisons, plans and on the page."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient

Json = dict[str, Any]
KWH = 0.3
OWNED: Json = {"owned": ["NVIDIA H100 80GB HBM3"], "usd_per_kwh": KWH}
GPUS = ["h100-sxm5-80gb", "l40s"]
LINEAR = {"kind": "operators", "operators": [{"op": "linear", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}]}
SERVED: Json = {
    "kind": "serving", "name": "llama-3-8b", "dtype": "bf16", "software": "vllm", "input_tokens": 1024,
    "output_tokens": 256, "load": {"rate_per_s": 2},
}  # fmt: skip


def ask(client: TestClient, route: str, **body: Any) -> Json:
    answer = client.post(route, json={"gpus": GPUS, "prices": {"l40s": 1.5}, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_run_costs_its_energy(client: TestClient) -> None:
    rows = {row["gpu"]: row for row in ask(client, "/compare", workload=LINEAR, rank_by="cost", **OWNED)["ranking"]}
    own, rented = rows["h100-sxm5-80gb"], rows["l40s"]
    assert own["cost_usd"] == pytest.approx(own["energy_j"] / 3.6e6 * KWH)
    assert own["price_source"].startswith("owned: 0.3 USD per kWh at")
    assert (rented["price_usd_per_hour"], rented["price_source"]) == (1.5, "request")
    stated = ask(client, "/compare", workload=LINEAR, powers_w={"h100": 500}, **OWNED)["ranking"]
    assert next(row for row in stated if row["gpu"] == own["gpu"])["price_usd_per_hour"] == pytest.approx(0.5 * KWH)


def test_a_job_stays_within_a_budget_of_electricity(client: TestClient) -> None:
    fields = {"workload": LINEAR, "gpus": GPUS[:1], "steps": 1e6, **OWNED}
    (found,) = ask(client, "/plan", budget_usd=1e3, **fields)["choices"]
    assert found["meets"] and found["cost_usd"] == pytest.approx(found["energy_j"] / 3.6e6 * KWH)
    low, high = (found["cost_interval_usd"][end] / found["cost_usd"] for end in ("low", "high"))
    energy = found["energy_interval_j"]
    assert (low, high) == pytest.approx((energy["low"] / found["energy_j"], energy["high"] / found["energy_j"]))
    (over,) = ask(client, "/plan", budget_usd=found["cost_usd"] / 10, **fields)["choices"]
    assert not over["meets"]


def test_a_deployment_costs_its_power_and_what_is_written_off(client: TestClient) -> None:
    fields = {"workload": SERVED, "tpot_ms": 50, "duty_cycle": 0.4, **OWNED}
    plan = ask(client, "/plan", **fields, prices={"l40s": 1.5, "h100-sxm5-80gb": 0.5})
    own = next(choice for choice in plan["choices"] if choice["gpu"] == "h100-sxm5-80gb")
    cost, devices = own["cost"], own["devices"]
    each = 0.5 + cost["power_w"] / 1e3 * KWH
    assert cost["price_usd_per_hour"] == pytest.approx(each) and cost["usd_per_hour"] == pytest.approx(devices * each)
    idle = 0.5 + 0.17 * 700 / 1e3 * KWH  # a board of 700 W draws 0.17 of it while it waits
    assert cost["monthly_usd"] == pytest.approx(730 * devices * (0.4 * each + 0.6 * idle), rel=1e-3)
    rented = next(choice for choice in plan["choices"] if choice["gpu"] == "l40s")
    assert rented["cost"]["monthly_usd"] == pytest.approx(730 * 0.4 * rented["cost"]["usd_per_hour"])
    months = [choice["cost"]["monthly_usd"] for choice in plan["choices"] if choice["meets"]]
    assert months == sorted(months)


@pytest.mark.parametrize(
    ("fields", "loc"),
    [
        ({"owned": ["l40s"]}, ["usd_per_kwh"]),
        ({"usd_per_kwh": 0.3}, ["owned"]),
        ({"owned": ["l40s", "no such"], "usd_per_kwh": 0.3}, ["owned", 1]),
        ({"owned": ["l40s"], "usd_per_kwh": -1}, ["usd_per_kwh"]),
        ({"owned": "l40s", "usd_per_kwh": 0.3}, ["owned"]),
    ],
)
def test_what_cannot_be_is_named(client: TestClient, fields: Json, loc: list[str | int]) -> None:
    answer = client.post("/compare", json={"workload": LINEAR, "gpus": GPUS, **fields})
    assert answer.status_code in (404, 422), answer.text
    assert answer.json()["errors"][0]["loc"] == loc


def test_the_page_says_which_price_was_used(client: TestClient) -> None:
    query = {
        "name": "llama-3-8b", "dtype": "bf16", "input_tokens": 512, "output_tokens": 128, "load": "rate_per_s",
        "level": 2, "gpu": "rentable", "owned": "l40s", "usd_per_kwh": KWH, "duty_cycle": 0.4, "prices": "a30 0.5",
    }  # fmt: skip
    shown = client.get(f"/plan?{urlencode(query)}")
    assert shown.status_code == 200
    found = client.get(f"/plan?{urlencode(query)}&format=json").json()["plan"]["choices"]
    assert {choice["gpu"] for choice in found} == {"l40s", "a30"}
    assert f"USD an hour of one GPU: {found[0]['cost']['price_source']}" in shown.text
    for choice in found:
        assert f"USD an hour: {choice['cost']['price_source']}" in shown.text.split('id="prices"', 1)[1]
    wrong = client.get(f"/plan?{urlencode(query | {'usd_per_kwh': 'cheap'})}")
    assert wrong.status_code == 422 and 'id="f-usd_per_kwh"' in wrong.text
