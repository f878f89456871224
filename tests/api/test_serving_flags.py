"""Flags of clients and schedulers in POST /predict, kind serving."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.test_serving import GPU, SMALL, Body, ask, refusal

RATE: Body = SMALL | {"load": {"rate_per_s": 8.0}}


def served(client: TestClient, workload: Body) -> Body:
    return dict(ask(client, workload)["serving"])


def with_load(**load: Any) -> Body:
    return RATE | {"load": RATE["load"] | load}


def test_arrivals_in_bunches_wait_longer(client: TestClient) -> None:
    assert served(client, with_load(burstiness=1.0)) == (poisson := served(client, RATE))
    assert poisson["settings"]["load"] == {"burstiness": 1.0, "max_concurrency": None}
    bunched, even = (served(client, with_load(burstiness=each)) for each in (0.1, 100.0))
    assert bunched["ttft_ms"]["p99"] > 1.3 * poisson["ttft_ms"]["p99"] > 1.3 * even["ttft_ms"]["p99"]


def test_the_closed_form_of_a_queue_is_kingmans(client: TestClient) -> None:
    """The wait is in proportion to the squared coefficient of variation of the times between arrivals, 1 / shape."""
    at = {
        shape: served(client, with_load(burstiness=shape) | {"method": "closed_form"})["ttft_ms"]["mean"]
        for shape in (1.0, 0.5, 0.25)
    }
    assert at[0.25] - at[0.5] == pytest.approx(2.0 * (at[0.5] - at[1.0]), rel=1e-3)
    assert at[0.5] > at[1.0]


@pytest.mark.parametrize("method", ["simulation", "closed_form"])
def test_clients_at_their_cap_are_a_closed_loop(client: TestClient, method: str) -> None:
    load = {"rate_per_s": 50.0, "max_concurrency": 4}
    capped = ask(client, SMALL | {"method": method, "load": load})
    loop = served(client, SMALL | {"method": method, "load": {"concurrency": 4}})
    figures = capped["serving"]
    assert figures["requests_per_s"] == pytest.approx(loop["requests_per_s"], rel=0.02)
    assert figures["tpot_ms"]["mean"] == pytest.approx(loop["tpot_ms"]["mean"], rel=0.02)
    assert figures["settings"]["load"] == {"burstiness": 1.0, "max_concurrency": 4}
    assert "concurrency_capped" in [one["code"] for one in capped["warning_codes"]]


def test_a_cap_that_no_client_reaches_changes_nothing(client: TestClient) -> None:
    capped, free = (served(client, one) for one in (with_load(max_concurrency=2000), RATE))
    assert {**capped, "settings": None} == {**free, "settings": None}


def test_a_run_that_ends_is_answered_beyond_the_highest_rate(client: TestClient) -> None:
    """Its figures are of all requests, of which the last ones have the engine to themselves."""
    beyond = served(client, RATE)["highest_rate_per_s"] * 5.0
    assert served(client, with_load(rate_per_s=beyond))["saturated"]
    short, long = (served(client, with_load(rate_per_s=beyond, requests=count)) for count in (40, 400))
    at_once = served(client, SMALL | {"load": {"burst": 40}})
    assert short["tpot_ms"]["mean"] < long["tpot_ms"]["mean"] and short["ttft_ms"]["mean"] < long["ttft_ms"]["mean"]
    assert short["ttft_ms"]["mean"] < at_once["ttft_ms"]["mean"]
    assert short["requests_per_s"] < long["requests_per_s"] < 1.1 * long["highest_rate_per_s"]


def test_a_long_run_is_a_load_that_goes_on(client: TestClient) -> None:
    for load, rel in (({"rate_per_s": 4.0}, 0.03), ({"concurrency": 8}, 0.01)):
        steady, run = (served(client, SMALL | {"load": load | more}) for more in ({}, {"requests": 2000}))
        assert run["tpot_ms"]["mean"] == pytest.approx(steady["tpot_ms"]["mean"], rel=rel)
        assert run["requests_per_s"] == pytest.approx(steady["requests_per_s"], rel=0.05)


def test_a_trace_has_a_cap_too(client: TestClient) -> None:
    """Two requests of one client: the second one is sent when the first is answered, and waits for nothing."""
    columns = {"arrival_s": [0.0, 0.0], "input_tokens": [1024, 1024], "output_tokens": [64, 64]}
    workload = {key: value for key, value in SMALL.items() if key not in ("input_tokens", "output_tokens")}
    capped = served(client, workload | {"load": {"trace": columns, "max_concurrency": 1}})
    alone = served(client, SMALL | {"output_tokens": 64, "length_spread": 0.0, "load": {"concurrency": 1}})
    assert capped["e2e_ms"]["mean"] == pytest.approx(alone["e2e_ms"]["mean"], rel=1e-3)


def test_spreads_of_prompts_and_answers_are_their_own(client: TestClient) -> None:
    both = served(client, SMALL | {"length_spread": 0.5})
    assert {**served(client, SMALL | {"input_spread": 0.5, "output_spread": 0.5})} == both
    apart = served(client, SMALL | {"length_spread": 0.5, "output_spread": 0.0})
    assert [apart["settings"][name] for name in ("input_spread", "output_spread")] == [0.5, 0.0]
    # All answers have 256 tokens, not 192 on average.
    per_request = apart["output_tokens_per_s"] / apart["requests_per_s"]
    assert per_request == pytest.approx(256.0)
    assert both["output_tokens_per_s"] / both["requests_per_s"] == pytest.approx(192.0)


def test_an_engine_that_looks_seldom_lets_prompts_wait_half_of_its_interval(client: TestClient) -> None:
    workload = SMALL | {"software": "sglang", "load": {"rate_per_s": 2.0}}
    often = served(client, workload)
    seldom = served(client, workload | {"scheduler": {"recv_interval": 20}})
    wait_ms = seldom["ttft_ms"]["mean"] - often["ttft_ms"]["mean"]
    assert wait_ms == pytest.approx(0.5 * 19 * often["step_ms"]["decode"], rel=0.25)
    form = served(client, workload | {"method": "closed_form", "scheduler": {"recv_interval": 20}})
    assert form["ttft_ms"]["mean"] == pytest.approx(seldom["ttft_ms"]["mean"], rel=0.15)
    assert often["settings"]["scheduler"] == {"recv_interval": 1, "decode_steps": 1, "chunk_tokens": 16384}
    assert seldom["settings"]["scheduler"]["recv_interval"] == 20


def test_the_host_schedules_several_decode_steps_at_once(client: TestClient) -> None:
    """vLLM 0.12 waited 0.4 ms and more for its host in every step, and with rounds of 8 steps in one of 8."""
    workload = SMALL | {"software": "vllm-0.12.0", "load": {"concurrency": 1}}
    each, rounds = (served(client, workload | {"scheduler": {"decode_steps": steps}}) for steps in (1, 8))
    saved_ms = each["tpot_ms"]["mean"] - rounds["tpot_ms"]["mean"]
    host_ms = 0.4 + 0.029 + 0.038 + 0.0099
    assert saved_ms == pytest.approx(7 / 8 * host_ms, rel=0.02)
    assert each["settings"]["scheduler"]["decode_steps"] == 1
    busy = SMALL | {"software": "vllm-0.12.0"}
    assert (
        served(client, busy | {"scheduler": {"decode_steps": 32}})["ttft_ms"]["mean"]
        > 1.5 * served(client, busy)["ttft_ms"]["mean"]
    )


@pytest.mark.parametrize("software", ["vllm", "sglang", "trtllm"])
def test_prompts_are_split_into_chunks(client: TestClient, software: str) -> None:
    workload = SMALL | {"software": software, "input_tokens": 4096, "length_spread": 0.0, "load": {"concurrency": 1}}
    whole, split = (served(client, workload | more) for more in ({}, {"scheduler": {"chunk_tokens": 256}}))
    steps_ms = [each["step_ms"]["mixed"] for each in (whole, split)]
    front_ms = whole["ttft_ms"]["mean"] - steps_ms[0]
    assert split["ttft_ms"]["mean"] == pytest.approx(front_ms + 16 * steps_ms[1], rel=1e-3)
    assert split["ttft_ms"]["mean"] > 1.1 * whole["ttft_ms"]["mean"]
    assert split["settings"]["scheduler"]["chunk_tokens"] == 256 and split["settings"]["chunks_prefill"]


@pytest.mark.parametrize("method", ["simulation", "closed_form"])
def test_tpot_by_either_definition(client: TestClient, method: str) -> None:
    workload = SMALL | {"length_spread": 0.0, "output_tokens": 8, "method": method}
    less_one, whole = (served(client, workload | {"tpot_definition": each}) for each in ("output_minus_one", "output"))
    assert whole["tpot_ms"]["mean"] == pytest.approx(7 / 8 * less_one["tpot_ms"]["mean"])
    assert whole["e2e_ms"]["mean"] == less_one["e2e_ms"]["mean"]
    assert whole["e2e_ms"]["interval"] == pytest.approx(less_one["e2e_ms"]["interval"])
    assert [each["settings"]["tpot_definition"] for each in (less_one, whole)] == ["output_minus_one", "output"]
    assert served(client, workload)["tpot_ms"] == less_one["tpot_ms"]


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"load": {"concurrency": 4, "burstiness": 0.5}}, ["workload", "load", "burstiness"]),
        ({"load": {"burst": 4, "max_concurrency": 2}}, ["workload", "load", "max_concurrency"]),
        ({"load": {"burstiness": 0.5}}, ["workload", "load"]),
        ({"load": {"burst": 4, "requests": 8}}, ["workload", "load", "requests"]),
        ({"load": {"rate_per_s": 1, "requests": 0}}, ["workload", "load", "requests"]),
        ({"load": {"rate_per_s": 1, "requests": 8}, "method": "closed_form"}, ["workload", "load", "requests"]),
        ({"load": {"rate_per_s": 1, "requests": 8}, "output_tokens": 0}, ["workload", "load", "requests"]),
        ({"load": {"rate_per_s": 1, "burstiness": 0}}, ["workload", "load", "burstiness"]),
        ({"scheduler": {"recv_interval": 0}}, ["workload", "scheduler", "recv_interval"]),
        ({"scheduler": {"recv_intervals": 2}}, ["workload", "scheduler", "recv_intervals"]),
        ({"tpot_definition": "input"}, ["workload", "tpot_definition"]),
        ({"output_spread": 1.0}, ["workload", "output_spread"]),
    ],
)
def test_wrong_flags_are_named(client: TestClient, changes: Body, loc: list[str]) -> None:
    assert refusal(client, SMALL | changes)["loc"] == loc


def test_a_plan_is_for_the_whole_rate(client: TestClient) -> None:
    body = {"workload": with_load(max_concurrency=4), "gpus": ["h100-sxm5-80gb"], "ttft_ms": 1000}
    answer = client.post("/plan", json=body)
    assert answer.status_code == 422 and "max_concurrency" in answer.text


REPLICAS: Body = {"tensor": 8, "expert": 8, "attention_data": 8}
MIXTURE: Body = SMALL | {"name": "deepseek-v3", "dtype": "fp8", "software": "sglang", "input_tokens": 8192}


def test_a_prefill_pool_computes_as_many_prompts_as_its_engine(client: TestClient) -> None:
    """An engine of eight replicas that answers with one token bears the rate of such an engine as a pool."""
    on = "h200-sxm-141gb"
    alone = ask(client, MIXTURE | {"output_tokens": 1, "parallelism": REPLICAS}, gpu=on)["serving"]
    decoding = REPLICAS | {"replicas": 4}
    pool = ask(client, MIXTURE | {"parallelism": decoding, "prefill_pool": {"parallelism": REPLICAS}}, gpu=on)[
        "serving"
    ]
    assert pool["highest_rate_per_s"] == pytest.approx(alone["highest_rate_per_s"], rel=0.02)
    full = ask(client, MIXTURE | {"output_tokens": 1, "parallelism": REPLICAS, "load": {"concurrency": 256}}, gpu=on)
    assert pool["highest_rate_per_s"] == pytest.approx(full["serving"]["requests_per_s"], rel=0.1)


def test_replicas_of_attention_share_each_expert(client: TestClient) -> None:
    """SGLang splits experts over all devices of --enable-dp-attention: 671 GB of them fit eight H200."""
    on = "h200-sxm-141gb"
    dealt, split, plain = (
        ask(client, MIXTURE | {"parallelism": way}, gpu=on, detail=True)
        for way in (REPLICAS, {"tensor": 8, "attention_data": 8}, {"tensor": 8})
    )
    weights = [each["memory"]["breakdown"]["weights_bytes"] for each in (dealt, split, plain)]
    assert weights[1] == pytest.approx(weights[0], rel=0.03)
    assert weights[2] < weights[1] < 1.3 * weights[2]  # every replica has attention whole
    # Latent keys, which tensor parallelism copies, are each replica's own.
    limits = [each["serving"]["sequences"]["limit"] for each in (split, plain)]
    assert limits[0] > 3 * limits[1]


def step_ms(client: TestClient, speculative: Body | None, **more: Any) -> float:
    """The decode step of one sequence with this speculative decoding, milliseconds."""
    workload = SMALL | {"load": {"concurrency": 1}, "method": "closed_form"} | more
    return float(served(client, workload | {"speculative": speculative})["step_ms"]["decode"])


def test_drafting_reads_a_layer_and_the_head_for_every_token(client: TestClient) -> None:
    """Bytes of 16 bits over the H100's 3.35 TB/s: at least that long, and not twice as long."""
    layer, head = 4096 * (6144 + 4096 + 3 * 14336), 4096 * 128256
    least_ms = 3 * 2 * (layer + head) / 3.35e12 * 1e3
    drafted = {"tokens": 3, "acceptance": 0.8}
    drafting_ms = step_ms(client, drafted) - step_ms(client, drafted | {"draft_share": 0.0})
    assert least_ms < drafting_ms < 2.0 * least_ms


