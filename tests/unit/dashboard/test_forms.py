"""Controls of forms say what the request structs say: titles, meanings and choices."""

from __future__ import annotations

from typing import get_args

import pytest

from app.dashboard.forms import KINDS, NAMES, SERVING, FormField, example, fields_of, filled
from app.wire.network_form import NetworkDtype


def control(kind: str, name: str) -> FormField:
    return next(field for field in fields_of(kind, {}) if field.name == name)


def test_titles_and_meanings_are_those_of_the_structs() -> None:
    sequence, devices = control("model", "sequence"), control("model", "data")
    assert (sequence.label, sequence.control, sequence.path) == ("Context length", "number", ("sequence",))
    assert sequence.help.startswith("Tokens per sequence") and not sequence.more
    assert (devices.label, devices.path, devices.more) == ("Data-parallel devices", ("parallelism", "data"), True)
    assert control(SERVING, "pool_tensor").path == ("prefill_pool", "parallelism", "tensor")
    assert control(SERVING, "tensor").label == "GPUs per replica"


def test_choices_are_those_of_the_structs_in_their_order() -> None:
    assert control("model", "dtype").choices == get_args(NetworkDtype)
    assert control("model", "mode").choices == ("inference", "training", "prefill", "decode")
    assert control("graph", "mode").choices == ("inference", "training")


@pytest.mark.parametrize(
    ("kind", "name", "kinds"),
    [
        ("model", "config", "json"),
        ("model", "fused", "check"),
        ("model", "recompute", "check"),
        ("model", "software", "text"),
        ("model", "zero", "number"),
        ("graph", "dims", "pairs"),
        ("kernel", "measured", "pairs"),
        ("kernel", "flops", "number"),
        (SERVING, "software", "choice"),
    ],
)
def test_types_decide_the_controls(kind: str, name: str, kinds: str) -> None:
    assert control(kind, name).control == kinds


@pytest.mark.parametrize("kind", [*KINDS, SERVING])
def test_examples_have_controls_and_names_are_unique(kind: str) -> None:
    typed = filled(kind, {})
    fields = fields_of(kind, typed)
    names = [field.name for field in fields]
    assert len(names) == len(set(names)) and set(names) <= NAMES | {"op"}
    assert set(typed) <= set(names)
    required = {field.name for field in fields if field.required}
    assert required - {"graph_id"} <= set(typed)


def test_an_example_of_a_kernel_is_that_of_the_contract() -> None:
    typed = example("kernel", "")
    assert typed["measured"] == "titan-v 0.91" and typed["rows"] == "1024" and "n" not in typed
