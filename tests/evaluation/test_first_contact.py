"""First contacts: what is recorded of a source, and that the ledger is written once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import exp, isclose, log
from pathlib import Path
from typing import Any

import pytest

from app.errors import BadInput
from evaluation.first_contact import ledger
from evaluation.first_contact.question import ASKED, SCRIPTED, Levels, Question, Source, architecture_of
from evaluation.first_contact.reading import NoFigure
from evaluation.first_contact.record import SOURCES
from evaluation.study import shipped_snapshot

LINEAR = {"op": "linear", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}
BODY = {"gpu": "nvidia-l4", "workload": {"kind": "operators", "operators": [LINEAR]}}
PLACE = Levels("operator", "nvidia-l4", "linear")
VERSION = {"version": "0", "commit": "abc"}


def questions(_: Path) -> Iterator[Question]:
    yield Question("one", PLACE, 2.0, [(1.0, BODY)])
    yield Question("two of it", PLACE, 2.0, [(2.0, BODY)])
    yield Question("refused", PLACE, 2.0, [(1.0, {**BODY, "gpu": "no such"})])
    yield Question("cannot be asked", PLACE, 2.0, reason="it has no form")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ledger, "LEDGER", tmp_path)
    return tmp_path


def answer(_: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    if body["gpu"] == "no such":
        raise NoFigure("unknown GPU")
    return {"predictions": [{"latency_ms": 1.0, "interval_ms": {"low": 0.5, "high": 4.0}}]}


def test_errors_and_widths_are_logarithms_and_refusals_have_their_reason(folder: Path) -> None:
    ledger.record(Source("s", "origin", questions), folder, answer, VERSION, print)
    ((about, rows),) = ledger.ledger()
    assert (about["commit"], about["origin"]) == ("abc", "origin")
    one, two, refused, formless = rows
    assert isclose(one["error"], log(2.0), rel_tol=1e-6)
    assert isclose(one["below"], log(2.0), rel_tol=1e-6)
    assert isclose(one["above"], log(4.0), rel_tol=1e-6)
    assert two["error"] == 0.0
    assert (refused["reason"], refused["error"]) == ("unknown GPU", None)
    assert formless["reason"] == "it has no form"


def test_a_first_contact_is_never_replaced(folder: Path) -> None:
    source = Source("s", "origin", questions)
    path = ledger.record(source, folder, answer, VERSION, print)
    before = path.read_bytes()
    with pytest.raises(BadInput, match="never replaced"):
        ledger.record(source, folder, answer, VERSION, print)
    assert path.read_bytes() == before


def test_this_checkout_answers_as_its_service(folder: Path) -> None:
    ledger.record(Source("s", "origin", questions), folder, ledger.ask_shipped(shipped_snapshot()), VERSION, print)
    ((_, (one, _, refused, _)),) = ledger.ledger()
    assert 0.5 < exp(one["error"]) < 5.0  # an L4 takes about 2 ms
    assert "no such" in refused["reason"]


def test_the_ledger_has_known_sources_their_versions_and_finite_errors() -> None:
    entries = list(ledger.ledger())
    assert {about["source"] for about, _ in entries} <= {source.recorded_in or name for name, source in SOURCES.items()}
    for about, rows in entries:
        assert about["commit"]
        assert {row["asked"] for row in rows} <= {ASKED, SCRIPTED}
        assert all((row["error"] is None) == bool(row["reason"]) for row in rows)
        assert all(
            abs(row["error"]) < 12.0 and row["below"] >= 0.0 <= row["above"] for row in rows if not row["reason"]
        )


@pytest.mark.parametrize(
    ("config", "architecture"),
    [
        ({"hidden_size": 1}, "dense"),
        ({"num_experts": 8}, "experts"),
        ({"kv_lora_rank": 512, "n_routed_experts": 256}, "latent"),
        ({"kv_lora_rank": 512, "index_topk": 2048}, "sparse"),
        ({"text_config": {"layer_types": ["linear_attention", "full_attention"]}}, "hybrid"),
    ],
)
def test_architectures_follow_from_configurations(config: dict[str, Any], architecture: str) -> None:
    assert architecture_of(json.loads(json.dumps(config))) == architecture