def test_a_draft_model_takes_its_own_steps(client: TestClient) -> None:
    drafted = {"tokens": 4, "acceptance": 0.8}
    drafting_ms = step_ms(client, drafted | {"draft": "llama-3.2-1b"}) - step_ms(client, drafted | {"draft_share": 0.0})
    own = step_ms(client, None, name="llama-3.2-1b")
    assert drafting_ms == pytest.approx(4 * own, rel=0.05)
    assert step_ms(client, drafted | {"draft": "mtp"}) == step_ms(client, drafted)


def test_verifying_computes_every_drafted_token(client: TestClient) -> None:
    """Attention of five queries reads a long context once; the layers of many sequences compute five tokens each."""
    free = {"draft_share": 0.0, "acceptance": 0.8}
    long = {"input_tokens": 100_000}
    plain, five = (step_ms(client, each, **long) for each in (None, free | {"tokens": 4}))
    assert plain < five < 1.5 * plain
    many = {"input_tokens": 64, "max_sequences": 1024, "load": {"concurrency": 1024}}
    plain, five = (step_ms(client, each, **many) for each in (None, free | {"tokens": 4}))
    assert five > 1.7 * plain


def test_acceptance_by_position(client: TestClient) -> None:
    """The first token is kept in 0.62 of the steps and the second in 0.4: a step gives 2.02."""
    by_position = served(client, SMALL | {"speculative": {"tokens": 2, "acceptance_by_position": [0.62, 0.4, 0.2]}})
    assert by_position["settings"]["speculative"] == {
        "tokens": 2,
        "acceptance_by_position": [0.62, 0.4],
        "tokens_per_step": pytest.approx(2.02),
        "draft": "mtp",
    }
    of_each = served(client, SMALL | {"speculative": {"tokens": 2, "acceptance": 0.5}})
    alike = served(client, SMALL | {"speculative": {"tokens": 2, "acceptance_by_position": [0.5, 0.25]}})
    assert alike == of_each


