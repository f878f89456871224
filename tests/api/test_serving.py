"""POST /predict, kind serving, as in the HTTP contract."""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.stacks.release import host_times
from app.wire.serving_form import SERVING_EXAMPLE
from tests.busy_machine import cpu_s
from tests.unit.transformers import PUBLISHED, config

Body = dict[str, Any]
GPU = "h100-sxm5-80gb"
SMALL: Body = {
    "kind": "serving",
    "name": "llama-3-8b",
    "dtype": "bf16",
    "software": "vllm",
    "input_tokens": 1024,
    "output_tokens": 256,
    "load": {"concurrency": 16},
}


def ask(client: TestClient, workload: Body, **more: Any) -> Body:
    answer = client.post("/predict", json={"gpu": GPU, "workload": workload, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["predictions"][0])


def refusal(client: TestClient, workload: Body) -> Body:
    answer = client.post("/predict", json={"gpu": GPU, "workload": workload})
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    (error,) = answer.json()["errors"]
    return dict(error)


LONG = SMALL | {"input_tokens": 100_000, "max_batched_tokens": 16, "load": {"concurrency": 65_536}}


@pytest.mark.parametrize(
    ("workload", "gpus"), [(SMALL | {"method": "closed_form"}, [GPU] * 500), (LONG, [GPU] * 4)], ids=["GPUs", "steps"]
)
def test_an_answer_that_takes_over_two_seconds_is_refused(client: TestClient, workload: Body, gpus: list[str]) -> None:
    answer = client.post("/predict", json={"gpus": gpus, "workload": workload})
    assert answer.status_code == 413, answer.text
    detail = answer.json()["detail"]
    assert "1,300,000 steps" in detail and "fewer gpus" in detail


def test_one_gpu_is_answered_under_any_load(client: TestClient) -> None:
    assert "were not answered" in " ".join(ask(client, LONG)["warnings"])


def test_the_contracts_example_and_every_field(client: TestClient) -> None:
    answer = client.post("/predict", json=SERVING_EXAMPLE)
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["predictions"]
    served = found["serving"]
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        one = served[name]
        assert list(one) == ["mean", "p50", "p90", "p99", "interval"]
        assert one["p50"] <= one["p90"] <= one["p99"]
        assert one["interval"]["low"] < one["mean"] < one["interval"]["high"]
        assert one["interval"]["coverage"] == 0.8
    assert found["latency_ms"] == served["e2e_ms"]["mean"]
    assert found["devices"] == 8
    assert served["output_tokens_per_s_per_gpu"] == pytest.approx(served["output_tokens_per_s"] / 8)
    # 0.9 of 1,024 tokens on average.
    assert served["output_tokens_per_s"] == pytest.approx(served["requests_per_s"] * 921.6)
    assert served["requests_per_s"] * found["latency_ms"] == pytest.approx(64e3)  # Little's law
    assert served["sequences"]["mean"] <= 64 < served["sequences"]["limit"]
    assert 0 < served["kv_cache"]["required_bytes"] < served["kv_cache"]["capacity_bytes"] < 80 * 2**30
    assert served["step_ms"]["decode"] < served["step_ms"]["mixed"]
    assert served["saturated"] is False and served["saturated_by"] is None
    assert served["highest_rate_per_s"] > served["requests_per_s"]
    assert sum(part["share"] for part in found["breakdown"]) == pytest.approx(1)
    assert found["memory"]["fits"] is True


def test_settings_that_are_left_out_are_the_stacks_defaults(client: TestClient) -> None:
    settings = ask(client, SMALL)["serving"]["settings"]
    assert settings["software"] == "vllm"
    assert (settings["max_batched_tokens"], settings["max_sequences"], settings["memory_share"]) == (8192, 1024, 0.9)
    small = client.post("/predict", json={"gpu": "nvidia-l4", "workload": SMALL}).json()["predictions"][0]
    assert small["serving"]["settings"]["max_batched_tokens"] == 2048
    given = ask(client, SMALL | {"max_batched_tokens": 512, "max_sequences": 4, "memory_share": 0.5})["serving"]
    assert (given["settings"]["max_batched_tokens"], given["settings"]["max_sequences"]) == (512, 4)
    assert given["sequences"]["limit"] == 4
    sglang = ask(client, SMALL | {"software": "sglang-0.5"})["serving"]["settings"]
    assert sglang["mixes_prefill"] is False


def test_prompts_that_wait_for_others_have_their_first_token_later(client: TestClient) -> None:
    load: Body = {"load": {"rate_per_s": 4}}
    plain, waiting = (
        ask(client, SMALL | load)["serving"],
        ask(client, SMALL | load | {"prefill_wait_steps": 40})["serving"],
    )
    assert plain["settings"]["prefill_wait_steps"] == 0
    assert (waiting["settings"]["prefill_wait_steps"], waiting["settings"]["prefill_wait_tokens"]) == (40, None)
    longest = 40 * waiting["step_ms"]["decode"]
    assert 0.5 * longest < waiting["ttft_ms"]["mean"] - plain["ttft_ms"]["mean"] < longest
    few = ask(client, SMALL | load | {"prefill_wait_steps": 40, "prefill_wait_tokens": 1024})["serving"]
    assert plain["ttft_ms"]["mean"] < few["ttft_ms"]["mean"] < waiting["ttft_ms"]["mean"]
    replicas: Body = {"software": "trtllm", "parallelism": {"tensor": 2, "attention_data": 2}}
    assert ask(client, SMALL | replicas)["serving"]["settings"]["prefill_wait_steps"] == 50


def test_one_request_alone_takes_a_decode_step_for_every_token(client: TestClient) -> None:
    served = ask(client, SMALL | {"load": {"concurrency": 1}, "length_spread": 0})["serving"]
    model: Body = {"kind": "model", "name": "llama-3-8b", "dtype": "bf16", "software": "vllm", "batch": 1}
    decode = ask(client, model | {"mode": "decode", "sequence": 1024 + 128})
    prefill = ask(client, model | {"mode": "prefill", "sequence": 1024})
    host = host_times()["vllm"]
    front_ms = 1e3 * (host.request_s + host.serial_s + 1024 * host.serial_token_s)
    assert served["tpot_ms"]["mean"] == pytest.approx(decode["latency_ms"] + 1e3 * host.step_s, rel=0.05)
    assert served["ttft_ms"]["mean"] == pytest.approx(front_ms + host.prefill * prefill["latency_ms"], rel=0.05)


def test_the_loads(client: TestClient) -> None:
    calm = ask(client, SMALL | {"load": {"rate_per_s": 2}})["serving"]
    busy = ask(client, SMALL | {"load": {"rate_per_s": 10}})["serving"]
    assert calm["requests_per_s"] == 2
    assert calm["tpot_ms"]["mean"] < busy["tpot_ms"]["mean"]
    assert calm["sequences"]["mean"] < busy["sequences"]["mean"]
    few, many = (ask(client, SMALL | {"load": {"burst": n}})["serving"] for n in (4, 64))
    assert few["ttft_ms"]["mean"] < many["ttft_ms"]["mean"]
    columns: Body = {"arrival_s": [0, 0.1, 20], "input_tokens": [100, 4000, 100], "output_tokens": [10, 1, 50]}
    traced = {name: value for name, value in SMALL.items() if name not in ("input_tokens", "output_tokens")}
    served = ask(client, traced | {"load": {"trace": columns}})["serving"]
    assert served["ttft_ms"]["p99"] > 3 * served["ttft_ms"]["p50"]


def test_a_rate_that_is_too_high_is_saturated(client: TestClient) -> None:
    found = ask(client, SMALL | {"load": {"rate_per_s": 10_000}})
    served = found["serving"]
    assert served["saturated"] is True
    assert served["saturated_by"] in ("kv_cache", "max_sequences", "prefill", "host")
    assert found["latency_ms"] is found["interval_ms"] is served["ttft_ms"] is served["tpot_ms"] is None
    below = SMALL | {"load": {"rate_per_s": 0.95 * served["highest_rate_per_s"]}}
    assert ask(client, below)["serving"]["saturated"] is False


@pytest.mark.parametrize("pool", [{}, {"prefill_pool": {"replicas": 3}}])
def test_near_the_highest_rate_a_full_engine_answers_and_is_known_less_well(client: TestClient, pool: Body) -> None:
    small = SMALL | pool
    most = ask(client, small | {"load": {"rate_per_s": 10_000}})["serving"]["highest_rate_per_s"]
    calm, busy, over = (ask(client, small | {"load": {"rate_per_s": share * most}}) for share in (0.3, 0.95, 1.05))
    assert over["serving"]["saturated"] is False
    assert over["serving"]["requests_per_s"] < 1.05 * most
    assert over["serving"]["tpot_ms"]["mean"] > busy["serving"]["tpot_ms"]["mean"]
    assert [any(each["code"] == "near_capacity" for each in one["warning_codes"]) for one in (busy, over)] == [
        False,
        True,
    ]
    widths = [
        log(one["serving"]["tpot_ms"]["interval"]["high"] / one["serving"]["tpot_ms"]["interval"]["low"])
        for one in (calm, busy)
    ]
    assert widths[1] > 1.5 * widths[0]


def test_a_token_over_the_highest_rate_takes_as_long_as_with_every_place_taken(client: TestClient) -> None:
    served = ask(client, SMALL | {"load": {"rate_per_s": 10_000}})["serving"]
    most, places = served["highest_rate_per_s"], served["sequences"]["limit"]
    over, below, full = (
        ask(client, SMALL | {"method": "closed_form", "load": load})["serving"]
        for load in ({"rate_per_s": 1.02 * most}, {"rate_per_s": 0.98 * most}, {"concurrency": places})
    )
    assert over["tpot_ms"]["mean"] == pytest.approx(full["tpot_ms"]["mean"], rel=1e-3)
    assert over["ttft_ms"]["mean"] == pytest.approx(below["ttft_ms"]["mean"], rel=1e-3)
    assert over["sequences"]["mean"] == places > below["sequences"]["mean"]


def test_the_parts_of_a_width_add_up_in_squares(client: TestClient) -> None:
    most = ask(client, SMALL | {"load": {"rate_per_s": 10_000}})["serving"]["highest_rate_per_s"]
    for load in ({"concurrency": 8}, {"rate_per_s": 0.95 * most}):
        served = ask(client, SMALL | {"load": load}, detail=True)["serving"]
        for figure in (served["tpot_ms"], served["ttft_ms"]):
            mean, interval = figure["mean"], figure["interval"]
            wider = max(log(mean / interval["low"]), log(interval["high"] / mean))
            assert sqrt(sum(part["half_width"] ** 2 for part in figure["width"])) == pytest.approx(wider, rel=1e-6)


def test_the_highest_rate_does_not_depend_on_the_load(client: TestClient) -> None:
    rates = [
        ask(client, SMALL | {"load": {"concurrency": concurrency}})["serving"]["highest_rate_per_s"]
        for concurrency in (1, 8, 200)
    ]
    assert rates == [pytest.approx(rates[0], rel=1e-9)] * 3


def test_a_model_that_leaves_no_memory_is_saturated_and_does_not_fit(client: TestClient) -> None:
    found = ask(client, SMALL | {"name": "llama-3.1-70b"})
    assert found["memory"]["fits"] is False
    assert found["serving"]["saturated_by"] == "kv_cache"
    assert found["serving"]["highest_rate_per_s"] == 0
    assert any("split the model" in warning for warning in found["warnings"])


def test_replicas_share_the_load(client: TestClient) -> None:
    load: Body = {"load": {"rate_per_s": 4}}
    one = ask(client, SMALL | load)["serving"]
    two = ask(client, SMALL | {"load": {"rate_per_s": 8}, "parallelism": {"replicas": 2}})
    assert two["devices"] == 2
    assert two["serving"]["tpot_ms"]["mean"] == pytest.approx(one["tpot_ms"]["mean"], rel=0.05)
    assert two["serving"]["highest_rate_per_s"] == pytest.approx(2 * one["highest_rate_per_s"], rel=0.05)


def test_speculation_and_cached_prefixes_help(client: TestClient) -> None:
    plain = ask(client, SMALL)["serving"]
    drafted = ask(client, SMALL | {"speculative": {"tokens": 3, "acceptance": 0.8}})["serving"]
    assert 0.3 < drafted["tpot_ms"]["mean"] / plain["tpot_ms"]["mean"] < 0.75
    cached = ask(client, SMALL | {"prefix_hit": 0.9})["serving"]
    assert cached["ttft_ms"]["mean"] < 0.8 * plain["ttft_ms"]["mean"]


def test_engines_of_their_own_for_prompts_leave_decoding_undisturbed(client: TestClient) -> None:
    load: Body = {"load": {"rate_per_s": 12}}
    mixed = ask(client, SMALL | load | {"parallelism": {"replicas": 2}})
    apart = ask(client, SMALL | load | {"prefill_pool": {"parallelism": {"tensor": 1}, "replicas": 1}})
    assert mixed["devices"] == apart["devices"] == 2
    assert apart["serving"]["tpot_ms"]["p99"] < mixed["serving"]["tpot_ms"]["p99"]
    loop = ask(client, SMALL | {"prefill_pool": {"replicas": 1}})["serving"]
    assert loop["requests_per_s"] * loop["e2e_ms"]["mean"] == pytest.approx(16e3, rel=0.1)
    form = ask(client, SMALL | {"prefill_pool": {"replicas": 1}, "method": "closed_form"})["serving"]
    assert form["tpot_ms"]["mean"] == pytest.approx(loop["tpot_ms"]["mean"], rel=0.1)
    busy = ask(client, SMALL | {"prefill_pool": {"replicas": 1}, "load": {"rate_per_s": 1000}})["serving"]
    assert busy["saturated"] is True


@pytest.mark.parametrize(
    "change",
    [
        {"name": "deepseek-v3", "dtype": "fp8_block", "parallelism": {"tensor": 16, "expert": 16, "attention_data": 8}},
        {"name": "gemma-2-2b"},
        {"name": "mixtral-8x7b", "parallelism": {"tensor": 2, "pipeline": 2}},
        {"name": "qwen3-30b-a3b", "dtype": None, "parallelism": {"tensor": 4, "nodes": 2}},
        {"name": "gpt2", "input_tokens": 512, "output_tokens": 512},
    ],
    ids=lambda change: str(change["name"]),
)
def test_models_and_splits(client: TestClient, change: Body) -> None:
    served = ask(client, SMALL | change)["serving"]
    assert 0 < served["tpot_ms"]["mean"] < 100
    assert served["ttft_ms"]["mean"] > served["tpot_ms"]["mean"]


def test_the_closed_form_has_means_alone(client: TestClient) -> None:
    form, simulated = (ask(client, SMALL | {"method": name})["serving"] for name in ("closed_form", "simulation"))
    assert form["ttft_ms"]["p50"] is form["tpot_ms"]["p99"] is None
    assert form["tpot_ms"]["mean"] == pytest.approx(simulated["tpot_ms"]["mean"], rel=0.05)
    assert form["method"] == "closed_form"


def test_answers_are_deterministic(client: TestClient) -> None:
    assert ask(client, SMALL) == ask(client, SMALL)
    assert ask(client, SMALL | {"seed": 1})["serving"] != ask(client, SMALL)["serving"]


def test_engines_serve_in_16_bits_or_the_published_format(client: TestClient) -> None:
    plain = {name: value for name, value in SMALL.items() if name != "dtype"}
    assert ask(client, plain)["serving"] == ask(client, SMALL)["serving"]
    published = config("llama-3-8b") | {
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    }
    blocks = {name: value for name, value in plain.items() if name != "name"} | {"config": published}
    assert ask(client, blocks)["serving"] == ask(client, blocks | {"dtype": "fp8"})["serving"]


EMBEDDED: Body = {"kind": "serving", "software": "vllm", "input_tokens": 512, "length_spread": 0.0}


@pytest.mark.parametrize(
    ("name", "more"),
    [("bge-m3", {}), ("bge-reranker-v2-m3", {"output_tokens": 0}), ("qwen3-embedding-8b", {"output_tokens": 0})],
)
@pytest.mark.parametrize("load", [{"concurrency": 32}, {"rate_per_s": 5}, {"burst": 32}])
def test_embeddings_are_served_by_batches_of_prompts(client: TestClient, name: str, more: Body, load: Body) -> None:
    def answer(workload: Body) -> Body:
        sent = client.post("/predict", json={"gpu": "nvidia-l4", "workload": workload}).raise_for_status()
        return dict(sent.json()["predictions"][0])

    found = answer(EMBEDDED | {"name": name, "load": load} | more)
    served = found["serving"]
    assert found["latency_ms"] == pytest.approx(served["ttft_ms"]["mean"])  # a prompt's end is its answer
    assert served["tpot_ms"] is None and served["step_ms"]["decode"] is None
    assert served["output_tokens_per_s"] == served["requests_per_s"]  # an embedding is one
    assert found["bound"] == "compute" or "rate_per_s" in load
    # Batches of all prompts in flight are no quicker, and a server no quicker than its products.
    step = {"kind": "model", "name": name, "batch": 32, "sequence": 512, "software": "vllm"}
    together_s = answer(step)["latency_ms"] / 1e3
    assert 0.6 * 32 / together_s < served["highest_rate_per_s"] < 1.4 * 32 / together_s


@pytest.mark.parametrize(
    ("name", "load"), [("deepseek-v3", {"concurrency": 64}), ("bge-m3", {"rate_per_s": 1e6}), ("bge-m3", {"burst": 1})]
)
def test_embeddings_that_do_not_fit_or_are_saturated_are_answered(client: TestClient, name: str, load: Body) -> None:
    workload = EMBEDDED | {"name": name, "output_tokens": 0, "load": load}
    client.post("/predict", json={"gpus": "all", "workload": workload}).raise_for_status()


def test_all_gpus_are_answered(client: TestClient) -> None:
    answer = client.post("/predict", json={"gpus": "all", "workload": SMALL | {"dtype": "fp8"}}).json()
    assert len(answer["predictions"]) > 5 and answer["skipped"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"software": "pytorch-2.1"}, ["software"]),
        ({"software": "pytorch-2.1"}, ["software"]),
        ({"load": {}}, ["load"]),
        ({"load": {"concurrency": 1, "rate_per_s": 1}}, ["load"]),
        ({"load": {"concurrency": 0}}, ["load", "concurrency"]),
        ({"load": {"rate_per_s": -1}}, ["load", "rate_per_s"]),
        ({"load": {"concurrency": 2.5}}, ["load", "concurrency"]),
        ({"input_tokens": None}, ["input_tokens"]),
        ({"output_tokens": None}, ["output_tokens"]),
        ({"input_tokens": 0}, ["input_tokens"]),
        ({"length_spread": 1}, ["length_spread"]),
        ({"prefix_hit": 1}, ["prefix_hit"]),
        ({"max_batched_tokens": 1}, ["max_batched_tokens"]),
        ({"memory_share": 0}, ["memory_share"]),
        ({"prefill_wait_steps": -1}, ["prefill_wait_steps"]),
        ({"prefill_wait_tokens": 0}, ["prefill_wait_tokens"]),
        ({"speculative": {"tokens": 0, "acceptance": 0.5}}, ["speculative", "tokens"]),
        ({"speculative": {"tokens": 2, "acceptance": 1.5}}, ["speculative", "acceptance"]),
        ({"parallelism": {"tensor": 3}}, ["parallelism", "tensor"]),
        ({"parallelism": {"tensor": 8, "attention_data": 3}}, ["parallelism", "attention_data"]),
        ({"parallelism": {"data": 2}}, ["parallelism", "data"]),
        ({"name": "resnet50"}, ["name"]),
        ({"name": "bert-base"}, ["output_tokens"]),
        ({"output_tokens": 0, "speculative": {"tokens": 2, "acceptance": 0.5}}, ["speculative"]),
        ({"output_tokens": 0, "prefill_pool": {}}, ["prefill_pool"]),
        ({"output_tokens": -1}, ["output_tokens"]),
        ({"name": "t5-base"}, ["name"]),
        ({"name": "no-such-model"}, ["name"]),
        ({"name": "gpt2", "input_tokens": 1000, "output_tokens": 500}, ["input_tokens"]),
        ({"config": {"model_type": "gpt2"}}, ["config"]),
        ({"method": "guess"}, ["method"]),
        ({"prefill_pool": {"parallelism": {"tensor": 3}}}, ["prefill_pool", "parallelism", "tensor"]),
        ({"prefill_pool": {}, "load": {"burst": 3}}, ["load"]),
        ({"load": {"trace": {"arrival_s": [0], "input_tokens": [1], "output_tokens": [1]}}}, ["input_tokens"]),
    ],
)
def test_bad_input_names_its_field(client: TestClient, change: Body, field: list[str]) -> None:
    assert refusal(client, SMALL | change)["loc"] == ["workload", *field]


