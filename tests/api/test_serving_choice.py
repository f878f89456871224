"""POST /compare and POST /plan of served models."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.busy_machine import cpu_s

Body = dict[str, Any]
SERVED: Body = {
    "kind": "serving",
    "name": "llama-3.1-70b",
    "dtype": "fp8",
    "kv_dtype": "fp8",
    "software": "vllm",
    "input_tokens": 1024,
    "output_tokens": 256,
}
LOOP: Body = SERVED | {"load": {"concurrency": 16}}
RATE: Body = SERVED | {"load": {"rate_per_s": 6}}
GPUS = ["h100-sxm5-80gb", "h200-sxm-141gb", "l40s"]
PRICES = {"h100-sxm5-80gb": 3.0, "h200-sxm-141gb": 3.8, "l40s": 1.2}


def recorded(closer: float = 1.0) -> Body:
    """The requests of 60 s at 6 a second, even and of one length, `closer` times as close to one another."""
    count = 360
    arrival_s = [k / 6 / closer for k in range(count)]
    lengths = {"input_tokens": [1024] * count, "output_tokens": [256] * count}
    trace = {"arrival_s": arrival_s} | lengths
    return {name: value for name, value in SERVED.items() if name not in lengths} | {"load": {"trace": trace}}


def ask(client: TestClient, route: str, **body: Any) -> Body:
    answer = client.post(route, json={"gpus": GPUS, "prices": PRICES, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def refusal(client: TestClient, route: str, **body: Any) -> list[str]:
    answer = client.post(route, json={"gpus": GPUS, **body})
    assert answer.status_code == 422, answer.text
    return list(answer.json()["errors"][0]["loc"])


@pytest.mark.parametrize(("route", "workload"), [("/compare", LOOP), ("/plan", RATE)])
def test_simulations_of_a_search_are_limited(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, route: str, workload: Body
) -> None:
    monkeypatch.setattr("app.services.serving.simulation_steps.MOST_SEARCHED", 500)
    answer = client.post(route, json={"gpus": GPUS, "workload": workload})
    assert answer.status_code == 413, answer.text
    assert "over 500 steps" in answer.json()["detail"]


def test_a_plan_of_too_many_engines_names_what_to_narrow(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.services.compare.served_options.MOST_ENGINES", 23)
    body = {
        "gpus": GPUS,
        "workload": RATE,
        "dtypes": ["fp8", "bf16"],
        "max_devices": 8,
    }  # 3 x 2 x splits over 1, 2, 4, 8
    answer = client.post("/plan", json=body)
    assert answer.status_code == 413, answer.text
    assert "over 23 engines: send fewer gpus" in answer.json()["detail"]
    assert [error["loc"] for error in answer.json()["errors"]] == [["gpus"], ["dtypes"], ["kv_dtypes"], ["max_devices"]]
    for narrowed in ({"dtypes": ["fp8"]}, {"max_devices": 4}, {"gpus": GPUS[:2]}):
        assert client.post("/plan", json=body | narrowed).status_code == 200


def test_a_gpu_on_which_no_split_fits_is_answered_by_its_largest(client: TestClient) -> None:
    """Its steps are predicted although engines without room for keys and values are not."""
    found = ask(client, "/plan", workload=RATE | {"dtype": "bf16"}, gpus=["l40s", "h200-sxm-141gb"], max_devices=2)
    best, other = found["choices"]
    assert (best["gpu"], best["meets"], best["memory"]["fits"]) == ("h200-sxm-141gb", True, True)
    assert (other["gpu"], other["meets"], other["memory"]["fits"]) == ("l40s", False, False)
    assert other["parallelism"]["tensor"] == 2
    assert other["missing"] == ["the rate is more than 0 a second, limited by kv_cache"]
    assert {point["gpu"] for point in found["pareto"]} == {"h200-sxm-141gb"}


def test_gpus_are_ranked_by_the_cost_of_tokens(client: TestClient) -> None:
    found = ask(client, "/compare", workload=LOOP, rank_by="cost_per_million_tokens")
    costs = [row["cost_per_million_tokens"] for row in found["ranking"]]
    assert costs == sorted(costs)
    for row in found["ranking"]:
        assert row["memory"]["fits"] is True
        hourly = row["devices"] * PRICES[row["gpu"]]
        assert row["cost"]["usd_per_hour"] == pytest.approx(hourly)
        assert row["cost_per_million_tokens"] == pytest.approx(hourly / 3600 / row["tokens_per_s"] * 1e6)
        assert row["cost"]["energy_per_token_j"] > 0
    # 70 GB of weights need two L40S at least.
    assert next(row for row in found["ranking"] if row["gpu"] == "l40s")["devices"] >= 2


def test_gpus_are_ranked_by_tokens_per_gpu(client: TestClient) -> None:
    found = ask(client, "/compare", workload=LOOP, rank_by="tokens_per_s_per_gpu")
    rates = [row["tokens_per_s_per_gpu"] for row in found["ranking"]]
    assert rates == sorted(rates, reverse=True)
    assert any(row["pareto"] for row in found["ranking"])


def test_a_comparison_answers_as_a_prediction_does(client: TestClient) -> None:
    row = ask(client, "/compare", workload=LOOP, gpus=GPUS[1:2])["ranking"][0]
    (alone,) = client.post("/predict", json={"gpu": GPUS[1], "workload": LOOP}).json()["predictions"]
    assert row["serving"] == alone["serving"]


def test_without_a_price_there_is_no_cost(client: TestClient) -> None:
    gpus = ["amd-instinct-mi355x", "amd-instinct-mi325x"]  # no list price ships of these
    found = ask(client, "/compare", workload=LOOP, gpus=gpus, rank_by="cost", prices={})
    assert all(row["cost_per_million_tokens"] is None for row in found["ranking"])
    assert any("no price" in warning for warning in found["ranking"][0]["warnings"])


def test_rankings_of_served_models_are_of_those_alone(client: TestClient) -> None:
    network: Body = {"kind": "model", "name": "gpt2", "sequence": 128}
    assert refusal(client, "/compare", workload=network, rank_by="tokens_per_s_per_gpu") == ["rank_by"]


def test_the_cheapest_deployment_that_keeps_the_limits(client: TestClient) -> None:
    found = ask(client, "/plan", workload=RATE, ttft_ms=600, tpot_ms=40)
    meets = [choice for choice in found["choices"] if choice["meets"]]
    hourly = [choice["cost"]["usd_per_hour"] for choice in meets]
    assert hourly == sorted(hourly) and found["best"] == meets[0]["gpu"]
    for choice in meets:
        split = choice["parallelism"]
        assert choice["devices"] == split["tensor"] * split["replicas"]
        assert choice["serving"]["ttft_ms"]["p90"] <= 600
        assert choice["serving"]["tpot_ms"]["p90"] <= 40
        assert choice["probability"] >= 0.9
        assert choice["missing"] == []
        chosen = {name: value for name, value in choice["settings"].items() if value is not None}
        again = RATE | {"parallelism": split} | chosen
        (alone,) = client.post("/predict", json={"gpu": choice["gpu"], "workload": again}).json()["predictions"]
        assert alone["serving"] == choice["serving"]


def test_costs_are_by_month_and_by_tokens_that_come_in_and_go_out(client: TestClient) -> None:
    """Both kinds of tokens together pay the price of the hour; prompts pay for the time that they take."""
    for route, rows in (("/plan", "choices"), ("/compare", "ranking")):
        shares = []
        for prompt in (256, 4096):
            workload = RATE | {"input_tokens": prompt}
            row = ask(client, route, workload=workload, gpus=GPUS[:1], duty_cycle=0.4)[rows][0]
            cost, served = row["cost"], row["serving"]
            assert cost["monthly_usd"] == pytest.approx(cost["usd_per_hour"] * 730 * 0.4)
            length = 0.9 * prompt  # the mean: lengths are uniform in 0.8 to 1 of the most
            of_input = cost["usd_per_million_input_tokens"] * served["requests_per_s"] * length * 3600 / 1e6
            of_output = cost["usd_per_million_output_tokens"] * served["output_tokens_per_s"] * 3600 / 1e6
            assert of_input + of_output == pytest.approx(cost["usd_per_hour"])
            shares.append(of_input / cost["usd_per_hour"])
        assert 0.02 < shares[0] < shares[1] < 0.98
    whole = ask(client, "/plan", workload=RATE, gpus=GPUS[:1])["choices"][0]["cost"]
    assert whole["monthly_usd"] == pytest.approx(whole["usd_per_hour"] * 730)


def test_engines_for_prompts_pay_their_share(client: TestClient) -> None:
    pool = {"parallelism": {"tensor": 2}, "replicas": 2}
    workload = RATE | {"parallelism": {"tensor": 4}, "prefill_pool": pool}
    row = ask(client, "/compare", workload=workload, gpus=GPUS[:1])["ranking"][0]
    prompts = row["cost"]["usd_per_million_input_tokens"] * 6 * 0.9 * 1024 * 3600 / 1e6
    assert row["devices"] == 8 and prompts == pytest.approx(row["cost"]["usd_per_hour"] / 2)


def test_a_harder_limit_or_a_higher_rate_takes_more(client: TestClient) -> None:
    one = {"gpus": GPUS[:1], "ttft_ms": 1000}
    easy = ask(client, "/plan", workload=RATE, tpot_ms=60, **one)["choices"][0]
    hard = ask(client, "/plan", workload=RATE, tpot_ms=15, **one)["choices"][0]
    busy = ask(client, "/plan", workload=SERVED | {"load": {"rate_per_s": 60}}, tpot_ms=60, **one)["choices"][0]
    assert easy["cost"]["usd_per_hour"] < hard["cost"]["usd_per_hour"]
    assert easy["devices"] < busy["devices"]


def test_twice_the_rate_takes_at_most_twice_the_gpus(client: TestClient) -> None:
    def devices(rate: float) -> int:
        workload = SERVED | {"kv_dtype": None, "input_tokens": 2048, "output_tokens": 512, "load": {"rate_per_s": rate}}
        plan = ask(client, "/plan", gpus=["b200"], prices={}, workload=workload, ttft_ms=500, tpot_ms=50)
        assert plan["best"]
        return int(plan["choices"][0]["devices"])

    assert devices(10) <= 2 * devices(5)


def test_formats_are_chosen_among_and_named(client: TestClient) -> None:
    unset = {name: value for name, value in RATE.items() if name not in ("dtype", "kv_dtype")}
    body: Body = {"workload": unset, "gpus": ["h100-sxm5-80gb", "a100-sxm-80gb"], "prices": {}, "tpot_ms": 100}
    formats: Body = {"dtypes": ["bf16", "fp8"], "kv_dtypes": ["bf16", "fp8"]}
    choices = {choice["gpu"]: choice for choice in ask(client, "/plan", **body, **formats)["choices"]}
    hopper, ampere = (choices[gpu] for gpu in ("h100-sxm5-80gb", "a100-sxm4-80gb"))
    assert hopper["settings"]["dtype"] == "fp8"
    # It has no FP8 units.
    assert ampere["settings"]["dtype"] == "bf16"
    (alone,) = ask(client, "/plan", **body | {"gpus": ["h100-sxm5-80gb"]})["choices"]
    assert alone["settings"]["dtype"] is None and alone["devices"] >= hopper["devices"]
    points = ask(client, "/plan", **body, **formats)["pareto"]
    assert {point["dtype"] for point in points} <= {"bf16", "fp8"}


def test_a_larger_token_budget_is_chosen_where_it_saves_engines(client: TestClient) -> None:
    """Small GPUs have a budget of 2,048 tokens, which prompts of 8,000 pass in four steps with all weights each."""
    long = SERVED | {"name": "llama-3-8b", "input_tokens": 8000, "output_tokens": 64, "load": {"rate_per_s": 16}}
    body: Body = {"gpus": ["l40s"], "ttft_ms": 4000, "max_devices": 1}
    (free,) = ask(client, "/plan", workload=long, **body)["choices"]
    (held,) = ask(client, "/plan", workload=long | {"max_batched_tokens": 512}, **body)["choices"]
    assert held["settings"]["max_batched_tokens"] == 512
    assert free["devices"] < held["devices"]
    assert free["serving"]["settings"]["max_batched_tokens"] >= 2048


def test_a_cap_on_sequences_keeps_the_time_per_token_of_bunches(client: TestClient) -> None:
    """A busy engine is just over the limit only because requests come in bunches: no further GPU is needed."""
    one: Body = {"gpus": GPUS[:1], "percentile": 99, "probability": 0.5, "ttft_ms": 60_000}

    def planned(rate_per_s: int, tpot_ms: float) -> Body:
        workload = SERVED | {"load": {"rate_per_s": rate_per_s}}
        return dict(ask(client, "/plan", workload=workload, tpot_ms=tpot_ms, **one)["choices"][0])

    capped = 0
    for rate in (5, 6, 7):
        free = planned(rate, 60)
        assert free["settings"]["max_sequences"] is None
        limit = 0.999 * free["serving"]["tpot_ms"]["p99"]
        held = planned(rate, limit)
        assert held["meets"] and held["serving"]["tpot_ms"]["p99"] <= limit
        capped += held["settings"]["max_sequences"] is not None and held["devices"] == free["devices"]
    assert capped > 0


def test_limits_that_nothing_keeps_say_why(client: TestClient) -> None:
    found = ask(client, "/plan", workload=RATE, tpot_ms=0.5)
    assert found["best"] is None
    assert all("tpot_ms is" in " ".join(choice["missing"]) for choice in found["choices"])


def test_the_pareto_set_trades_users_against_gpus(client: TestClient) -> None:
    points = ask(client, "/plan", workload=RATE, tpot_ms=40)["pareto"]
    users, gpus = ([point[f"tokens_per_s_per_{name}"] for point in points] for name in ("user", "gpu"))
    assert users == sorted(users, reverse=True) and gpus == sorted(gpus)
    assert len(points) > 5


def test_without_limits_the_rate_is_the_goal(client: TestClient) -> None:
    found = ask(client, "/plan", workload=RATE)
    assert found["choices"][0]["meets"] is True


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"workload": LOOP, "tpot_ms": 40}, ["workload", "load", "rate_per_s"]),
        ({"workload": recorded(closer=1e300)}, ["workload", "load", "trace", "arrival_s"]),
        ({"workload": recorded() | {"method": "closed_form"}}, ["workload", "method"]),
        ({"workload": RATE, "deadline_s": 40}, ["deadline_s"]),
        ({"workload": RATE, "tpot_ms": 0}, ["tpot_ms"]),
        ({"workload": RATE, "percentile": 100}, ["percentile"]),
        ({"workload": RATE, "duty_cycle": 0}, ["duty_cycle"]),
        ({"workload": RATE, "duty_cycle": 1.5}, ["duty_cycle"]),
        (
            {"workload": {"kind": "model", "name": "gpt2", "sequence": 9}, "deadline_s": 1, "duty_cycle": 0.5},
            ["duty_cycle"],
        ),
        ({"workload": RATE, "dtypes": []}, ["dtypes"]),
        ({"workload": RATE, "dtypes": ["fp7"]}, ["dtypes", 0]),
        (
            {"workload": {"kind": "model", "name": "gpt2", "sequence": 9}, "deadline_s": 1, "dtypes": ["bf16"]},
            ["dtypes"],
        ),
        ({"workload": {"kind": "model", "name": "gpt2", "sequence": 9}, "deadline_s": 1, "ttft_ms": 9}, ["ttft_ms"]),
    ],
)
def test_bad_input_names_its_field(client: TestClient, body: Body, field: list[str]) -> None:
    assert refusal(client, "/plan", **body) == field


def test_recorded_requests_are_planned_for(client: TestClient) -> None:
    limits = {"ttft_ms": 1500, "tpot_ms": 40}
    plan = ask(client, "/plan", workload=recorded(), **limits)
    assert plan["best"] and plan["rate_per_s"] == pytest.approx(6)
    first = plan["choices"][0]
    workload = recorded() | {"parallelism": first["parallelism"]}
    workload |= {name: value for name, value in first["settings"].items() if name.startswith("max_")}
    alone = client.post("/predict", json={"gpu": first["gpu"], "workload": workload}).json()["predictions"][0]
    assert alone["serving"]["ttft_ms"] == first["serving"]["ttft_ms"]  # the recorded requests themselves
    at_rate = ask(client, "/plan", workload=SERVED | {"load": {"rate_per_s": 6}}, **limits)
    bursts = recorded()
    bursts["load"]["trace"]["arrival_s"] = [10 * (k // 60) for k in range(360)]  # 60 at once, six times
    for harder in (recorded(closer=4), bursts):
        other = ask(client, "/plan", workload=harder, **limits)
        assert other["choices"][0]["cost"]["usd_per_hour"] > first["cost"]["usd_per_hour"]
    assert first["cost"]["usd_per_hour"] <= at_rate["choices"][0]["cost"]["usd_per_hour"]


def test_a_plan_over_all_gpus_is_quick(client: TestClient) -> None:
    ask(client, "/plan", workload=RATE, tpot_ms=40)
    found: Body = {}
    whole = {"workload": RATE, "gpus": "all", "ttft_ms": 500, "tpot_ms": 30}
    assert cpu_s(lambda: found.update(ask(client, "/plan", **whole))) < 8.0
    assert len(found["choices"]) >= 30 and found["skipped"]


def test_saved_plans_and_comparisons_are_derived_again(client: TestClient) -> None:
    for route, body in (("/compare", {"workload": LOOP}), ("/plan", {"workload": RATE, "tpot_ms": 40})):
        saved = ask(client, route, save=True, gpus=GPUS[:2], **body)
        assert client.get(f"/predictions/{saved['id']}").json()["unchanged"] is True
