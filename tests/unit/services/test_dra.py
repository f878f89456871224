"""Device selectors for Kubernetes' dynamic resource allocation, valid for the published schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import jsonschema_rs
import pytest

from app.engine.catalogue import load_seed_specs
from app.errors import BadInput
from app.services.scheduling.kueue import Kind, manifest, product_names, selector

PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("kubernetes_1_34_resource.json").read_text("utf-8"))
SPECS = {spec.id: spec for spec in load_seed_specs()}
EXPRESSION = (
    'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"'
    ' && device.attributes["gpu.nvidia.com"].productName in '
    '["NVIDIA A100 SXM4 40 GB", "NVIDIA A100-SXM4-40GB", "NVIDIA L4", "Tesla T4", "NVIDIA T4"]'
)


def problems(found: dict[str, Any]) -> list[str]:
    kind = PUBLISHED["kinds"][f"{found['apiVersion']}/{found['kind']}"]
    schema = {"$ref": f"#/definitions/{kind}", "definitions": PUBLISHED["definitions"]}
    return [error.message for error in jsonschema_rs.Draft7Validator(schema).iter_errors(found)]


def test_the_expression_names_products_as_the_driver_does() -> None:
    assert selector([SPECS[name] for name in ("a100-sxm4-40gb", "nvidia-l4", "tesla-t4")]) == EXPRESSION
    assert not product_names(SPECS["amd-instinct-mi300x"]) and not product_names(SPECS["epyc-7402"])


def test_all_gpus_of_the_catalogue_fit_one_expression() -> None:
    assert len(selector(list(SPECS.values()))) < 10 * 1024
    with pytest.raises(BadInput, match="name fewer GPUs"):
        selector(list(SPECS.values()) * 10)
    with pytest.raises(BadInput, match=r"gpu\.nvidia\.com"):
        selector([SPECS["amd-instinct-mi300x"]])


@pytest.mark.parametrize("kind", get_args(Kind))
def test_objects_are_valid_for_the_published_schema(kind: Kind) -> None:
    found = manifest(kind, "fast", EXPRESSION, 2)
    assert not problems(found)
    wrong = json.loads(json.dumps(found).replace('"selectors"', '"selector"'))
    assert problems(wrong)
