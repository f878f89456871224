"""Typical mistakes on the pages, typed in a real browser: each answer names the field, what was typed, and the mend."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.onnx_bytes import model, node, tensor

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

MODEL = "/?kind=model&name=llama-3-8b&mode=prefill&batch=1&sequence=2048&dtype=bf16&gpu=nvidia-l4"
LINEAR = "/?kind=operators&op=linear&m=64&n=64&k=64&dtype=bf16&gpu=nvidia-l4"
CONFIG, PRICES, WATTS = "or its config.json", "US dollars per hour of one GPU", "Watts of one GPU"
COVERAGE = "Coverage of the interval"
# A page, the name of a field of its form, what is typed there, and words of the answer.
TYPED: list[tuple[str, str, str, tuple[str, ...]]] = [
    (MODEL, "batch", "many", ("Batch", "expected a number", '"many"')),
    (MODEL, "batch", "1,000", ("Batch", '"1,000"', "send 1000")),
    (MODEL, "batch", "1.5", ("Batch", "whole number", "got 1.5")),
    (MODEL, "batch", "0", ("Batch", ">= 1", "got 0")),
    (MODEL, "sequence", "2k", ("Context length", '"2k"', "written out")),
    (MODEL, "sequence", "", ("Context length", "tokens per sequence are missing")),
    (
        MODEL,
        "config",
        "meta-llama/Llama-3.1-8B",
        (CONFIG, "meta-llama/Llama-3.1-8B", "paste the text of its config.json"),
    ),
    (MODEL, "config", '{"model_type": "lama"}', (CONFIG, "model_type", "'lama'", "llama")),
    (MODEL, "config", '{"model_type": ', (CONFIG, "not valid JSON", "model_type")),
    (MODEL, "prices", "nvidia-l4", (PRICES, "line 1", "'nvidia-l4 0.8'")),
    (MODEL, "prices", "nvidia-l4 0,80", (PRICES, "'nvidia-l4 0,80'", "'nvidia-l4 0.80'")),
    (MODEL, "prices", "nvidia-l4 $0.80", (PRICES, "'nvidia-l4 $0.80'", "'nvidia-l4 0.80'")),
    (MODEL, "prices", "nvidia-l5 0.80", (PRICES, "'nvidia-l5'", "Did you mean: nvidia-l4")),
    (MODEL, "powers", "nvidia-l4 60W", (WATTS, "'nvidia-l4 60W'", "'nvidia-l4 60'")),
    (MODEL, "coverage", "80", (COVERAGE, "got 80", "send 0.8 for 80 %")),
    (MODEL, "coverage", "80%", (COVERAGE, '"80%"', "send 0.8 for 80 %")),
    (MODEL, "gpu", "rtx-4071", ("GPU", "'rtx-4071'", "Did you mean: rtx-4070")),
    (MODEL, "spec", '{"name": "Tomorrow 1"}', ("sm_count", "is missing", "memory_bytes")),
    (LINEAR, "m", "-64", ("m", ">= 1", "got -64")),
    (LINEAR, "k", "", ("k", "missing")),
    ("/scaling", "devices", "1;2", ("Data-parallel devices", "comma-separated", "'1;2'")),
    ("/serving", "input_tokens", "-1", ("Input tokens", ">= 1", "got -1")),
    ("/serving", "level", "fast", ("How many", "expected a number", '"fast"')),
    ("/plan", "every_s", "often", ("Seconds between a user's requests", "over 0", "'often'")),
    ("/plan", "duty_cycle", "40%", ("Share of the hours", "expected a number", '"40%"')),
    ("/serving", "ttft_ms", "0.5s", ("Time to first token, ms", "milliseconds", "'0.5s'")),
]
# An address, and words of the answer.
ADDRESSES: list[tuple[str, tuple[str, ...]]] = [
    (f"{MODEL}&batch_size=8", ("'batch_size'", "did you mean batch")),
    (f"{MODEL}&dtype=bf61", ("Number format", "'bf61'", "did you mean bf16?")),
    (f"{MODEL}&mode=decod", ("Mode", "'decod'", "did you mean decode?")),
    (f"{MODEL}&name=meta-llama/Llama-3.1-406B-Instruct", ("Network", "llama-3.1-405b", "config.json")),
    (f"{MODEL}&name=resnet50", ("Mode", "ConvNet without prefill", "inference or training")),
    (f"{MODEL}&predictor=autoo", ("Predictor", "'autoo'", "did you mean auto?")),
    (f"{MODEL}&rank_by=money", ("Rank by", "'money'", "cost")),
    ("/?kind=modle", ("'modle'", "did you mean model?")),
    ("/?kind=operators&op=linaer", ("Operator", "'linaer'", "did you mean linear?")),
    ("/detail?on=rtx-4071", ("'rtx-4071'", "rtx-4070")),
    ("/measured?kind=kernels", ("Kind", "'kernels'", "did you mean kernel?")),
    ("/measured?gpu=rtx-4071", ("GPU", "'rtx-4071'", "rtx-4070")),
    ("/accuracy?predictor=autoo", ("autoo", "did you mean auto")),
    ("/catalogue/rtx-4071", ("'rtx-4071'", "rtx-4070")),
]


@pytest.mark.parametrize(("path", "field", "typed", "words"), TYPED, ids=[f"{one[1]}-{one[2]}" for one in TYPED])
def test_what_is_typed_wrong_gets_its_mend(
    page: Page, path: str, field: str, typed: str, words: tuple[str, ...]
) -> None:
    page.goto(path)
    page.evaluate("document.querySelectorAll('form.ask details').forEach(part => { part.open = true; })")
    page.locator(f"#f-{field}").fill(typed)
    page.locator("form.ask button[type=submit]").click()
    alert = page.get_by_role("alert")
    for word in words:
        expect(alert).to_contain_text(word)
    expect(alert).to_be_focused()


@pytest.mark.parametrize(("path", "words"), ADDRESSES, ids=[one[0] for one in ADDRESSES])
def test_a_wrong_address_gets_its_mend(page: Page, path: str, words: tuple[str, ...]) -> None:
    page.goto(path)
    for word in words:
        expect(page.get_by_role("alert")).to_contain_text(word)


def test_the_sizes_of_an_uploaded_graph_are_asked_for(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "convolution.onnx"
    convolution = node("Conv", ["x", "w"], ["y"], kernel_shape=[7, 7])
    file.write_bytes(model([convolution], {"x": ["batch", 3, "height", "width"]}, [tensor("w", [8, 3, 7, 7])]))
    page.goto("/?kind=graph&gpu=nvidia-l4")
    chooser = page.get_by_label("A graph, ONNX or torch.export file")
    chooser.set_input_files(file)
    expect(page.locator(".upload.wrong #f-file-help")).to_contain_text("give the size of height, width")
    sizes = page.get_by_label("Named dimensions")
    assert sizes.input_value().split() == ["height", "width"]
    sizes.fill("height 224\nwidth 224")
    chooser.set_input_files(file)
    expect(page.locator("#f-graph_id")).not_to_have_value("")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#ranking tr.gpu")).to_have_count(1)