def test_columns_of_a_trace_have_one_length(client: TestClient) -> None:
    traced = {name: value for name, value in SMALL.items() if name not in ("input_tokens", "output_tokens")}
    columns: Body = {"arrival_s": [0, 1], "input_tokens": [1], "output_tokens": [1, 2]}
    assert refusal(client, traced | {"load": {"trace": columns}})["loc"] == [
        "workload",
        "load",
        "trace",
        "input_tokens",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"load": {"concurrency": 65536}, "input_tokens": 4, "output_tokens": 2000, "parallelism": {"replicas": 1}},
        {"input_tokens": 2_000_000, "output_tokens": 1000, "max_batched_tokens": 16, "load": {"burst": 60_000}},
        {"input_tokens": 1, "output_tokens": 2_000_000, "load": {"rate_per_s": 0.001}},
        {"load": {"rate_per_s": 1e-6}},
    ],
)
def test_no_request_takes_long(client: TestClient, change: Body) -> None:
    ask(client, SMALL)
    assert cpu_s(lambda: ask(client, SMALL | {"name": "qwen3-4b"} | change)) < 4.0


def test_a_saved_answer_is_derived_again(client: TestClient) -> None:
    saved = client.post("/predict", json={"gpu": GPU, "workload": SMALL, "save": True}).json()
    found = client.get(f"/predictions/{saved['id']}")
    assert found.status_code == 200, found.text
    assert found.json()["unchanged"] is True


