"""Coefficients: every entry says what it stands on, and each is read by the code."""

import json
from importlib.util import find_spec

import pytest
from typer.main import get_command

from app import cli, coefficients
from app.config import CHECKOUT

FIELDS = {"value", "unit", "source", "set_on"}


def test_every_coefficient_has_a_value_a_unit_and_a_source() -> None:
    for name in coefficients.rooms():
        content = json.loads((coefficients.FOLDER / f"{name}.json").read_bytes())
        for key, entry in content.items():
            beside = entry.keys() - FIELDS - {"families"}
            assert entry.keys() >= FIELDS and beside in ({"command"}, {"chosen"}), (name, key)
            assert entry["unit"] and entry["source"] and len(set(entry["set_on"])) == len(entry["set_on"]), (name, key)


def test_the_command_that_chose_a_coefficient_exists() -> None:
    evaluate = get_command(cli.build("evaluate")).commands["evaluate"].commands  # type: ignore[attr-defined]
    for name in coefficients.rooms():
        content = json.loads((coefficients.FOLDER / f"{name}.json").read_bytes())
        for key, command in ((key, entry["command"]) for key, entry in content.items() if "command" in entry):
            first, second, *_ = command.removeprefix("gpucast ").split()
            known = find_spec(command.split()[2]) if first == "python" else first == "evaluate" and second in evaluate
            assert known, (name, key, command)


def test_the_code_reads_every_coefficient() -> None:
    """Each is named in a file that reads its room."""
    sources = [path.read_text("utf-8") for path in (CHECKOUT / "app").rglob("*.py")]
    for name in coefficients.rooms():
        reads = "Prior.of(" if name == "priors" else f'Coefficients("{name}")'
        code = "\n".join(source for source in sources if reads in source)
        assert not [key for key in coefficients.room(name) if f'"{key}"' not in code], name


def test_a_data_set_names_the_coefficients_that_were_set_on_it() -> None:
    assert "bands.eager_host_known" in coefficients.set_on("torchvision_convnets")
    assert not coefficients.set_on("no such data set")
    assert set(coefficients.set_on("neusight", "softmax")) < set(coefficients.set_on("neusight"))
    assert "operators.softmax_rows_apart" in coefficients.set_on("neusight", "softmax")


def test_a_missing_coefficient_is_an_error() -> None:
    with pytest.raises(KeyError):
        coefficients.Coefficients("bands").number("absent")
