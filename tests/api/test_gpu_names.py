"""Names of GPUs that people type: products, families, laptops, accelerators of other vendors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

Body = dict[str, Any]
PRODUCT = {"kind": "operators", "operators": [{"op": "linear", "m": 1024, "n": 4096, "k": 4096, "dtype": "bf16"}]}
SERVED = {"kind": "serving", "name": "llama-3-8b", "input_tokens": 512, "output_tokens": 64, "load": {"concurrency": 4}}
FAMILIES = {
    "h100": "h100-sxm5-80gb",
    "A100": "a100-sxm4-80gb",
    "NVIDIA V100": "tesla-v100-sxm2-16gb",
    "dgx-spark": "gb10",
    "RTX 5060 Ti": "geforce-rtx-5060-ti-16-gb",
    "NVIDIA GeForce RTX 4060 Ti": "geforce-rtx-4060-ti-16-gb",
    "Jetson AGX Orin": "jetson-agx-orin-64-gb",
}
PRODUCTS = {
    "h200": "h200-sxm-141gb",
    "NVIDIA GH200 120GB": "gh200-96gb",
    "NVIDIA GeForce RTX 4090 Laptop GPU": "geforce-rtx-4090-mobile",
    "RTX 5090 Laptop GPU": "geforce-rtx-5090-mobile",
    "NVIDIA GeForce RTX 3060 Laptop GPU": "rtx-3060-mobile",
    "MI308X": "amd-instinct-mi308x",
    "AMD Instinct MI300X VF": "amd-instinct-mi300x",
    "MI50": "radeon-instinct-mi50",
    "Jetson Thor": "jetson-agx-thor",
    "Arc B70": "arc-pro-b70",
    "TPU v5e": "tpu-v5e",
    "TPU v5p": "tpu-v5p",
    "Trillium": "tpu-v6e",
    "Ironwood": "tpu-v7",
}


def predict(client: TestClient, gpu: str, workload: Body = PRODUCT, **fields: Any) -> Any:
    return client.post("/predict", json={"gpu": gpu, "workload": workload} | fields)


@pytest.mark.parametrize(("name", "gpu"), FAMILIES.items())
def test_a_family_is_its_most_rented_product_and_says_so(client: TestClient, name: str, gpu: str) -> None:
    dtype = "fp16" if "v100" in gpu else "bf16"
    product = {"kind": "operators", "operators": [PRODUCT["operators"][0] | {"dtype": dtype}]}  # type: ignore[index]
    for _ in range(2):
        answer = predict(client, name, product)
        assert answer.status_code == 200, answer.text
        (prediction,) = answer.json()["predictions"]
        assert prediction["gpu"] == gpu
        (note,) = [one["text"] for one in prediction["warning_codes"] if one["code"] == "gpu_assumed"]
        assert note.startswith(f"{name} is taken as {gpu}")
    (own,) = predict(client, gpu, product).json()["predictions"]
    assert "gpu_assumed" not in [one["code"] for one in own["warning_codes"]]
    assert own["latency_ms"] == prediction["latency_ms"]
    refused = predict(client, name, product, strict_names=True)
    assert refused.status_code == 404, refused.text
    assert refused.json()["errors"][0]["loc"] == ["gpu"]


@pytest.mark.parametrize(("name", "gpu"), PRODUCTS.items())
def test_a_product_is_known_by_what_drivers_and_people_call_it(client: TestClient, name: str, gpu: str) -> None:
    dtype = "fp16" if "mi50" in gpu else "bf16"
    product = {"kind": "operators", "operators": [PRODUCT["operators"][0] | {"dtype": dtype}]}  # type: ignore[index]
    answer = predict(client, name, product, strict_names=True)
    assert answer.status_code == 200, answer.text
    (prediction,) = answer.json()["predictions"]
    assert prediction["gpu"] == gpu
    assert "gpu_assumed" not in [one["code"] for one in prediction["warning_codes"]]


def test_a_family_serves_compares_and_is_priced(client: TestClient) -> None:
    served = predict(client, "h100", SERVED)
    assert served.status_code == 200, served.text
    (prediction,) = served.json()["predictions"]
    assert "gpu_assumed" in [one["code"] for one in prediction["warning_codes"]]
    body = {"workload": PRODUCT, "gpus": ["h100", "TPU v5e"], "prices": {"h100": 2.5}, "rank_by": "cost"}
    compared = client.post("/compare", json=body)
    assert compared.status_code == 200, compared.text
    first = compared.json()["ranking"][0]
    assert first["gpu"] == "h100-sxm5-80gb"
    assert "gpu_assumed" in [one["code"] for one in first["warning_codes"]]


def test_an_accelerator_of_another_kind_is_answered_in_a_wide_band(client: TestClient) -> None:
    widths = []
    for gpu in ("TPU v6e", "h100-sxm5-80gb"):
        answer = predict(client, gpu, SERVED)
        assert answer.status_code == 200, answer.text
        (prediction,) = answer.json()["predictions"]
        time = prediction["serving"]["tpot_ms"]
        widths.append(np.log(time["interval"]["high"] / time["mean"]))
    assert widths[0] > 1.3 * widths[1]
    assert prediction["gpu"] == "h100-sxm5-80gb"


def test_measurements_name_a_product(client: TestClient) -> None:
    row = {"gpu": "h100", "software": "pytorch-2.6", "source": "test", "latency_ms": 1.0}
    answer = client.post("/measurements", json=[row | {"workload": {"kind": "operators"} | PRODUCT["operators"][0]}])  # type: ignore[index,operator]
    assert answer.status_code in {404, 422}, answer.text


def test_every_gpu_that_resolves_is_listed(client: TestClient) -> None:
    every = client.get("/gpus").json()["items"]
    curated = {gpu["id"] for gpu in client.get("/gpus", params={"curated": True}).json()["items"]}
    assert {"tpu-v5e", "jetson-agx-thor", "arc-pro-b70"} <= curated == {gpu["id"] for gpu in every if gpu["curated"]}
    others = [gpu for gpu in every if not gpu["curated"]]
    assert len(others) > 2000
    assert "geforce-rtx-4090-mobile" in {gpu["id"] for gpu in others}
    assert not curated & {gpu["id"] for gpu in others}
    for gpu in others[::500]:
        assert client.get(f"/gpus/{gpu['id']}").json()["id"] == gpu["id"]
    assert client.get("/gpus", params={"curated": False}).json()["items"] == others


@pytest.mark.parametrize("workload", [SERVED, {"kind": "model", "name": "gpt2", "mode": "training", "sequence": 128}])
def test_a_plan_refuses_a_family_where_names_are_strict(client: TestClient, workload: Body) -> None:
    body = {"workload": workload, "gpus": ["h100"], "steps": 10, "deadline_s": 1e6, "strict_names": True}
    served = workload["kind"] == "serving"
    goals = {"workload": workload | {"load": {"rate_per_s": 1.0}}, "steps": None, "deadline_s": None, "ttft_ms": 5000.0}
    refused = client.post("/plan", json=body | (goals if served else {}))
    assert refused.status_code == 404, refused.text
    assert "h100" in refused.json()["errors"][0]["msg"]