def test_bad_config_is_named(client: TestClient) -> None:
    broken = config("llama-3-8b", num_hidden_layers="many")
    workload = {name: value for name, value in SMALL.items() if name != "name"} | {"config": broken}
    assert refusal(client, workload)["loc"][:3] == ["workload", "config", "num_hidden_layers"]


def spread(served: Body, name: str) -> float:
    return float(served["serving"][name]["interval"]["high"] / served["serving"][name]["mean"])


def test_a_stack_or_version_that_nobody_measured_is_answered_as_vllm_and_wider(client: TestClient) -> None:
    known, version, stack = (ask(client, SMALL | {"software": name}) for name in ("vllm", "vllm-0.21", "lmdeploy-0.7"))
    assert known["latency_ms"] == pytest.approx(version["latency_ms"]) == pytest.approx(stack["latency_ms"])
    for name in ("ttft_ms", "tpot_ms"):
        assert spread(known, name) < spread(version, name) < spread(stack, name)
    assert any("no such version was measured" in warning for warning in version["warnings"])
    assert any("timed as vllm" in warning for warning in stack["warnings"])
    assert not any("measured (" in warning for warning in known["warnings"])


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_steps_of_such_stacks_are_wider_too(client: TestClient, mode: str) -> None:
    step = {"kind": "model", "name": "llama-3-8b", "dtype": "bf16", "mode": mode, "batch": 4, "sequence": 1024}
    known, doubted = (ask(client, step | {"software": name}) for name in ("vllm-0.24", "lmdeploy-0.7"))
    assert known["latency_ms"] == pytest.approx(doubted["latency_ms"])
    assert known["interval_ms"]["high"] < doubted["interval_ms"]["high"]
    assert known["interval_ms"]["low"] > doubted["interval_ms"]["low"]
    assert any("timed as vllm" in warning for warning in doubted["warnings"])