@pytest.mark.parametrize(
    ("speculative", "field"),
    [
        ({"tokens": 2}, "acceptance"),
        ({"tokens": 2, "acceptance": 0.5, "acceptance_by_position": [0.5, 0.4]}, "acceptance"),
        ({"tokens": 3, "acceptance_by_position": [0.5, 0.4]}, "acceptance_by_position"),
        ({"tokens": 2, "acceptance_by_position": [0.5, 0.6]}, "acceptance_by_position"),
        ({"tokens": 2, "acceptance": 0.5, "draft": "no-such-model"}, "draft"),
        ({"tokens": 2, "acceptance": 0.5, "draft": "llama-3.2-1b", "draft_share": 0.1}, "draft_share"),
    ],
)
def test_wrong_speculation_is_named(client: TestClient, speculative: Body, field: str) -> None:
    assert refusal(client, SMALL | {"speculative": speculative})["loc"] == ["workload", "speculative", field]


def test_a_plan_chooses_how_many_tokens_to_draft(client: TestClient) -> None:
    """Drafts that are mostly refused do not pay, those that are kept do."""
    chosen = []
    for kept in ([0.05, 0.01, 0.0, 0.0], [0.95, 0.9, 0.85, 0.8]):
        workload = SMALL | {"speculative": {"tokens": 4, "acceptance_by_position": kept}, "load": {"rate_per_s": 1.0}}
        body = {"workload": workload, "gpus": [GPU], "tpot_ms": 100.0, "ttft_ms": 2000.0, "max_devices": 1}
        answer = client.post("/plan", json=body)
        assert answer.status_code == 200, answer.text
        chosen.append(answer.json()["choices"][0]["settings"]["speculative_tokens"])
    assert chosen[0] is None and chosen[1] is not None, chosen


