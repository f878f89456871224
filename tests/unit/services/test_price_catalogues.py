"""Prices from SkyPilot's catalogue, gpuhunt and FOCUS bills."""

from __future__ import annotations

import csv
import io
import json
from datetime import date
from typing import Any

import pytest

from app.engine.catalogue import load_seed_specs
from app.engine.gpu_types import _names, usual_gpu
from app.errors import BadInput
from app.services.compare.price_catalogues import (
    FOCUS,
    GPUHUNT,
    SKYPILOT,
    Instance,
    Terms,
    format_of,
    read_instances,
    read_lists,
    read_offers,
)

ASKED = Terms("aws", date(2026, 11, 1), spot=False)


def table(*rows: dict[str, Any]) -> bytes:
    """A CSV file with these rows."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def vm(
    name: str, gpu: str, devices: float | str, price: float | str, spot: float | str = "", **more: Any
) -> dict[str, Any]:
    """A row of SkyPilot's catalogue."""
    return {
        "InstanceType": name, "AcceleratorName": gpu, "AcceleratorCount": devices, "vCPUs": 8, "MemoryGiB": 64,
        "GpuInfo": "", "Price": price, "SpotPrice": spot, "Region": "us-east-1", "AvailabilityZone": "us-east-1a",
    } | more  # fmt: skip


VMS = table(
    vm("p5.48xlarge", "H100", 8, 55.04, 20.0),
    vm("g6.xlarge", "L4", 1, 0.805, 0.3),
    vm("g6.48xlarge", "L4", 8, 13.35),
    vm("g6.xlarge", "L4", 1, 0.9, Region="eu-west-1"),
    vm("m7i.large", "", "", 0.1),
    vm("trn1.2xlarge", "Trainium", 1, 1.34),
    vm("p3dn.24xlarge", "V100-32GB", 8, "", 9.6),
)
BILL = {
    "BilledCost": 10, "BillingCurrency": "USD", "ChargeCategory": "Usage", "ChargePeriodStart": "2026-11-02T00:00:00Z",
    "ContractedUnitPrice": 40.0, "PricingUnit": "Hours", "ProviderName": "AWS", "RegionId": "us-east-1",
    "SkuPriceDetails": json.dumps({"InstanceType": "p5.48xlarge", "GpuCount": 8}),
}  # fmt: skip


def test_the_cheapest_device_of_a_region_counts() -> None:
    assert format_of(VMS) == SKYPILOT
    offers = read_offers(VMS, SKYPILOT, ASKED, {})
    prices = {(row["gpu"], row["region"]): row["usd_per_hour"] for row in offers.rows}
    assert prices == {
        ("h100-sxm5-80gb", "us-east-1"): 6.88,
        ("nvidia-l4", "us-east-1"): 0.805,
        ("nvidia-l4", "eu-west-1"): 0.9,
    }
    assert {row["provider"] for row in offers.rows} == {"aws"} and {row["date"] for row in offers.rows} == {
        "2026-11-01"
    }
    assert offers.left_out == {
        "no accelerator": 1,
        "accelerator Trainium is not in the catalogue": 1,
        "no price of this kind": 1,
    }
    spot = read_offers(VMS, SKYPILOT, ASKED._replace(spot=True), {})
    assert {(row["gpu"], row["usd_per_hour"]) for row in spot.rows} == {
        ("h100-sxm5-80gb", 2.5), ("nvidia-l4", 0.3), ("tesla-v100-sxm2-32gb", 1.2),
    }  # fmt: skip
    assert {(row["provider"], row["term"]) for row in spot.rows} == {("aws", "spot")}
    assert {row["gpu"]: row["devices"] for row in spot.rows}["h100-sxm5-80gb"] == 8


def test_a_newer_list_of_those_that_ship_is_read() -> None:
    prices = [
        {"gpu": "b200", "usd_per_hour": 40.0, "instance_of": 8},
        {"gpu": "b200", "usd_per_hour": 3.0, "term": "spot"},
    ]
    one = {"provider": "Acme", "source": "https://acme.example", "date": "2027-01-01", "prices": prices}
    rows = read_lists(json.dumps({"lists": [one]}).encode()) or []
    assert [(row["usd_per_hour"], row["term"], row["devices"]) for row in rows] == [
        (5.0, "on_demand", 8),
        (3.0, "spot", 1),
    ]
    assert read_lists(VMS) is None and read_lists(b'{"lists": [{}]}') is None


def test_gpuhunt_tells_products_apart_by_memory() -> None:
    row = {"instance_name": "a2", "location": "us-central1", "price": 5.0, "cpu": 12, "memory": 85, "gpu_count": 1}
    body = table(
        row | {"gpu_name": "A100", "gpu_memory": 80, "spot": "False", "provider": "gcp"},
        row | {"gpu_name": "A100", "gpu_memory": 40, "spot": "False", "provider": "gcp", "price": 3.6},
        row | {"gpu_name": "A100", "gpu_memory": 40, "spot": "True", "provider": "gcp", "price": 1.1},
    )
    assert format_of(body) == GPUHUNT
    offers = read_offers(body, GPUHUNT, ASKED, {})
    assert [(row["gpu"], row["usd_per_hour"], row["provider"]) for row in offers.rows] == [
        ("a100-sxm4-80gb", 5.0, "gcp"),
        ("a100-sxm4-40gb", 3.6, "gcp"),
    ]
    assert offers.left_out == {"interruptible": 1}


def test_a_bill_gives_contracted_prices_of_known_instances() -> None:
    instances = read_instances(VMS)
    assert instances["p5.48xlarge"] == Instance("h100-sxm5-80gb", 8.0)
    body = table(
        BILL,
        BILL | {"ChargePeriodStart": "2026-11-03T00:00:00Z", "ContractedUnitPrice": 3600.0, "PricingUnit": "100 Hours"},
        BILL | {"PricingUnit": "GB-Month"},
        BILL | {"SkuPriceDetails": "{}"},
    )
    assert format_of(body) == FOCUS
    offers = read_offers(body, FOCUS, ASKED, instances)
    assert [(row["gpu"], row["usd_per_hour"], row["date"], row["provider"]) for row in offers.rows] == [
        ("h100-sxm5-80gb", 4.5, "2026-11-03", "AWS")
    ]
    assert sum(offers.left_out.values()) == 2


@pytest.mark.parametrize(
    ("body", "instances", "words"),
    [
        (table(BILL | {"BillingCurrency": "EUR"}), True, "A price is in EUR"),
        (table(BILL | {"ChargePeriodStart": "yesterday"}), True, "'yesterday' is no date"),
        (table(BILL), False, "send --instances"),
    ],
)
def test_bills_that_cannot_be_read(body: bytes, instances: bool, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read_offers(body, FOCUS, ASKED, read_instances(VMS) if instances else {})
    with pytest.raises(BadInput, match="AcceleratorName"):
        read_instances(body)


def test_names_of_clouds_are_gpus_of_the_catalogue() -> None:
    known = {spec.id: spec.memory_bytes / 1e9 for spec in load_seed_specs()}
    for products in _names().values():
        assert {*products.values()} <= known.keys()
    assert (
        usual_gpu("H100", 94.0) == "h100-nvl-94gb" and usual_gpu("A100", 24.0) is None and usual_gpu("X", 1.0) is None
    )
    assert format_of(b"gpu,usd_per_hour,source,date\n") is None
