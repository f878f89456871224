"""POST /prices, GET /prices and `gpucast prices`: stored rows, the price that is used, invalid requests."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from app.cli.gpus import prices as command
from app.config import Settings
from app.engine.prices import STALE_DAYS
from app.services.compare.price_rows import PRICE_EXAMPLE

CSV = {"content-type": "text/csv"}
LISTED = {"gpu": "amd-instinct-mi300x", "usd_per_hour": 12.0, "instance_of": 8, "term": "spot"}
OPERATORS = {"kind": "operators", "operators": [{"op": "memory", "bytes": 1e9}]}


def row(**fields: Any) -> dict[str, Any]:
    return {"gpu": "nvidia-l4", "usd_per_hour": 0.8, "source": "list", "date": day(0)} | fields


def day(ago: int) -> str:
    """A day so many days before today: a run may last beyond midnight."""
    return f"{datetime.now(UTC).date() - timedelta(days=ago)}"


def own(client: TestClient, gpu: str) -> list[dict[str, Any]]:
    items = client.get("/prices", params={"gpu": gpu}).json()["items"]
    return [item for item in items if not item["shipped"]]


def compared(client: TestClient, gpu: str, **fields: Any) -> dict[str, Any]:
    answer = client.post("/compare", json={"workload": OPERATORS, "gpus": [gpu], "rank_by": "cost"} | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["ranking"][0])


def test_the_same_row_again_changes_nothing(client: TestClient) -> None:
    rows = [row(gpu="NVIDIA A10"), row(gpu="a10", provider="Acme")]
    assert client.post("/prices", json=rows).json() == {"received": 2, "inserted": 2, "unchanged": 0}
    assert client.post("/prices", json=rows).json() == {"received": 2, "inserted": 0, "unchanged": 2}
    items = own(client, "a10")
    assert [(item["gpu"], item.get("provider"), item["counts"]) for item in items] == [
        ("a10", None, True),
        ("a10", "Acme", False),
    ]


def test_the_newest_price_of_the_cheapest_offer_is_used(client: TestClient) -> None:
    offers = [
        row(gpu="a30", usd_per_hour=1.0, provider="a", date=day(20)),
        row(gpu="a30", usd_per_hour=2.0, provider="a", date=day(10)),
        row(gpu="a30", usd_per_hour=3.0, provider="b", date=day(5)),
        row(gpu="a30", usd_per_hour=0.1, provider="c", date=day(-1)),
    ]
    assert client.post("/prices", json=offers).status_code == 200
    found = compared(client, "a30")
    assert found["price_usd_per_hour"] == 2.0 and found["price_source"] == f"a, on demand, list, {day(10)}"
    assert found["cost_usd"] == pytest.approx(found["latency_ms"] / 1e3 * 2.0 / 3600)
    assert not any("days old" in words for words in found["warnings"])
    assert compared(client, "a30", prices={"A30": 9.0})["price_usd_per_hour"] == 9.0


def test_an_old_price_is_used_with_a_warning(client: TestClient) -> None:
    client.post("/prices", json=[row(gpu="a40", date=day(100))]).raise_for_status()
    assert "100 days old" in compared(client, "a40")["warnings"][-1]


def test_prices_are_uploaded_as_csv_and_listed_in_pages(client: TestClient) -> None:
    lines = [f"l40s,{k},list,{day(k)},Acme,zone {k}" for k in range(1, 6)]
    body = "gpu,usd_per_hour,source,date,provider,region\n" + "\n".join(lines)
    assert client.post("/prices", content=body, headers=CSV).json()["inserted"] == 5
    seen, after = [], 0
    while after is not None:
        found = client.get("/prices", params={"gpu": "l40s", "source": "list", "limit": 2, "after": after}).json()
        seen += [item["region"] for item in found["items"]]
        after = found.get("next")
    assert seen == [f"zone {k}" for k in range(1, 6)]
    assert len(client.get("/prices", params={"gpu": "l40s", "region": "zone 3"}).json()["items"]) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"usd_per_hour": -1}, "usd_per_hour"),
        ({"usd_per_hour": "cheap"}, "usd_per_hour"),
        ({"usd_per_hour": 1e9}, "usd_per_hour"),
        ({"gpu": "no such card"}, "gpu"),
        ({"gpu": ""}, "gpu"),
        ({"date": "yesterday"}, "date"),
        ({"date": "2026-02-30"}, "date"),
        ({"source": "a\x00b"}, "source"),
        ({"currency": "EUR"}, "currency"),
    ],
)
def test_one_invalid_row_rejects_the_upload(client: TestClient, change: dict[str, Any], field: str) -> None:
    before = len(client.get("/prices").json()["items"])
    answer = client.post("/prices", json=[row(source="refused"), row() | change])
    assert answer.status_code == 422, answer.text
    assert [1, field] in [error["loc"] for error in answer.json()["errors"]]
    assert len(client.get("/prices").json()["items"]) == before


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"gpu,usd_per_hour,source\nl4,1,x\n", 422),
        (b"gpu,usd_per_hour,source,date\nl4,nan,x,2026-01-01\n", 422),
        (b"gpu,usd_per_hour,source,date\nl4,inf,x,2026-01-01\n", 422),
        (b"gpu,usd_per_hour,source,date\nl4,1,x\n", 422),
        (b"gpu,price,source,date\nl4,1,x,2026-01-01\n", 422),
        (b"", 400),
        (b"\xff\xfe", 400),
        (b"gpu,usd_per_hour,source,date\n", 422),
    ],
)
def test_invalid_csv_is_rejected(client: TestClient, body: bytes, status: int) -> None:
    assert client.post("/prices", content=body, headers=CSV).status_code == status


def test_other_bodies_are_refused(client: TestClient) -> None:
    assert client.post("/prices", json=[]).status_code == 422
    assert client.post("/prices", json=PRICE_EXAMPLE).status_code == 422
    assert client.post("/prices", json=[row()] * 20_001).status_code == 413
    assert client.post("/prices", content=b"x", headers={"content-type": "text/html"}).status_code == 415
    word = '[{"gpu": "nvidia-l4", "usd_per_hour": NaN, "source": "x", "date": "2026-01-01"}]'
    assert client.post("/prices", content=word).json()["errors"][0]["loc"] == [0, "usd_per_hour"]


def test_the_commands(client: TestClient, settings: Settings, tmp_path: Path) -> None:
    table = tmp_path / "prices.csv"
    table.write_text(f"gpu,usd_per_hour,source,date\nNVIDIA H100 80GB HBM3,2.5,list,{day(0)}\n", "utf-8")
    assert "1 prices: 1 new" in run(settings, "import", str(table))
    (line,) = (
        each for each in run(settings, "list", "--gpu=h100-sxm5-80gb").splitlines() if each.split()[-1] == "list"
    )
    assert line.startswith("* h100-sxm5-80gb") and "2.5" in line
    client.app.state.holder.refresh()  # type: ignore[attr-defined]
    assert compared(client, "h100-sxm5-80gb")["price_usd_per_hour"] == 2.5


def test_the_command_reads_opencosts_assets(settings: Settings, tmp_path: Path) -> None:
    node = {"type": "Node", "labels": {"nvidia_com_gpu_product": "NVIDIA-L4"}, "GPUHours": 24, "totalCost": 16.8}
    answer = {"code": 200, "data": [{"node": node | {"start": f"{day(0)}T00:00:00Z", "minutes": 1440}}]}
    (tmp_path / "assets.json").write_text(json.dumps(answer))
    assert "1 prices: 1 new" in run(settings, "import", str(tmp_path / "assets.json"), "--provider=cluster")
    assert any(line.split()[-1] == "OpenCost" and "0.7" in line for line in run(settings, "list").splitlines())


def run(settings: Settings, *words: str) -> str:
    done = CliRunner().invoke(command, [*words], env=settings.environment())
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("usd_per_hour", 0, "0.001"),
        ("usd_per_hour", 1e-320, "0.001"),
        ("date", "0001-01-01", "2010-01-01"),
        ("date", "9999-12-31", "a year from now"),
    ],
)
def test_prices_that_cannot_be_are_refused(client: TestClient, field: str, value: Any, says: str) -> None:
    answer = client.post("/prices", json=[row(**{field: value})])
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["loc"][-1] == field
    assert says in error["msg"]


def test_prices_are_deleted_by_id_source_and_key_and_used_no_longer(client: TestClient) -> None:
    offers = [row(gpu="t4", source=source, provider=source, usd_per_hour=usd) for source, usd in (("x", 1), ("y", 2))]
    client.post("/prices", json=offers).raise_for_status()
    assert compared(client, "t4")["price_usd_per_hour"] == 1.0
    assert client.delete("/prices").status_code == 422
    gone = {"source": "x", "gpu": "t4"}
    assert client.delete("/prices", params={**gone, "dry_run": True}).json() == {"prices": 1, "dry_run": True}
    assert client.delete("/prices", params=gone).json() == {"prices": 1, "dry_run": False}
    assert compared(client, "t4")["price_usd_per_hour"] == 2.0
    (item,) = client.get("/prices", params={"gpu": "t4"}).json()["items"]
    assert client.delete(f"/prices/{item['id']}").status_code == 204
    assert client.delete(f"/prices/{item['id']}").status_code == 404
    assert client.delete("/prices", params={"key": 12345}).json()["prices"] == 0
    assert client.get("/prices", params={"gpu": "t4"}).json()["items"] == []


def test_list_prices_ship_and_count_until_one_is_sent(client: TestClient) -> None:
    listed = client.get("/prices", params={"gpu": "gh200-96gb"}).json()["items"]
    assert all(item["shipped"] and item["source"].startswith("https://") for item in listed)
    found = compared(client, "gh200-96gb")
    for used in (item for item in listed if item["counts"]):  # none where the list is over a year old
        assert found["price_usd_per_hour"] == used["usd_per_hour"]
        assert found["price_source"] == f"{used['provider']}, on demand, {used['source']}, {used['date']}"
        assert any("days old" in words for words in found["warnings"]) == (used["age_days"] > STALE_DAYS)
    refused = client.delete(f"/prices/{listed[0]['id']}")
    assert refused.status_code == 409 and "goes before it" in refused.json()["detail"]
    assert client.delete("/prices", params={"gpu": "gh200-96gb"}).json()["prices"] == 0
    client.post("/prices", json=[row(gpu="gh200-96gb", usd_per_hour=99.0)]).raise_for_status()
    assert compared(client, "gh200-96gb")["price_usd_per_hour"] == 99.0
    (mine,) = own(client, "gh200-96gb")
    assert mine["counts"] and mine["devices"] == 1
    assert client.delete(f"/prices/{mine['id']}").status_code == 204


def test_prices_are_used_for_their_term(client: TestClient) -> None:
    offers = [row(gpu="rtx-4090", term=term, usd_per_hour=usd) for term, usd in (("spot", 0.2), ("reserved", 0.3))]
    client.post("/prices", json=offers).raise_for_status()
    assert compared(client, "rtx-4090")["price_usd_per_hour"] is None
    assert compared(client, "rtx-4090", price_term="spot")["price_usd_per_hour"] == 0.2
    assert "reserved" in compared(client, "rtx-4090", price_term="reserved")["price_source"]
    refused = client.post("/compare", json={"workload": OPERATORS, "gpus": ["rtx-4090"], "price_term": "leased"})
    assert refused.status_code == 422 and refused.json()["errors"][0]["loc"] == ["price_term"]


def test_the_price_of_a_whole_instance_says_so(client: TestClient) -> None:
    body = f"gpu,usd_per_hour,source,date,term,devices\nb300,4.5,list,{day(0)},reserved,8\n"
    client.post("/prices", content=body, headers=CSV).raise_for_status()
    assert "one of 8 rented together" in compared(client, "b300", price_term="reserved")["price_source"]


def test_the_command_reads_a_newer_list(client: TestClient, settings: Settings, tmp_path: Path) -> None:
    one = {"provider": "Acme", "source": "https://acme.example", "date": day(0), "prices": [LISTED]}
    (tmp_path / "newer.json").write_text(json.dumps({"lists": [one]}))
    assert "1 prices: 1 new" in run(settings, "import", str(tmp_path / "newer.json"))
    client.app.state.holder.refresh()  # type: ignore[attr-defined]
    assert compared(client, "mi300x", price_term="spot")["price_usd_per_hour"] == 1.5