CACHED: Body = SMALL | {"input_tokens": 8192, "length_spread": 0.0, "prefix_hit": 0.75, "load": {"concurrency": 1}}


def test_hits_in_the_hosts_memory_are_fetched_over_the_slot(client: TestClient) -> None:
    """Llama-3-8B keeps 128 KiB a token: 6,144 tokens of them at seven tenths of PCIe 4's 31.5 GB/s take 36.5 ms."""
    near = served(client, CACHED)
    far = served(client, CACHED | {"prefix_cache": {"host_bytes": 1e12}})
    fetch_ms = 6144 * 131072 / (0.7 * 31.5e9) * 1e3
    assert far["settings"]["prefix_cache"]["fetch_ms"] == pytest.approx(fetch_ms, rel=0.01)
    assert far["ttft_ms"]["mean"] - near["ttft_ms"]["mean"] == pytest.approx(fetch_ms, rel=0.02)
    missed = served(client, CACHED | {"prefix_hit": 0.0})
    assert near["ttft_ms"]["mean"] < far["ttft_ms"]["mean"] < missed["ttft_ms"]["mean"]
    form = served(client, CACHED | {"method": "closed_form", "prefix_cache": {"host_bytes": 1e12}})
    assert form["ttft_ms"]["mean"] == pytest.approx(far["ttft_ms"]["mean"], rel=0.02)


def test_tiers_hold_hits_in_proportion(client: TestClient) -> None:
    both = served(client, CACHED | {"prefix_cache": {"gpu_bytes": 1e10, "host_bytes": 3e10}})
    tiers = both["settings"]["prefix_cache"]
    assert (tiers["gpu_hit"], tiers["host_hit"]) == pytest.approx((0.1875, 0.5625))
    near = served(client, CACHED)
    # What the devices' cache holds, sequences lack; what is fetched takes memory of its own.
    assert both["kv_cache"]["capacity_bytes"] == pytest.approx(near["kv_cache"]["capacity_bytes"] - 1e10)
    assert both["kv_cache"]["required_bytes"] > 2.0 * near["kv_cache"]["required_bytes"]
    assert near["settings"]["prefix_cache"] is None


def test_a_cache_of_no_size_is_refused(client: TestClient) -> None:
    assert refusal(client, CACHED | {"prefix_cache": {}})["loc"] == ["workload", "prefix_cache"]
