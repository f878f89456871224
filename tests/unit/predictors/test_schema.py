"""Schemas of trained versions, and the differences from the code that are reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.bands.groups import CODES
from app.ops import OPS
from app.predictors import BY_NAME
from app.predictors.auto.layout import RELATIVE, shape_feature_names
from app.predictors.auto.operators.models.features import RELATIVE_FEATURES, SHAPE_FEATURES
from app.predictors.schema import Layout, Schema

AXES = {"features": ("m", "n", "k"), "terms": ("flops", "bytes")}
CHOICES = {"library": ("nccl", "vllm")}
KNOWN = Schema(("linear", "bmm"), ("fp32", "bf16"), ("linear/fp32/seen",), Layout(AXES, CHOICES))
TRAINABLE = [cls for cls in BY_NAME.values() if cls.can.trainable]


def said(stored: Schema, known: Schema = KNOWN) -> list[str]:
    return list(stored.differences(known))


def with_axis(*names: str) -> Schema:
    return replace(KNOWN, layout=Layout({**AXES, "features": names}, CHOICES))


def with_choices(*names: str) -> Schema:
    return replace(KNOWN, layout=Layout(AXES, {"library": names}))


def test_equal_schemas_have_no_differences() -> None:
    assert said(KNOWN) == []
    assert said(Schema(("bmm",), ("fp32",), (), Layout({"terms": AXES["terms"]}))) == []
    assert Schema.from_state(KNOWN.state()) == KNOWN


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (replace(KNOWN, operators=("linear", "scan")), "operator scan is unknown"),
        (replace(KNOWN, dtypes=("fp4",)), "dtype fp4 is unknown"),
        (replace(KNOWN, groups=("scan/fp32/seen",)), "interval group scan/fp32/seen is unknown"),
        (with_axis("m", "n"), "features: k added"),
        (with_axis("m", "n", "k", "batch"), "features: batch removed"),
        (with_axis("m", "n", "b"), "features: k added, b removed"),
        (with_axis("m"), "features: n and 1 more added"),
        (with_axis("m", "n", "k", "k"), "features: there were 4, and are 3"),
        (with_axis("n", "m", "k"), "features: n has another place"),
        (with_choices("vllm", "nccl"), "library: vllm has another place"),
        (with_choices("nccl", "vllm", "oneccl"), "library: oneccl removed"),
    ],
)
def test_a_difference_is_named(stored: Schema, words: str) -> None:
    assert said(stored) == [words]


def test_removed_axes_are_named() -> None:
    assert said(KNOWN, replace(KNOWN, layout=Layout({}, CHOICES))) == [
        "features: not part of this version",
        "terms: not part of this version",
    ]


def test_added_choices_are_compatible() -> None:
    assert said(with_choices("nccl")) == []


@pytest.mark.parametrize("op", OPS[1:], ids=lambda op: op.name)
def test_every_shape_feature_has_a_name(op: Any) -> None:
    names = shape_feature_names(OPS.index(op))
    assert len(names) == SHAPE_FEATURES
    assert names[-1] == "eager"


def test_every_relative_feature_has_a_name() -> None:
    assert len(RELATIVE) == RELATIVE_FEATURES == len(set(RELATIVE))


@pytest.mark.parametrize("predictor", TRAINABLE, ids=lambda cls: cls.name)
def test_every_trained_predictor_declares_a_schema(predictor: Any) -> None:
    layout = predictor.layout([op.name for op in OPS[1:]])
    assert layout.axes
    assert all(isinstance(name, str) for names in (*layout.axes.values(), *layout.codes.values()) for name in names)


def test_group_names_are_unique() -> None:
    assert len(CODES) == len({*CODES.values()})
