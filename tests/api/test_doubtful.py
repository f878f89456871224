"""Doubtful measurements: shown, used for nothing until they are confirmed; uploads and contributors withdrawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from app.config import Settings
from app.main import create_app
from app.services.learning.retrain import measured_gpus
from app.services.measurements import doubts
from app.store import keys
from app.store.roles import Role
from app.store.session import Database
from tests.kernels_data import SAXPY

LINEAR = {"kind": "operator", "op": "linear", "m": 1024, "n": 4096, "k": 1024, "dtype": "fp32"}
MODEL = {"kind": "model", "name": "resnet18", "mode": "inference", "batch": 8, "image_size": 224, "dtype": "fp32"}
NAMES = ("admin", "good", "bad")
Clients = dict[str, TestClient]


@pytest.fixture(scope="module")
def ids(database: Database) -> dict[str, tuple[int, str]]:
    """Ids and secrets of an admin's key and of two contributors'."""
    made = {}
    with database.begin() as connection:
        for name in NAMES:
            key, secret = keys.create(connection, name, Role.ADMIN if name == "admin" else Role.CONTRIBUTE)
            made[name] = (key.id, secret)
    return made


@pytest.fixture(scope="module")
def application(settings: Settings, ids: dict[str, tuple[int, str]]) -> Iterator[TestClient]:
    strict = replace(settings, doubtful_factor=30.0, keys="on", rate_limit="off")
    with TestClient(create_app(strict), raise_server_exceptions=True) as running:
        yield running


@pytest.fixture
def clients(application: TestClient, ids: dict[str, tuple[int, str]]) -> Clients:
    """Clients by the name of their key, on a service without measurements."""
    made = {
        name: TestClient(application.app, headers={"Authorization": f"Bearer {secret}"}, raise_server_exceptions=True)
        for name, (_, secret) in ids.items()
    }
    made["admin"].delete("/measurements", params={"gpu": "titan-v"}).raise_for_status()
    return made


def expected_ms(client: TestClient, workload: dict[str, Any], gpu: str = "titan-v") -> float:
    """The time that is predicted."""
    if workload["kind"] == "operator":
        workload = {"kind": "operators", "operators": [{k: v for k, v in workload.items() if k != "kind"}]}
    answer = client.post("/predict", json={"gpu": gpu, "workload": workload}).raise_for_status()
    return float(answer.json()["predictions"][0]["latency_ms"])


def row(workload: dict[str, Any], latency_ms: float, source: str = "test") -> dict[str, Any]:
    return {
        "gpu": "titan-v",
        "software": "pytorch-2.1",
        "source": source,
        "latency_ms": latency_ms,
        "workload": workload,
        "runs": 3,
        "measured_at": "2026-01-02T03:04:05+00:00",
    }


def sent(client: TestClient, *rows: dict[str, Any]) -> dict[str, Any]:
    report: dict[str, Any] = client.post("/measurements", json=list(rows)).raise_for_status().json()
    return report


def listed(client: TestClient, **filters: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.get("/measurements", params=filters).raise_for_status().json()["items"]
    return items


@pytest.mark.parametrize("workload", [LINEAR, {**SAXPY, "measured": []}, MODEL], ids=["operator", "kernel", "model"])
@pytest.mark.parametrize("factor", [50.0, 20.0])
def test_a_row_far_from_what_is_expected_is_used_once_it_is_confirmed(
    clients: Clients, database: Database, workload: dict[str, Any], factor: float
) -> None:
    admin, good = clients["admin"], clients["good"]
    before = expected_ms(good, workload)
    wrong = row(workload, factor * before)
    report = sent(good, wrong)
    doubtful = factor > 30
    assert (report["inserted"], report["doubtful"]) == ((0, 1) if doubtful else (1, 0))
    (item,) = listed(good, gpu="titan-v")
    assert item["latency_ms"] == pytest.approx(factor * before)
    assert item["upload_id"] == report["upload_id"]
    if not doubtful:
        assert "doubtful" not in item
        assert expected_ms(good, workload) != pytest.approx(before)
        return
    (doubt,) = report["doubts"]
    assert doubt["loc"] == [0, "latency_ms"] and "50 times the expected" in doubt["msg"]
    assert item["doubtful"] == {"expected_ms": pytest.approx(before)}
    assert expected_ms(good, workload) == before, "no exact hit, nor evidence"
    with database.begin() as connection:
        assert measured_gpus(connection, "auto") == set(), "nothing is learned"
    assert sent(good, wrong)["unchanged"] == 1
    assert good.post("/measurements/confirm", params={"upload": report["upload_id"]}).status_code == 403
    assert admin.post("/measurements/confirm").status_code == 422
    confirmed = admin.post("/measurements/confirm", params={"upload": report["upload_id"]}).raise_for_status().json()
    assert confirmed == {"rows": 1, "dry_run": False}
    (item,) = listed(good, gpu="titan-v")
    assert "doubtful" not in item
    assert item["measured_at"].startswith("2026-01-02T03:04:05") and item["runs"] == 3
    assert expected_ms(good, workload) > 2 * before
    assert sent(good, wrong)["unchanged"] == 1, "a confirmed row is not in doubt again"


SERVED = {
    "kind": "serving",
    "name": "llama-3-8b",
    "dtype": "bf16",
    "software": "vllm-0.19.0",
    "input_tokens": 512,
    "output_tokens": 64,
}


def served(client: TestClient, concurrency: int) -> dict[str, Any]:
    """The prediction of a load."""
    body = {"gpu": "h100-sxm5-80gb", "workload": SERVED | {"load": {"concurrency": concurrency}}}
    answer = client.post("/predict", json=body, headers={"cache-control": "no-cache"}).raise_for_status()
    return dict(answer.json()["predictions"][0])


def measured_load(client: TestClient, concurrency: int, request_factor: float, token_factor: float) -> dict[str, Any]:
    """A load measured so many times longer than it is predicted."""
    predicted = served(client, concurrency)
    times = predicted["serving"]
    workload = {name: value for name, value in SERVED.items() if name != "software"}
    return row(workload | {"load": {"concurrency": concurrency}}, request_factor * predicted["latency_ms"]) | {
        "gpu": "h100-sxm5-80gb",
        "software": SERVED["software"],
        "serving": {"ttft_ms": times["ttft_ms"]["mean"], "tpot_ms": token_factor * times["tpot_ms"]["mean"]},
    }


@pytest.fixture
def unmeasured(clients: Clients) -> Iterator[Clients]:
    """The clients, on a service without measured loads before and after."""
    clients["admin"].delete("/measurements", params={"kind": "serving"}).raise_for_status()
    yield clients
    clients["admin"].delete("/measurements", params={"kind": "serving"}).raise_for_status()


@pytest.mark.parametrize(("request_factor", "token_factor"), [(1000.0, 1000.0), (1.0, 0.01)])
def test_a_served_load_far_from_what_is_expected_moves_nothing(
    unmeasured: Clients, request_factor: float, token_factor: float
) -> None:
    good = unmeasured["good"]
    before, beside = served(good, 4), served(good, 8)
    report = sent(good, measured_load(good, 4, request_factor, token_factor))
    assert (report["inserted"], report["doubtful"]) == (0, 1)
    assert served(good, 4) == before
    assert served(good, 8) == beside


def test_a_large_shift_needs_a_second_upload_and_its_width_is_that_of_its_evidence(unmeasured: Clients) -> None:
    good, bad = unmeasured["good"], unmeasured["bad"]
    loads = {concurrency: measured_load(good, concurrency, 5.0, 5.0) for concurrency in (4, 6)}
    beside = served(good, 8)["serving"]["tpot_ms"]
    assert sent(good, loads[4])["inserted"] == 1
    assert served(good, 4)["support"] == "measured"
    assert served(good, 8)["serving"]["tpot_ms"] == beside, "one upload alone moves no other load fivefold"
    assert sent(bad, loads[6])["inserted"] == 1
    shifted = served(good, 8)["serving"]["tpot_ms"]
    assert shifted["mean"] > 2.0 * beside["mean"]
    assert shifted["interval"]["high"] > 5.0 * beside["mean"], "it holds what was measured"


@pytest.mark.parametrize(("factor", "doubtful"), [(200.0, 0), (1000.0, 1)])
def test_a_cpu_may_be_far_slower_than_a_model_of_gpus_expects(clients: Clients, factor: float, doubtful: int) -> None:
    admin = clients["admin"]
    cpu = {"kind": "cpu", "name": "Cpu", "architecture": "CPU", "sm_count": 1, "fp32_lanes_per_sm": 16}
    figures = {"boost_clock_hz": 3e9, "memory_bytes": 8e9, "memory_bandwidth_bytes_per_s": 5e11, "l2_bytes": 1e6}
    peaks = {"fp32": 9.6e10}
    admin.post("/gpus", json=cpu | figures | {"l2_bandwidth_bytes_per_s": 4e13, "peak_flops": peaks})
    pool = {"kind": "operator", "op": "max_pool2d", "b": 8, "channels": 64, "input_size": 43, "kernel_size": 2}
    pool |= {"stride": 1, "dtype": "fp32"}
    right = expected_ms(admin, pool, "cpu")
    assert sent(admin, row(pool, factor * right) | {"gpu": "cpu"})["doubtful"] == doubtful
    admin.delete("/measurements", params={"gpu": "cpu"}).raise_for_status()


def test_listings_choose_doubtful_rows_and_page_over_all(clients: Clients) -> None:
    good = clients["good"]
    right = expected_ms(good, LINEAR)
    sizes = [LINEAR | {"m": 1024 + 8 * k} for k in range(6)]
    report = sent(good, *(row(size, right * (100 if k % 2 else 1)) for k, size in enumerate(sizes)))
    assert (report["inserted"], report["doubtful"]) == (3, 3)
    assert len(listed(good, gpu="titan-v", doubtful=True)) == len(listed(good, gpu="titan-v", doubtful=False)) == 3
    found, after = [], None
    while True:
        params = {"gpu": "titan-v", "limit": 2} | ({} if after is None else {"after": after})
        page = good.get("/measurements", params=params).raise_for_status().json()
        found += [item["id"] for item in page["items"]]
        if (after := page.get("next")) is None:
            break
    assert len(found) == len(set(found)) == 6


def test_an_upload_is_deleted_and_others_stay(clients: Clients) -> None:
    good, admin = clients["good"], clients["admin"]
    right = expected_ms(good, LINEAR)
    first = sent(good, row(LINEAR, right), row({**SAXPY, "measured": []}, expected_ms(good, SAXPY)))
    second = sent(good, row(LINEAR | {"m": 2048}, 2 * right), row(LINEAR | {"m": 4096}, 400 * right))
    assert (second["inserted"], second["doubtful"]) == (1, 1)
    gone = admin.delete("/measurements", params={"upload": second["upload_id"]}).raise_for_status().json()
    assert gone["rows"] == 2
    assert {item["upload_id"] for item in listed(good, gpu="titan-v")} == {first["upload_id"]}
    answer = good.post("/predict", json={"gpu": "titan-v", "workload": linears(2048)}).json()["predictions"][0]
    assert answer["support"] != "measured"
    third = sent(good, row(LINEAR | {"m": 2048}, 2.5 * right))
    assert third["inserted"] == 1
    assert expected_ms(good, LINEAR | {"m": 2048}) == pytest.approx(2.5 * right), "as many rows as before, but others"


def linears(m: int) -> dict[str, Any]:
    operator = {name: value for name, value in LINEAR.items() if name != "kind"} | {"m": m}
    return {"kind": "operators", "operators": [operator]}


def test_a_contributor_is_withdrawn(clients: Clients, ids: dict[str, tuple[int, str]]) -> None:
    good, bad, admin = clients["good"], clients["bad"], clients["admin"]
    right = expected_ms(good, LINEAR)
    kept = sent(good, row(LINEAR, right))
    for m in (512, 2048):
        sent(bad, row(LINEAR | {"m": m}, right * m / 1024 * 2), row(LINEAR | {"m": m + 8}, 90 * right))
    bad_id = ids["bad"][0]
    assert [one["key_id"] for one in admin.get("/uploads").json()["items"]][:3] == [bad_id, bad_id, ids["good"][0]]
    assert len(listed(admin, key=bad_id)) == 4
    assert bad.delete("/measurements", params={"key": bad_id}).status_code == 403
    assert admin.delete("/measurements", params={"key": bad_id}).raise_for_status().json()["rows"] == 4
    assert [item["upload_id"] for item in listed(admin, gpu="titan-v")] == [kept["upload_id"]]


def test_a_file_in_a_wrong_unit_is_refused(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts, "MOST_DOUBTFUL", 2)
    good = clients["good"]
    right = expected_ms(good, LINEAR)
    rows = [row(LINEAR | {"m": 1024 + 8 * k}, 1000 * right) for k in range(3)]
    answer = good.post("/measurements", json=rows)
    assert answer.status_code == 422 and "check their unit" in answer.json()["detail"]
    assert listed(good, gpu="titan-v") == []


def test_a_dry_run_shows_doubts_and_stores_none(clients: Clients) -> None:
    good = clients["good"]
    wrong = row(LINEAR, 50 * expected_ms(good, LINEAR))
    answer: httpx.Response = good.post("/measurements", params={"dry_run": True}, json=[wrong])
    assert (answer.json()["doubtful"], answer.json()["upload_id"]) == (1, None)
    assert listed(good, gpu="titan-v") == []