def test_exchanges_of_experts_are_communication(client: TestClient) -> None:
    mixture = next(config for config, _ in PUBLISHED.values() if config["model_type"] == "deepseek_v3")
    step = {"kind": "model", "config": mixture, "dtype": "fp8_block", "mode": "decode", "batch": 64, "sequence": 1024}
    split = {"tensor": 8, "attention_data": 8, "expert": 8}
    found = ask(client, step | {"software": "sglang", "parallelism": split}, detail=True)
    lines = {line["group"]: line for line in found["breakdown"]}
    assert lines["expert_exchange"]["latency_ms"] == pytest.approx(found["phases_ms"]["communication"])
    assert lines["expert_exchange"]["operators"] == 2 * lines["moe"]["operators"]
    assert sum(line["latency_ms"] for line in lines.values()) == pytest.approx(found["latency_ms"])
    assert {"expert_dispatch", "expert_combine"} <= {row["name"] for row in found["operators"]}


def test_embeddings_are_compared_planned_and_asked_of_by_gateways(client: TestClient) -> None:
    workload = EMBEDDED | {"name": "bge-m3", "load": {"rate_per_s": 20}}
    body = {"gpus": ["nvidia-l4", "tesla-t4"], "workload": workload, "rank_by": "tokens_per_s_per_gpu"}
    compared = client.post("/compare", json=body)
    assert compared.status_code == 200, compared.text
    planned = client.post("/plan", json={"gpus": ["nvidia-l4"], "workload": workload, "ttft_ms": 500, "tpot_ms": 50})
    assert planned.status_code == 200, planned.text
    measured = {
        "gpu": "nvidia-l4",
        "software": "vllm-0.19.0",
        "source": "mine",
        "latency_ms": 50.0,
        "workload": workload,
    }
    sent = client.post("/measurements", json=[measured | {"serving": {"ttft_ms": 50.0, "tpot_ms": 0.1}}])
    assert sent.status_code < 500, sent.text
    assert client.delete("/measurements?source=mine").status_code == 200
